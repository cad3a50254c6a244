"""The inputs on which a stage is checked: the plan's shapes, ragged lengths and extreme values."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flashcore_numba.checks.bounds import EXTREME, PLAN
from flashcore_numba.checks.feature_cases import feature_cases
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import BFLOAT16, FLOAT16, Element
from flashcore_numba.core.operation import Case
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import PLAN_SHAPES
from flashcore_numba.stages import Stage

SEEDS = (0, 42, 12345)
# The simulator keeps what makes a shape telling: several heads, batches and tiles of up to 64 keys.
SCALED_SHAPES = {
    "small": (1, 2, 64, 64),
    "medium": (1, 1, 128, 64),
    "mission": (1, 2, 96, 64),
    "large": (1, 1, 160, 64),
    "multi_batch": (2, 2, 64, 64),
}
# What is checked in every type that a stage serves: a tile and a mask of each kind, keys divided among
# blocks, and what depends on the range and the precision of the type.
IN_EVERY_TYPE = (
    "softcap: 3",
    "seqused_k: NaN behind, causal",
    "prior and float32 output: 300 keys",
    "ragged and window and sinks",
    "ragged 33 rows, 70 keys",
    "causal ragged 70 rows",
    "causal ragged 70, D=",
    "20 rows, 1100 keys",
    "causal grouped queries",
    "extreme: scores rise and fall",
    "extreme: scores about 1000",
    "extreme: q and k over",
    "extreme: values up to",
    "mission",
)
# Of q and k, so that scores are floats, and of v, so that the sum of a few thousand is one.
LARGEST_QK = {FLOAT16: FLOAT16.largest, BFLOAT16: 1e17}
LARGEST_V = {FLOAT16: 65000.0, BFLOAT16: 1e33}


def normal(
    rng: np.random.Generator,
    batch: int,
    heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    kv_heads: int | None = None,
    *,
    element: Element = FLOAT16,
    **options: Any,
) -> Inputs:
    """Independent standard normal q, k and v."""
    kv_heads = heads if kv_heads is None else kv_heads
    q = element.round(rng.standard_normal((batch, heads, seq_q, head_dim)))
    k = element.round(rng.standard_normal((batch, kv_heads, seq_k, head_dim)))
    v = element.round(rng.standard_normal((batch, kv_heads, seq_k, head_dim)))
    return Inputs(q, k, v, **options)


def cases(stage: Stage, full_size: bool) -> list[Case]:
    """Every sample case that the stage serves, the cheap and telling ones first."""
    found = _in_type(stage, FLOAT16, full_size)
    for element in stage.elements:
        if element is not FLOAT16:
            found += [
                replace(case, name=f"{case.name}, {element.name}")
                for case in _in_type(stage, element, full_size)
                if case.name.startswith(IN_EVERY_TYPE) and case.seed in (None, SEEDS[0])
            ]
    masked = serves(stage, causal=True)
    return [case for case in found if masked or "causal" not in case.name]


def _in_type(stage: Stage, element: Element, full_size: bool) -> list[Case]:
    dims = stage.head_dims
    ragged, extreme = _ragged(stage, dims, element), _extreme(dims[0], element)
    added = feature_cases(stage, partial(normal, element=element))
    return [*ragged[:4], *extreme, *ragged[4:], *added, *_plan(full_size, element)]


def serves(stage: Stage, causal: bool = False, group: int = 1) -> bool:
    """Whether a stage takes small problems with this mask and so many query heads for a K/V head."""
    q, k = (np.empty((1, heads, 1, stage.head_dims[0]), FLOAT16.dtype) for heads in (group, 1))
    return stage.why_not(Problem(q, k, k, causal=causal)) is None


def _ragged(stage: Stage, dims: tuple[int, ...], element: Element) -> list[Case]:
    def case(name: str, *shape: int, layout: str = "inside", **options: Any) -> Case:
        return Case(name, lambda rng: normal(rng, *shape, element=element, **options), layout=layout)

    d = dims[0]
    found = [
        case("ragged 33 rows, 70 keys, two heads, two batches", 2, 2, 33, 70, d, layout="mixed"),
        case("causal ragged 33 rows, 70 keys", 1, 2, 33, 70, d, causal=True),
        case("causal ragged 70 rows, 33 keys", 1, 1, 70, 33, d, causal=True),
        case("one row, one key", 1, 1, 1, 1, d),
        case("ragged 31", 1, 2, 31, 31, d, layout="contiguous"),
        case("ragged 33", 1, 1, 33, 33, d, layout="contiguous"),
        case("ragged 127", 1, 1, 127, 127, d),
        case("causal ragged 127", 1, 1, 127, 127, d, causal=True, layout="contiguous"),
        case("one row, 127 keys", 1, 2, 1, 127, d),
        case("127 rows, one key", 1, 1, 127, 1, d),
        case("transposed layout [B, S, H, D]", 2, 3, 40, 40, d, layout="transposed"),
        case("a scale of 0.3", 1, 1, 40, 40, d, scale=0.3),
    ]
    for larger in dims[1:]:
        found.append(case(f"ragged 33 rows, 45 keys, D={larger}", 1, 2, 33, 45, larger))
        found.append(case(f"causal ragged 70, D={larger}", 1, 1, 70, 70, larger, causal=True))
    if stage.kernels.divides_keys:  # so many keys that a stage may divide them among blocks
        found.append(case("20 rows, 1100 keys", 1, 1, 20, 1100, d))
        found.append(case("causal 20 rows, 1100 keys", 1, 1, 20, 1100, d, causal=True))
        found.append(Case("extreme: scores rise and fall", lambda rng: _rising(rng, d, element), EXTREME))
    negative = "extreme: scores rise at a negative scale"
    found.append(Case(negative, lambda rng: _negative(rng, d, element), EXTREME))
    if serves(stage, group=2):
        found.append(case("grouped queries, 4 heads on 2", 2, 4, 33, 40, d, kv_heads=2))
        found.append(case("causal grouped queries, 3 heads on 1", 1, 3, 40, 33, d, kv_heads=1, causal=True))
    return found


def _rising(rng: np.random.Generator, d: int, element: Element) -> Inputs:
    """Scores that rise by about 50 over several K/V tiles of any stage, from either end."""
    keys = 700
    x, direction = normal(rng, 1, 1, 20, keys, d, element=element), rng.standard_normal(d)
    direction *= 20 / np.linalg.norm(direction)
    k = 0.1 * x.k + np.outer(1 - np.abs(np.linspace(-1, 1, keys)), direction)
    return x.but(q=element.round(0.1 * x.q + direction), k=element.round(k))


def _negative(rng: np.random.Generator, d: int, element: Element) -> Inputs:
    """The same of products below 0: whole tiles without their scale's sign lose all their weights."""
    x = _rising(rng, d, element)
    return x.but(k=-x.k, scale=-1 / math.sqrt(d))


def _extreme(d: int, element: Element) -> list[Case]:
    rows, keys = 40, 70
    whole = LARGEST_QK[element] == element.largest
    spanned = f"the whole {element.name} range" if whole else f"{LARGEST_QK[element]:g}"

    def base(rng: np.random.Generator) -> Inputs:
        return normal(rng, 1, 1, rows, keys, d, element=element)

    def direction(rng: np.random.Generator) -> np.ndarray:
        """One unit vector of D components."""
        u = rng.standard_normal(d)
        return u / np.linalg.norm(u)

    def all_negative(rng: np.random.Generator, size: float) -> Inputs:
        x = base(rng)
        return x.but(q=element.round(size * np.abs(x.q) + size), k=element.round(-size * np.abs(x.k) - size))

    def huge(rng: np.random.Generator, factor: float) -> Inputs:
        x = base(rng)
        return x.but(q=element.round(factor * x.q.astype(np.float32)))

    def along(rng: np.random.Generator, weight: np.ndarray) -> Inputs:
        """Scores that follow `weight` [S_k] and little else, about 50 where it is 1."""
        x, u = base(rng), direction(rng)
        k = 0.1 * x.k + np.outer(weight, 20 * u)
        return x.but(q=element.round(0.1 * x.q + 20 * u), k=element.round(k))

    def one_dominates(rng: np.random.Generator) -> Inputs:
        weight = np.zeros(keys)
        weight[rng.integers(keys)] = 2
        return along(rng, weight)

    def constant_rows(rng: np.random.Generator) -> Inputs:
        x = base(rng)
        return x.but(
            q=np.full_like(x.q, 0.5), k=element.round(np.zeros_like(x.k) + rng.standard_normal((keys, 1)))
        )

    def identical_keys(rng: np.random.Generator) -> Inputs:
        x = base(rng)
        return x.but(k=np.broadcast_to(x.k[:, :, :1], x.k.shape).copy())

    def full_range(rng: np.random.Generator) -> Inputs:
        x = base(rng)
        limit = LARGEST_QK[element]
        return x.but(
            q=element.round(rng.uniform(-limit, limit, x.q.shape)),
            k=element.round(rng.uniform(-limit, limit, x.k.shape)),
        )

    def large_values(rng: np.random.Generator) -> Inputs:
        x = base(rng)
        limit = LARGEST_V[element]
        return x.but(v=element.round(rng.uniform(-limit, limit, x.v.shape)))

    return [
        Case("extreme: every score below -150", lambda rng: all_negative(rng, 5), EXTREME),
        Case("extreme: every score below -100000", lambda rng: all_negative(rng, 120), EXTREME),
        Case(
            "extreme: scores rise from key to key", lambda rng: along(rng, np.linspace(0, 1, keys)), EXTREME
        ),
        Case(
            "extreme: scores fall from key to key", lambda rng: along(rng, np.linspace(1, 0, keys)), EXTREME
        ),
        Case(
            "extreme causal: scores rise towards keys that are not seen",
            lambda rng: along(rng, np.linspace(0, 8, keys)).but(causal=True),
            EXTREME,
        ),
        Case("extreme: scores about 100", lambda rng: huge(rng, 30), EXTREME),
        Case("extreme: scores about 1000", lambda rng: huge(rng, 300), EXTREME),
        Case("extreme: one key dominates", one_dominates, EXTREME),
        Case("extreme: constant rows", constant_rows, EXTREME),
        Case("extreme: identical keys", identical_keys, EXTREME),
        Case(f"extreme: q and k over {spanned}", full_range, EXTREME),
        Case(f"extreme: values up to {LARGEST_V[element]:g}", large_values),
    ]


def _plan(full_size: bool, element: Element) -> list[Case]:
    gate = replace(PLAN, largest=PLAN.largest * element.unit_roundoff / FLOAT16.unit_roundoff)
    found = []
    for name, planned in PLAN_SHAPES.items():
        shape = planned if full_size else SCALED_SHAPES[name]
        note = "" if shape == planned else f"{name} {_times(planned)} -> {_times(shape)}"
        batch, heads, seq, head_dim = shape
        for seed in SEEDS:

            def make(
                rng: np.random.Generator,
                shape: tuple[int, int, int, int, int] = (batch, heads, seq, seq, head_dim),
            ) -> Inputs:
                return normal(rng, *shape, element=element)

            found.append(
                Case(
                    f"{name} {_times(shape)}, seed {seed}",
                    make,
                    gate,
                    seed=seed,
                    layout="contiguous",
                    scaled=note,
                )
            )
    return found


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
