"""What must hold whatever the input: relations between answers, most of them bit for bit."""

import math
from collections.abc import Callable

import numpy as np

from flashcore_numba.branches.prepare.inputs import drawn
from flashcore_numba.checks.bounds import compare
from flashcore_numba.checks.trial import Answer, Failed
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.core.operation import Property

Run = Callable[..., Answer]


def properties(stage: object, backend: str) -> list[Property]:
    """The schedule and the size of the GPU are ours on the simulator alone."""
    found = ALWAYS | (SIMULATED if backend == "simulator" else {})
    return [Property(name, holds) for name, holds in found.items()]


def _same(what: str, one: np.ndarray, other: np.ndarray) -> float:
    bits = f"u{one.itemsize}"
    wrong = one.view(bits) != other.view(bits)
    if wrong.any():
        raise Failed("property", f"{what}: {int(wrong.sum())} elements have other bits")
    return math.inf


def slots_moved(run: Run, rng: np.random.Generator) -> float:
    """Other slots for the same tokens move the rows of both pools, and change none."""
    x = drawn(rng, 21, 4, 2, 64, pages=4)
    order = rng.permutation(64)
    one, other = run(x), run(x.but(slot_mapping=order[x.slot_mapping]))
    margins = [_same("out after other slots", one.out, other.out)]
    for name in ("k_pool", "v_pool"):
        before, after = (getattr(answer, name).reshape(64, 2, 64) for answer in (one, other))
        margins.append(_same(f"{name} after other slots", before, after[order]))
    return min(margins)


def tokens_apart(run: Run, rng: np.random.Generator) -> float:
    """A token has the same bits alone as among others."""
    x = drawn(rng, 19, 4, 2, 128)
    whole, at = run(x), int(rng.integers(19))
    some = {name: getattr(x, name)[:, :, at : at + 1] for name in "qkv"}
    some |= {name: getattr(x, name)[at : at + 1] for name in ("slot_mapping", "positions")}
    alone = run(x.but(**some))
    page, slot = divmod(int(x.slot_mapping[at]), x.page)
    pools = (
        _same(name, getattr(whole, name)[page, slot], getattr(alone, name)[page, slot]) for name in POOLS
    )
    return min(_same("out", whole.out[:, :, at : at + 1].copy(), alone.out), *pools)


def norm_without_size(run: Run, rng: np.random.Generator) -> float:
    """Rows times 8 have the same norm, bit for bit, where eps is 0."""
    x = drawn(rng, 15, 4, 2, 64, norm_eps=0.0)
    large = x.but(q=FLOAT16.round(8 * x.q), k=FLOAT16.round(8 * x.k))
    one, other = run(x), run(large)
    return min(
        _same(f"{name} of rows times 8", getattr(one, name), getattr(other, name))
        for name in ("out", "k_pool")
    )


def position_zero(run: Run, rng: np.random.Generator) -> float:
    """At position 0 nothing is rotated."""
    x = drawn(rng, 15, 4, 2, 64)
    x = x.but(positions=np.zeros(15, np.int32))
    one, other = run(x), run(x.but(positions=None, cos=None, sin=None))
    for name in ("out", "k_pool"):
        rows, plain = (np.nan_to_num(getattr(answer, name)) for answer in (one, other))
        if (wrong := rows != plain).any():  # as numbers: a zero may change its sign
            raise Failed("property", f"{name} at position 0: {int(wrong.sum())} elements are other numbers")
    return math.inf


def positions_apart(run: Run, rng: np.random.Generator) -> float:
    """A score depends on how far two tokens are apart: all moved by as many positions, none changes."""
    x = drawn(
        rng, 12, 2, 1, 64, positions=100, rotated=int(rng.choice([32, 64])), interleaved=bool(rng.integers(2))
    )
    first = rng.integers(0, 50, 12).astype(np.int32)
    near, far = x.but(positions=first), x.but(positions=first + np.int32(37))
    found, allowed = [], 0.0
    for answer in (run(near), run(far)):
        keys = answer.k_pool.reshape(-1, 64)[x.slot_mapping].astype(np.float64)
        rows = answer.out[0].astype(np.float64)
        found.append(rows @ keys.T)
        # Each factor is rounded to float16 and made of cosines that are rounded to float32.
        allowed = allowed + 4 * FLOAT16.unit_roundoff * (np.abs(rows) @ np.abs(keys).T)
    verdict = compare(found[1], found[0], np.asarray(allowed))
    if not verdict.passed:
        raise Failed(
            "property", f"a score changes by {verdict.error:.3g} where all positions are moved by 37"
        )
    return verdict.margin


def twice_the_rows(run: Run, rng: np.random.Generator) -> float:
    """Rows times 2 at twice the scales are the same bytes."""
    x = drawn(rng, 21, 4, 2, 64, norm_eps=None, stored=E4M3, k_scale=0.07, v_scale=0.04)
    rows = {name: FLOAT16.round(2 * getattr(x, name).astype(np.float32)) for name in "kv"}
    one, other = run(x), run(x.but(**rows, k_scale=0.14, v_scale=0.08))
    return min(
        _same(f"{name} in e4m3 of rows times 2 at twice the scale", getattr(one, name), getattr(other, name))
        for name in POOLS
    )


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps run is the hardware's choice: it must not show in the answer."""
    x = drawn(rng, 17, 4, 2, 64, padding=3)
    plain, other = run(x), run(x, order=f"random:{rng.integers(1000)}")
    return min(
        _same(f"{name} in another order", getattr(plain, name), getattr(other, name))
        for name in ("out", *POOLS)
    )


def any_gpu(run: Run, rng: np.random.Generator) -> float:
    """A launcher may choose a kernel by the size of the GPU, which must not show in the answer."""
    x = drawn(rng, 40, 4, 2, 64, padding=3)
    plain, other = run(x), run(x, sm_count=1)
    return min(
        _same(f"{name} on one SM", getattr(plain, name), getattr(other, name)) for name in ("out", *POOLS)
    )


POOLS = ("k_pool", "v_pool")
ALWAYS = {
    "other slots move rows and change none": slots_moved,
    "a token alone has the same bits": tokens_apart,
    "the norm does not depend on the size of a row": norm_without_size,
    "position 0 rotates nothing": position_zero,
    "e4m3 of rows times 2 at twice the scales: the same bytes": twice_the_rows,
    "scores depend on the distance of positions": positions_apart,
}
SIMULATED = {
    "every schedule of warps gives the same rows": any_schedule,
    "every size of GPU gives the same rows": any_gpu,
}
