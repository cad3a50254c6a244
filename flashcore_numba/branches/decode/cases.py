"""The inputs on which decoding is checked: pages, lengths, tokens, groups, layouts, features, extremes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs, paged, poisoned
from flashcore_numba.branches.decode.problem import cut_by_all_lengths, own_type_alone
from flashcore_numba.checks.bounds import EXTREME
from flashcore_numba.checks.cases import LARGEST_V
from flashcore_numba.core.element import E4M3, FLOAT16, Element
from flashcore_numba.core.features import Features
from flashcore_numba.core.operation import Case
from flashcore_numba.stages import Stage

PAGES = (1, 16, 32, 64, 128, 256)
AROUND = (15, 0, 33, 16, 1, 17)  # lengths, around pages of 16
# Checked in every type that a stage serves; the other cases do not depend on the type.
IN_EVERY_TYPE = ("lengths around", "5 tokens", "window: 33", "softcap: 3", "sinks: ", "extreme", "e4m3: ")

Make = Callable[[np.random.Generator], DecodeInputs]


def cases(stage: Stage, full_size: bool) -> list[Case]:
    """Every sample case that the stage serves, the cheap and telling ones first."""
    found = []
    for element in stage.elements:
        shapes = _shapes(stage, element)
        made = [*shapes[:6], *_features(stage, element), *_e4m3(stage, element)]
        made += [*_extreme(stage, element), *shapes[6:]]
        if element is FLOAT16 and full_size:
            made += _long(stage)
        ending = "" if element is FLOAT16 else f", {element.name}"
        for name, make, layout in made:
            if element is not FLOAT16 and not name.startswith(IN_EVERY_TYPE):
                continue
            gate = EXTREME if name.startswith("extreme") else None
            found.append(Case(name + ending, make, gate, layout=layout))
    return found


def _case(name: str, lengths: Any, *shape: int, layout: str = "inside", **options: Any) -> tuple:
    """shape: H, H_kv, tokens, D, page, as far as `paged` is not to choose."""
    return name, partial(_drawn, lengths=lengths, shape=shape, options=options), layout


def _drawn(rng: np.random.Generator, lengths: Any, shape: tuple[int, ...], options: dict) -> DecodeInputs:
    return paged(rng, rng.permutation(lengths).tolist(), *shape, **options)


def _shapes(stage: Stage, element: Element) -> list[tuple]:
    d, *larger = stage.head_dims
    case = partial(_case, element=element)
    found = [
        case("lengths around pages of 16", AROUND, 4, 2, 1, d, layout="mixed"),
        case("5 tokens, causal, 4 query heads on 2", (5, 21, 0, 48), 4, 2, 5, d),
        case("8 tokens, more than some requests have keys", (3, 0, 8, 9), 2, 1, 8, d),
        case("2 tokens that see all keys", AROUND, 2, 1, 2, d, causal=False),
        case("one key", (1,), 1, 1, 1, d),
        case("no request has keys", (0, 0), 2, 1, 1, d),
        case("100 times as many keys", (7, 0, 700, 63), 2, 1, 1, d),
        case("8 query heads on 1, 5 tokens: 40 rows", (37, 80), 8, 1, 5, d),
        case("16 query heads on 1, 1 token", (5, 70), 16, 1, 1, d),
        case("4 query heads on 4", (19, 40), 4, 4, 1, d),
        case("3 query heads on 1, 16 tokens", (16, 50), 3, 1, 16, d),
        case("a table much wider than needed", (40, 3), 2, 1, 1, d, spare_columns=200),
        case("pools of [page, head, slot, D]", AROUND, 4, 2, 2, d, layout="transposed"),
        case("pages of K and V in turn", AROUND, 4, 2, 1, d, joined="pages"),
        case("rows of K and V in turn", AROUND, 4, 2, 1, d, joined="rows", layout="contiguous"),
        case("a contiguous cache", (150, 1, 0, 99), 2, 2, 1, d, 150, spare_columns=0, layout="contiguous"),
        case("pages of 20, which end anywhere in a tile", (300, 19, 20, 21), 2, 1, 2, d, 20),
        case("a scale of 0.3", (70, 30), 2, 1, 1, d, scale=0.3),
        case("a negative scale", (70, 130), 2, 1, 3, d, scale=-0.3),
        ("two requests share their first pages", partial(_shared, d=d, element=element), "inside"),
    ]
    if stage.limit is not cut_by_all_lengths:
        name = "100 times as many keys, batch-invariant"
        found.append(case(name, (700, 64, 7), 2, 1, 2, d, batch_invariant=True))
    if stage.kernels.by_shape:  # whose blocks take many rows at a time, and have rings that come round
        found.insert(5, case("8 query heads on 1, 8 tokens: 64 rows, 5000 keys", (5000,), 8, 1, 8, d, 8))
        found.append(case("16 query heads on 2, 9 tokens: 72 rows", (1, 200), 16, 2, 9, d, 3))
    for page in PAGES:
        lengths = tuple(dict.fromkeys((0, 1, page - 1, page, page + 1)))
        found.append(case(f"pages of {page}", lengths, 2, 1, 1, d, page))
    found += [case(f"D={dim}", AROUND, 4, 2, 2, dim) for dim in larger]
    if stage.value_dims:
        found += [
            case(f"D={key_dim}, D_v={value_dim}", (30, 66), 2, 1, 2, key_dim, value_dim=value_dim)
            for key_dim, value_dim in zip(stage.head_dims, stage.head_dims[::-1], strict=True)
            if key_dim != value_dim
        ]
    return found


def _shared(rng: np.random.Generator, d: int, element: Element) -> DecodeInputs:
    """Requests that begin with the same tokens have them on the same pages."""
    x = paged(rng, [70, 85, 40], 2, 1, 1, d, element=element)
    table = x.block_table.copy()
    table[1:, :2] = table[0, :2]
    return poisoned(x.but(block_table=table), rng)


def _features(stage: Stage, element: Element) -> list[tuple]:
    d = stage.head_dims[0]

    def case(name: str, lengths: Any, tokens: int = 1, sinks: bool = False, **given: Any) -> tuple:
        options = {key: given.pop(key) for key in ("causal", "scale") if key in given}

        def make(rng: np.random.Generator) -> DecodeInputs:
            logits = (3 * rng.standard_normal(4)).astype(np.float32) if sinks else None
            features = Features(**given, sinks=logits)
            shuffled = rng.permutation(lengths).tolist()
            return paged(rng, shuffled, 4, 2, tokens, d, element=element, features=features, **options)

        return name, make, "inside"

    made = {
        ("window",): [
            case("window: 33 keys before, causal", (0, 20, 33, 34, 200), 3, window=(33, -1)),
            case("window: 40 before, 2 after", (100, 30), 5, window=(40, 2), causal=False),
            case("window: only the diagonal", (50, 16), 4, window=(0, 0)),
            case("window: ends at a page", (64, 49, 48), 1, window=(15, 0)),
            case("window: only keys after", (5, 90), 8, window=(-1, 3), causal=False),
            case("window: 18 tokens, 36 rows", (300, 90, 0), 18, window=(100, -1)),
        ],
        ("softcap",): [
            case("softcap: 3", (90, 10), 2, softcap=3.0),
            case("softcap: 50, large scores", (90, 33), 1, softcap=50.0, scale=2.0),
            case("softcap: 3, 17 tokens, 34 rows", (90, 33), 17, softcap=3.0),
        ],
        ("sinks",): [
            case("sinks: empty requests and others", (0, 300, 5), 1, sinks=True),
            case("sinks: rows that see no key", (3, 0, 40), 5, sinks=True),
            case("sinks: 20 tokens, 40 rows that may see no key", (3, 0, 70), 20, sinks=True),
        ],
        ("window", "softcap", "sinks"): [
            case("sinks: with a window and a softcap", (80, 3), 3, True, window=(20, -1), softcap=5.0)
        ],
    }
    return [each for needed, some in made.items() if {*needed} <= {*stage.features} for each in some]


def _e4m3(stage: Stage, element: Element) -> list[tuple]:
    """Pools of bytes; half of the cases have a scale of each head."""
    if stage.limit is own_type_alone:
        return []
    d, *larger = stage.head_dims

    def case(name: str, lengths: Any, *shape: int, layout: str = "inside", **given: Any) -> tuple:
        heads, kv_heads = shape[0], shape[1]

        def make(rng: np.random.Generator) -> DecodeInputs:
            options = {"element": element, "stored": E4M3, **given}
            if options.pop("each_head", True):
                options |= {"k_scale": _scales(rng, kv_heads), "v_scale": _scales(rng, kv_heads)}
            if options.pop("sinks", False):
                sinks = (3 * rng.standard_normal(heads)).astype(np.float32)
                options["features"] = Features((40, -1), 5.0, sinks=sinks)
            return paged(rng, rng.permutation(lengths).tolist(), *shape, **options)

        return f"e4m3: {name}", make, layout

    def of_bytes(name: str, most: int, scale: float) -> tuple:
        def make(rng: np.random.Generator) -> DecodeInputs:
            """Bytes up to `most`, of both signs."""
            x = paged(rng, [70, 33], 4, 2, 2, d, element=element, stored=E4M3)
            k, v = (
                rng.integers(0, most, x.k_pool.shape, np.uint8, True)
                | rng.choice(np.array([0, 0x80], np.uint8), x.k_pool.shape)
                for _ in range(2)
            )
            x = x.but(k_pool=k.view(E4M3.dtype), v_pool=v.view(E4M3.dtype), k_scale=scale, v_scale=scale)
            return poisoned(x, rng)

        return f"e4m3: {name}", make, "inside"

    one: dict[str, Any] = {"each_head": False}
    return [
        case("lengths around pages of 16, one scale", AROUND, 4, 2, 1, d, **one, k_scale=0.3, v_scale=1.7),
        case("5 tokens, a scale of each head", (5, 21, 0, 48), 6, 3, 5, d, layout="mixed"),
        of_bytes("every finite byte", 0x7E, 2.0**-6),
        of_bytes("subnormal bytes", 7, 64.0),
        case("sinks, a window and a softcap", (80, 3, 0), 4, 2, 3, d, sinks=True),
        case("100 times as many keys, pages of 20", (7, 700, 63), 2, 1, 1, d, 20),
        case("8 query heads on 1, 5 tokens: 40 rows", (37, 80), 8, 1, 5, d),
        case("rows of K and V in turn", AROUND, 4, 2, 1, d, joined="rows", layout="contiguous"),
        case("pages of K and V in turn", AROUND, 4, 2, 1, d, joined="pages"),
        case("a negative scale", (70, 130), 2, 1, 3, d, scale=-0.3),
        case("scales of 1", (70, 30), 2, 1, 1, d, **one),
        *(case(f"D={dim}", AROUND, 4, 2, 2, dim) for dim in larger),
    ]


def _scales(rng: np.random.Generator, kv_heads: int) -> np.ndarray:
    """Of each head another one, about 1."""
    return (rng.permutation(2.0 ** np.linspace(-1, 1, kv_heads)) * rng.uniform(0.8, 1.25)).astype(np.float32)


def _extreme(stage: Stage, element: Element) -> list[tuple]:
    d, keys = stage.head_dims[0], 500

    def along(rng: np.random.Generator, weight: np.ndarray, scale: float | None = None) -> DecodeInputs:
        """Scores that follow `weight` [keys] and little else, about 50 where it is 1."""
        x = paged(rng, [keys, 20], 2, 1, 1, d, element=element, scale=scale)
        direction = rng.standard_normal(d)
        direction *= 20 / np.linalg.norm(direction)
        k = x.k_pool.copy()
        place = np.arange(keys)
        at = x.block_table[0, place // x.page], place % x.page
        k[at] = element.round(0.1 * k[at].astype(np.float32) + np.outer(weight, direction)[:, None])
        return x.but(q=element.round(0.1 * x.q.astype(np.float32) + direction), k_pool=k)

    def dominating(rng: np.random.Generator) -> DecodeInputs:
        weight = np.zeros(keys)
        weight[rng.integers(keys)] = 2
        return along(rng, weight)

    def below(rng: np.random.Generator) -> DecodeInputs:
        return along(rng, -2 - np.linspace(0, 1, keys))

    def large(rng: np.random.Generator) -> DecodeInputs:
        x = paged(rng, [70, 200, 3], 2, 1, 1, d, element=element)
        return x.but(q=element.round(300 * x.q.astype(np.float32)))

    def values(rng: np.random.Generator) -> DecodeInputs:
        x = paged(rng, [70, 200], 2, 1, 1, d, element=element)
        v = element.round(rng.uniform(-LARGEST_V[element], LARGEST_V[element], x.v_pool.shape))
        return poisoned(x.but(v_pool=v), rng)

    return [
        (
            "extreme: scores rise and fall",
            lambda rng: along(rng, 1 - np.abs(np.linspace(-1, 1, keys))),
            "inside",
        ),
        ("extreme: scores fall and rise", lambda rng: along(rng, np.abs(np.linspace(-1, 1, keys))), "inside"),
        ("extreme: one key dominates", dominating, "inside"),
        ("extreme: every score below -100", below, "inside"),
        ("extreme: scores about 1000", large, "inside"),
        (f"values up to {LARGEST_V[element]:g}", values, "inside"),
    ]


def _long(stage: Stage) -> list[tuple]:
    d = stage.head_dims[0]
    return [
        _case("a long request among short ones", (100, 20000, 3, 2047), 8, 2, 1, d),
        _case("many requests", (1, 200, 555, 1024) * 8, 16, 2, 2, d, 64),
    ]
