"""What must hold for every input: each property runs a stage on related inputs and compares its answers.

A property takes `run(inputs, **how) -> Answer`, a random generator and an element type; it returns the
smallest margin (allowed / error) it saw and raises Failed("property", ...) when a relation does not hold.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flashcore_numba.checks.bounds import U, reference
from flashcore_numba.checks.cases import normal, serves
from flashcore_numba.checks.feature_cases import MADE
from flashcore_numba.checks.trial import Answer, Failed, Inputs
from flashcore_numba.core.element import FLOAT16, FLOAT32, Element
from flashcore_numba.core.features import Features
from flashcore_numba.core.operation import Property
from flashcore_numba.core.output import LSE
from flashcore_numba.stages import Stage

Run = Callable[..., Answer]


@dataclass(frozen=True)
class Relation:
    """A property, and which stages and back ends it is for."""

    name: str
    holds: Callable[..., float]
    causal: bool = False  # needs the causal mask
    simulator_only: bool = False
    divided_only: bool = False  # of what only stages do that may divide their keys
    in_every_type: bool = False  # or in float16 alone: what it asks does not depend on the type
    features: tuple[str, ...] = ()  # that it needs


def properties(stage: Stage, backend: str) -> list[Property]:
    """The properties that the stage and the back end allow to test."""
    masked = serves(stage, causal=True)
    return [
        Property(item.name, item.holds)
        if element is FLOAT16
        else Property(f"{item.name}, {element.name}", partial(item.holds, element=element))
        for element in stage.elements
        for item in RELATIONS
        if (element is FLOAT16 or item.in_every_type)
        and (masked or not item.causal)
        and (backend == "simulator" or not item.simulator_only)
        and (stage.kernels.divides_keys or not item.divided_only)
        and {*item.features} <= {*stage.features}
    ]


def _same(what: str, one: np.ndarray, other: np.ndarray, allowed: np.ndarray) -> float:
    """The margin by which two answers agree."""
    error = np.abs(one.astype(np.float64) - other.astype(np.float64))
    error = np.where(np.isnan(error), np.inf, error)
    worst = np.unravel_index((error / allowed).argmax(), error.shape)
    if not error[worst] <= allowed[worst]:
        b, h, row, col = (int(i) for i in worst)
        raise Failed(
            "property",
            f"{what}: at [b={b}, h={h}, row={row}, col={col}] {one[worst]} became {other[worst]}, "
            f"off by {error[worst]:.3g} where {allowed[worst]:.3g} is allowed",
        )
    return math.inf if error[worst] == 0 else float(allowed[worst] / error[worst])


def _allowed(inputs: Inputs) -> np.ndarray:
    x = inputs
    return reference(x.q, x.k, x.v, x.causal, x.scale, x.features).allowed


def keys_permuted(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Softmax sums over a set: the order of the keys does not matter."""
    x = normal(rng, 1, 2, 40, 70, 64, element=element)
    order = rng.permutation(70)
    shuffled = x.but(k=x.k[:, :, order], v=x.v[:, :, order])
    return _same("keys permuted together with their values", run(x).out, run(shuffled).out, _allowed(x))


def constant_added(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """softmax(S + c) = softmax(S).

    One component of q is 4, so adding 64 to that component of k adds 256 * scale to every score. Both k
    components are exact (multiples of 1/16 below 128 in float16), and so are their products.
    """
    x = normal(rng, 1, 1, 40, 70, 64, element=element)
    q, k = x.q.copy(), x.k.copy()
    q[..., 5] = 4
    steps = round(1 / (128 * element.unit_roundoff))
    k[..., 5] = rng.integers(-steps, steps + 1, k.shape[:3]) / steps
    x = x.but(q=q, k=k)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for step in (64, -64):
        shifted = k.copy()
        shifted[..., 5] += step
        moved = x.but(k=shifted)
        what = f"the constant {4 * step / math.sqrt(64):g} added to every score"
        margin = min(margin, _same(what, plain, run(moved).out, np.maximum(allowed, _allowed(moved))))
    return margin


def in_hull(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Every output row is a weighted mean of rows of V, so no column leaves the range of V's column."""
    x = normal(rng, 2, 1, 40, 70, 64, element=element)
    x = x.but(v=element.round(x.v + 3))
    out = run(x).out.astype(np.float64)
    v = x.v.astype(np.float64)
    slack = (2 * element.unit_roundoff + 4 * 70 * U) * np.abs(v).max(axis=2, keepdims=True)
    low, high = v.min(axis=2, keepdims=True) - slack, v.max(axis=2, keepdims=True) + slack
    inside = (out >= low) & (out <= high)
    if not inside.all():
        b, h, row, col = (int(i) for i in np.unravel_index((~inside).argmax(), out.shape))
        raise Failed(
            "property",
            f"[b={b}, h={h}, row={row}, col={col}] is {out[b, h, row, col]:.5g}, outside the range "
            f"{v[b, 0, :, col].min():.5g} to {v[b, 0, :, col].max():.5g} of that column of V: the weights "
            "are not positive with sum one (is the row divided by l, are O and l rescaled alike?)",
        )
    return math.inf


def edges_of_the_range(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Means of the greatest numbers are no infinities, and means of infinities are.

    Most weights are 0.55 of the way from one number of the type to the next, so that rounding makes them
    greater by nearly 2^-11 of their size (float16), and V is +-65504: O / l passes it where l is the sum of
    what was not rounded. Of a type with the range of float32, V is the greatest whose sums are floats.
    """
    x = normal(rng, 1, 1, 40, 70, 64, element=element)
    q, k, v = np.zeros_like(x.q), np.zeros_like(x.k), np.sign(x.v[:, :, :1]).repeat(70, axis=2)
    q[..., 0], k[..., 0] = 1, -1
    for key in (0, int(rng.integers(1, 69)), 69):
        k[:, :, key, 0] = 0  # the maximum, wherever a tile or a part begins
    rounded_up = 0.5 * (1 + 0.55 * 2 * element.unit_roundoff)
    greatest = element.round(np.array(min(element.largest, FLOAT32.largest / 1024)))
    great = x.but(q=q, k=k, v=v * greatest, scale=-math.log(rounded_up))
    out = run(great).out
    close = np.abs(out) >= (1 - 3.1 * element.unit_roundoff) * greatest.astype(np.float64)
    right = np.isfinite(out) & close & (np.sign(out) == v[:, :, :1])
    what = f"the mean of V that is +-{float(greatest):.6g} in the whole column: it must be that, and finite"
    _all(right, out, what)

    v = x.v.copy()
    v[:, :, rng.integers(70), 3], v[:, :, rng.integers(70), 60] = np.inf, -np.inf
    out = run(x.but(v=v)).out
    right = np.isfinite(out)
    right[..., 3], right[..., 60] = np.isposinf(out[..., 3]), np.isneginf(out[..., 60])
    _all(right, out, "where V has an infinity in the columns 3 and 60 alone: the mean of those is infinite")
    return math.inf


def _all(right: np.ndarray, out: np.ndarray, what: str) -> None:
    if not right.all():
        b, h, row, col = (int(i) for i in np.unravel_index((~right).argmax(), out.shape))
        raise Failed("property", f"[b={b}, h={h}, row={row}, col={col}] is {out[b, h, row, col]}, {what}")


def _with_hopeless_keys(
    rng: np.random.Generator, causal: bool, element: Element
) -> tuple[Inputs, Callable[[int, int], Inputs]]:
    """An input, and the same input with keys before and after it whose weight is exactly zero in float32."""
    x = normal(rng, 1, 1, 40, 45, 64, causal=causal, element=element)
    q = x.q.copy()
    q[..., 0] = 1
    x = x.but(q=q)

    def padded(before: int, after: int) -> Inputs:
        def around(middle: np.ndarray, first_column: float, rest: float) -> np.ndarray:
            def rows(n: int) -> np.ndarray:
                block = np.full((1, 1, n, 64), rest, x.k.dtype)
                block[..., 0] = first_column
                return block

            return np.concatenate([rows(before), middle, rows(after)], axis=2)

        return x.but(k=around(x.k, -60000, 0), v=around(x.v, 1000, 1000))

    return x, padded


def tile_start(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Keys of weight zero, put before and after, move every tile border and change no answer."""
    x, padded = _with_hopeless_keys(rng, False, element)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for before, after in ((5, 0), (0, 23), (32, 3)):
        what = f"{before} keys of weight zero before and {after} after the others"
        # The bound is that of the other keys: a score of -7500 may be far off, its weight is 0.
        margin = min(margin, _same(what, plain, run(padded(before, after)).out, allowed))
    return margin


def tile_start_causal(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """The causal mask is aligned at the last key, so keys of weight zero put before change nothing."""
    x, padded = _with_hopeless_keys(rng, True, element)
    what = "causal, 7 keys of weight zero before the others"
    return _same(what, run(x).out, run(padded(7, 0)).out, _allowed(x))


def no_key(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """A row that sees no key is zero, and its LSE is -inf."""
    x = normal(rng, 1, 2, 70, 33, 64, causal=True, element=element)
    answer, blind = run(x), 70 - 33
    rows = answer.out[:, :, :blind]
    if not (rows == 0).all():
        b, h, row, col = (int(i) for i in np.unravel_index((rows != 0).argmax(), rows.shape))
        raise Failed(
            "property",
            f"rows 0 to {blind - 1} of {x.label} see no key and must be 0, but [b={b}, h={h}, row={row}, "
            f"col={col}] is {rows[b, h, row, col]} (0 / 0, or exp(-inf - -inf)?)",
        )
    lse = getattr(answer, LSE.name, None)
    if lse is not None and not np.isneginf(lse[:, :, :blind]).all():
        raise Failed("property", f"the LSE of a row that sees no key is {lse[0, 0, 0]}, it must be -inf")
    return math.inf


def one_key(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """With a single key the weight is exactly one, so the output is that row of V, bit for bit: also the
    greatest number of the type.
    """
    x = normal(rng, 1, 2, 33, 1, 64, element=element)
    x.v[..., int(rng.integers(64))] = element.largest
    answer = run(x)
    if not (answer.out == x.v).all():
        b, h, row, col = (int(i) for i in np.argwhere(answer.out != x.v)[0])
        raise Failed(
            "property",
            f"one key: [b={b}, h={h}, row={row}, col={col}] is {answer.out[b, h, row, col]}, must be exactly "
            f"v = {x.v[b, h, 0, col]}",
        )
    return math.inf


def scale_moves_into_q(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Doubling q and halving the scale are both exact, so the answer stays."""
    x = normal(rng, 1, 1, 33, 45, 64, scale=0.25, element=element)
    doubled = x.but(q=element.round(2 * x.q), scale=0.125)
    return _same("q doubled and the scale halved", run(x).out, run(doubled).out, _allowed(x))


def any_schedule(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """The order in which warps run is the hardware's choice: it must not show in the answer."""
    x = normal(rng, 1, 1, 36, 45, 64, causal=True, element=element)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for order in ("reverse", f"random:{rng.integers(1000)}"):
        answer = run(x, order=order).out
        margin = min(margin, _same(f"warps scheduled {order}", plain, answer, allowed))
    return margin


def any_gpu(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """A launcher may divide the work by the size of the GPU, which must not show in the answer: long rows, or
    so many short ones for an SM that small blocks share it.
    """
    long, short = (2, 2, 70, 150, 64, True), (3, 4, 30, 100, 64, False)
    return min(_any_gpu(run, normal(rng, *x[:5], causal=x[5], element=element)) for x in (long, short))


def any_gpu_with_features(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """The same where work begins and ends with a window, or only the GPU knows how much there is."""
    names = "window: causal, 33 keys before", "ragged and seqused_k: NaN behind, causal"
    draw = partial(normal, element=element)
    return min(_any_gpu(run, MADE[name](rng, draw, 64)) for name in names)


def parts_chained(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """Keys may be seen in parts, in any order: what the parts before gave goes into the next, and only the
    last rounds to the element type. A part that some rows see nothing of changes nothing for them.
    """
    x = normal(rng, 1, 4, 40, 150, 64, kv_heads=2, element=element)
    ref = reference(x.q, x.k, x.v)
    first, second = np.sort(rng.choice(np.arange(1, 150), 2, replace=False))
    parts = [slice(0, first), slice(first, second), slice(second, 150)]
    whole, margin = run(x), math.inf
    for order in (parts, [parts[i] for i in rng.permutation(3)]):
        before: dict[str, Any] = {}
        for n, keys in enumerate(order):
            features = Features(float32_out=n < 2, **before)
            answer = run(x.but(k=x.k[:, :, keys], v=x.v[:, :, keys], features=features))
            before = {"prior_out": answer.out, "prior_lse": answer.lse}
        what = f"150 keys in parts, {', '.join(f'{keys.start} to {keys.stop}' for keys in order)}"
        margin = min(margin, _same(what, whole.out, answer.out, ref.allowed))
        lse = [each[..., None] for each in (whole.lse, answer.lse, ref.lse_allowed)]
        margin = min(margin, _same(f"the LSE of {what}", *lse))
    return margin


def _any_gpu(run: Run, x: Inputs) -> float:
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for sm_count in (1, 3):
        answer = run(x, sm_count=sm_count).out
        margin = min(margin, _same(f"on a GPU of {sm_count} multiprocessors", plain, answer, allowed))
    return margin


def waits_for_keys(run: Run, rng: np.random.Generator, element: Element = FLOAT16) -> float:
    """A kernel ends when all keys have come, and not while the first one of a head is missing."""
    x = normal(rng, 1, 4, 70, 150, 64, kv_heads=2, causal=True, element=element)
    margin = math.inf
    for come, *missing in (([0], [1]), ([0, 0], [0, 1], [1, 0])):
        out = run(x.but(features=Features(keys_from=np.array(come, np.int32)))).out
        margin = min(margin, _same("the keys came before the launch", run(x).out, out, _allowed(x)))
        for first in missing:
            try:
                run(x.but(features=Features(keys_from=np.array(first, np.int32))), sm_count=1)  # all heads
            except Failed as failed:
                if failed.kind == "hang":
                    continue
                raise
            raise Failed("property", f"it ended, although keys_from is {first}: a first key has not come")
    return margin


RELATIONS = (
    Relation("a row that sees no key is zero", no_key, causal=True),
    Relation("one key returns its value exactly", one_key, in_every_type=True),
    Relation("every row is in the convex hull of V", in_hull, in_every_type=True),
    Relation(
        "the greatest halves stay finite and infinities infinite", edges_of_the_range, in_every_type=True
    ),
    Relation("keys permuted with their values change nothing", keys_permuted),
    Relation("a constant added to all scores changes nothing", constant_added),
    Relation("the answer does not depend on where tiles start", tile_start),
    Relation("causal: keys put before do not move the mask", tile_start_causal, causal=True),
    Relation("a factor moves between q and scale", scale_moves_into_q),
    Relation("every schedule of warps gives the same answer", any_schedule, causal=True, simulator_only=True),
    Relation("keys seen in parts are seen as a whole", parts_chained, features=("prior_out", "float32_out")),
    Relation(
        "every size of GPU gives the same answer",
        any_gpu,
        causal=True,
        simulator_only=True,
        divided_only=True,
    ),
    Relation(
        "every size of GPU gives the same answer with features",
        any_gpu_with_features,
        simulator_only=True,
        divided_only=True,
        features=("window", "seqused_k", "cu_seqlens_q"),
    ),
    Relation(
        "it waits for keys that still come", waits_for_keys, simulator_only=True, features=("keys_from",)
    ),
)
