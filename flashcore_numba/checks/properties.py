"""What must hold for every input: each property runs a stage on related inputs and compares its answers.

A property takes `run(inputs, **how) -> Answer` and a random generator; it returns the smallest margin
(allowed / error) it saw and raises Failed("property", ...) when a relation does not hold.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcore_numba.checks.bounds import U, reference
from flashcore_numba.checks.cases import normal, serves
from flashcore_numba.checks.trial import Answer, Failed, Inputs
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.operation import Property
from flashcore_numba.core.output import LSE
from flashcore_numba.stages import Stage

Run = Callable[..., Answer]


@dataclass(frozen=True)
class Relation:
    """A property, and which stages and back ends it is for."""

    name: str
    holds: Callable[[Run, np.random.Generator], float]
    causal: bool = False  # needs the causal mask
    simulator_only: bool = False
    divided_only: bool = False  # of what only stages do that may divide their keys


def properties(stage: Stage, backend: str) -> list[Property]:
    """The properties that the stage and the back end allow to test."""
    masked = serves(stage, causal=True)
    return [
        Property(item.name, item.holds)
        for item in RELATIONS
        if (masked or not item.causal)
        and (backend == "simulator" or not item.simulator_only)
        and (stage.kernels.divides_keys or not item.divided_only)
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
    return reference(inputs.q, inputs.k, inputs.v, inputs.causal, inputs.scale).allowed


def keys_permuted(run: Run, rng: np.random.Generator) -> float:
    """Softmax sums over a set: the order of the keys does not matter."""
    x = normal(rng, 1, 2, 40, 70, 64)
    order = rng.permutation(70)
    shuffled = x.but(k=x.k[:, :, order], v=x.v[:, :, order])
    return _same("keys permuted together with their values", run(x).out, run(shuffled).out, _allowed(x))


def constant_added(run: Run, rng: np.random.Generator) -> float:
    """softmax(S + c) = softmax(S).

    One component of q is 4, so adding 64 to that component of k adds 256 * scale to every score. Both k
    components are exact in float16 (multiples of 1/16 below 128), and so are their products.
    """
    x = normal(rng, 1, 1, 40, 70, 64)
    q, k = x.q.copy(), x.k.copy()
    q[..., 5] = 4
    k[..., 5] = rng.integers(-16, 17, k.shape[:3]) / 16
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


def in_hull(run: Run, rng: np.random.Generator) -> float:
    """Every output row is a weighted mean of rows of V, so no column leaves the range of V's column."""
    x = normal(rng, 2, 1, 40, 70, 64)
    x = x.but(v=FLOAT16.round(x.v + 3))
    out = run(x).out.astype(np.float64)
    v = x.v.astype(np.float64)
    slack = (2 * FLOAT16.unit_roundoff + 4 * 70 * U) * np.abs(v).max(axis=2, keepdims=True)
    low, high = v.min(axis=2, keepdims=True) - slack, v.max(axis=2, keepdims=True) + slack
    inside = (out >= low) & (out <= high)
    if not inside.all():
        b, h, row, col = (int(i) for i in np.unravel_index((~inside).argmax(), out.shape))
        raise Failed(
            "property",
            f"[b={b}, h={h}, row={row}, col={col}] is {out[b, h, row, col]:.5g}, outside the range "
            f"{v[b, 0, :, col].min():.5g} to {v[b, 0, :, col].max():.5g} of that column of V: "
            "the weights are not positive with sum one (is the row divided by l, are O and l rescaled "
            "alike?)",
        )
    return math.inf


def edges_of_the_range(run: Run, rng: np.random.Generator) -> float:
    """Means of the greatest halves are no infinities, and means of infinities are.

    Most weights are 0.55 of the way from one half to the next, so that rounding makes them greater by nearly
    2^-11 of their size, and V is +-65504: O / l passes it where l is the sum of what was not rounded.
    """
    x = normal(rng, 1, 1, 40, 70, 64)
    q, k, v = np.zeros_like(x.q), np.zeros_like(x.k), np.sign(x.v[:, :, :1]).repeat(70, axis=2)
    q[..., 0], k[..., 0] = 1, -1
    for key in (0, int(rng.integers(1, 69)), 69):
        k[:, :, key, 0] = 0  # the maximum, wherever a tile or a part begins
    rounded_up = 0.5 * (1 + 0.55 * 2**-10)
    great = x.but(q=q, k=k, v=v * FLOAT16.dtype.type(FLOAT16.largest), scale=-math.log(rounded_up))
    out = run(great).out
    right = np.isfinite(out) & (np.abs(out) >= 65408) & (np.sign(out) == v[:, :, :1])
    _all(right, out, "the mean of V that is +-65504 in the whole column: it must be that, and finite")

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
    rng: np.random.Generator, causal: bool
) -> tuple[Inputs, Callable[[int, int], Inputs]]:
    """An input, and the same input with keys before and after it whose weight is exactly zero in float32."""
    x = normal(rng, 1, 1, 40, 45, 64, causal=causal)
    q = x.q.copy()
    q[..., 0] = 1
    x = x.but(q=q)

    def padded(before: int, after: int) -> Inputs:
        def around(middle: np.ndarray, first_column: float, rest: float) -> np.ndarray:
            def rows(n: int) -> np.ndarray:
                block = np.full((1, 1, n, 64), rest, FLOAT16.dtype)
                block[..., 0] = first_column
                return block

            return np.concatenate([rows(before), middle, rows(after)], axis=2)

        return x.but(k=around(x.k, -60000, 0), v=around(x.v, 1000, 1000))

    return x, padded


def tile_start(run: Run, rng: np.random.Generator) -> float:
    """Keys of weight zero, put before and after, move every tile border and change no answer."""
    x, padded = _with_hopeless_keys(rng, causal=False)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for before, after in ((5, 0), (0, 23), (32, 3)):
        what = f"{before} keys of weight zero before and {after} after the others"
        # The bound is that of the other keys: a score of -7500 may be far off, its weight is 0.
        margin = min(margin, _same(what, plain, run(padded(before, after)).out, allowed))
    return margin


def tile_start_causal(run: Run, rng: np.random.Generator) -> float:
    """The causal mask is aligned at the last key, so keys of weight zero put before change nothing."""
    x, padded = _with_hopeless_keys(rng, causal=True)
    what = "causal, 7 keys of weight zero before the others"
    return _same(what, run(x).out, run(padded(7, 0)).out, _allowed(x))


def no_key(run: Run, rng: np.random.Generator) -> float:
    """A row that sees no key is zero, and its LSE is -inf."""
    x = normal(rng, 1, 2, 70, 33, 64, causal=True)
    answer, blind = run(x), 70 - 33
    rows = answer.out[:, :, :blind]
    if not (rows == 0).all():
        b, h, row, col = (int(i) for i in np.unravel_index((rows != 0).argmax(), rows.shape))
        raise Failed(
            "property",
            f"rows 0 to {blind - 1} of {x.label} see no key and must be 0, but "
            f"[b={b}, h={h}, row={row}, col={col}] is "
            f"{rows[b, h, row, col]} (0 / 0, or exp(-inf - -inf)?)",
        )
    lse = getattr(answer, LSE.name, None)
    if lse is not None and not np.isneginf(lse[:, :, :blind]).all():
        raise Failed("property", f"the LSE of a row that sees no key is {lse[0, 0, 0]}, it must be -inf")
    return math.inf


def one_key(run: Run, rng: np.random.Generator) -> float:
    """With a single key the weight is exactly one, so the output is that row of V, bit for bit."""
    x = normal(rng, 1, 2, 33, 1, 64)
    answer = run(x)
    if not (answer.out == x.v).all():
        b, h, row, col = (int(i) for i in np.argwhere(answer.out != x.v)[0])
        raise Failed(
            "property",
            f"one key: [b={b}, h={h}, row={row}, col={col}] is {answer.out[b, h, row, col]}, must be exactly "
            f"v = {x.v[b, h, 0, col]}",
        )
    return math.inf


def scale_moves_into_q(run: Run, rng: np.random.Generator) -> float:
    """Doubling q and halving the scale are both exact, so the answer stays."""
    x = normal(rng, 1, 1, 33, 45, 64, scale=0.25)
    doubled = x.but(q=FLOAT16.round(2 * x.q), scale=0.125)
    return _same("q doubled and the scale halved", run(x).out, run(doubled).out, _allowed(x))


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps run is the hardware's choice: it must not show in the answer."""
    x = normal(rng, 1, 1, 36, 45, 64, causal=True)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for order in ("reverse", f"random:{rng.integers(1000)}"):
        answer = run(x, order=order).out
        margin = min(margin, _same(f"warps scheduled {order}", plain, answer, allowed))
    return margin


def any_gpu(run: Run, rng: np.random.Generator) -> float:
    """A launcher may divide the work by the size of the GPU, which must not show in the answer."""
    x = normal(rng, 2, 2, 70, 150, 64, causal=True)
    plain, allowed = run(x).out, _allowed(x)
    margin = math.inf
    for sm_count in (1, 3):
        answer = run(x, sm_count=sm_count).out
        margin = min(margin, _same(f"on a GPU of {sm_count} multiprocessors", plain, answer, allowed))
    return margin


RELATIONS = (
    Relation("a row that sees no key is zero", no_key, causal=True),
    Relation("one key returns its value exactly", one_key),
    Relation("every row lies in the hull of V", in_hull),
    Relation("the greatest halves stay finite and infinities infinite", edges_of_the_range),
    Relation("keys permuted with their values change nothing", keys_permuted),
    Relation("a constant added to all scores changes nothing", constant_added),
    Relation("the answer does not depend on where tiles start", tile_start),
    Relation("causal: keys put before do not move the mask", tile_start_causal, causal=True),
    Relation("a factor moves between q and scale", scale_moves_into_q),
    Relation("every schedule of warps gives the same answer", any_schedule, causal=True, simulator_only=True),
    Relation(
        "every size of GPU gives the same answer",
        any_gpu,
        causal=True,
        simulator_only=True,
        divided_only=True,
    ),
)
