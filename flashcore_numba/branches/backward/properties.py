"""What must hold of gradients whatever the input: identities that need no reference.

`run(inputs, **how) -> Answer` with dq, dk and dv; each property returns the smallest margin (allowed / error)
it saw. That the rows of dS sum to 0 is behind most of them: D is the mean of dP under P.
"""

import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.backward import bounds, oracle
from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.checks import cases as forward
from flashcore_numba.checks.bounds import compare
from flashcore_numba.checks.trial import Answer, Failed, Trial
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.operation import Property
from flashcore_numba.stages import Stage

Run = Callable[..., Answer]
HALF = FLOAT16.unit_roundoff


def properties(stage: Stage, backend: str) -> list[Property]:
    """The properties that the stage and the back end allow to test."""
    masked = forward.serves(stage, causal=True)
    found = {**ALWAYS, **(CAUSAL if masked else {}), **(SIMULATED if backend == "simulator" else {})}
    ladder = import_module(
        "flashcore_numba.branches.backward.ladder"
    )  # by name: its stages import this module
    promised = {each.key: variant or each.default_variant for each, variant in ladder.DETERMINISTIC.items()}
    if stage.key in promised:
        found[SAME_BITS] = partial(same_bits, variant=promised[stage.key])
    return [Property(name, holds) for name, holds in found.items()]


def _drawn(rng: np.random.Generator, rows: int, keys: int, causal: bool = False) -> BackwardInputs:
    return backward_inputs(forward.normal(rng, 1, 2, rows, keys, 64, causal=causal), rng)


def _close(what: str, value: np.ndarray, right: np.ndarray, allowed: np.ndarray) -> float:
    verdict = compare(value.astype(np.float64), np.asarray(right, np.float64), np.asarray(allowed) + 1e-30)
    if not verdict.passed:
        raise Failed(
            "property",
            f"{what}: at {list(verdict.where)} {value[verdict.where]:.5g} must be "
            f"{right[verdict.where]:.5g}, "
            f"off by {verdict.error:.3g} where {verdict.bound:.3g} is allowed",
        )
    return verdict.margin


def _same(what: str, one: Answer, other: Answer, x: BackwardInputs) -> float:
    """The margin by which two answers to what `x` asks agree."""
    allowed = bounds.reference(x).allowed
    return min(
        _close(
            f"{what}, {each.symbol}",
            getattr(one, each.name),
            getattr(other, each.name),
            getattr(allowed, each.name),
        )
        for each in GRADIENTS
    )


def sums_over_keys(run: Run, rng: np.random.Generator) -> float:
    """Over the keys, dK sums to 0 and dV to the sum of dO, of all heads of the group."""
    x = backward_inputs(forward.normal(rng, 1, 4, 70, 90, 64, kv_heads=2), rng)
    answer = run(x)
    dk, dv = (array.astype(np.float64).sum(axis=2) for array in (answer.dk, answer.dv))
    dk_lost, dv_lost = (
        HALF * np.abs(array.astype(np.float64)).sum(axis=2) for array in (answer.dk, answer.dv)
    )
    for each in oracle.of_heads(x):
        batch, head, _ = each.head.kv_place
        rounded = np.abs(each.dout * x.out[each.head.place].astype(np.float64)).sum(axis=1)
        rounded += np.abs(each.ds).sum(axis=1)
        dk_lost[batch, head] += 2 * HALF * abs(each.head.scale) * (rounded @ np.abs(each.head.q))
        dv_lost[batch, head] += 2 * HALF * np.abs(each.dout).sum(axis=0)
    whole = x.dout.astype(np.float64).reshape(1, 2, -1, 64).sum(axis=2)
    return min(
        _close("the sum of dK over the keys [b, h, col]", dk, np.zeros_like(dk), dk_lost),
        _close("the sum of dV over the keys [b, h, col]", dv, whole, dv_lost),
    )


def scale_is_shared(run: Run, rng: np.random.Generator) -> float:
    """<Q, dQ> = <K, dK>, by K/V head."""
    x = backward_inputs(forward.normal(rng, 1, 4, 70, 90, 64, kv_heads=2, scale=0.2), rng)
    return by_the_scale(run, x, backward_inputs(x.forward.but(scale=0.3), rng).out, bounds.reference)


def by_the_scale(
    run: Run, x: BackwardInputs, other: np.ndarray, reference: Callable[[BackwardInputs], Any]
) -> float:
    """The margin of <Q, dQ> = <K, dK>: both are the derivative by the scale, times the scale.

    other: the output at another scale. How it differs is dO, so that both sides are far from 0. reference:
    has the bounds, `allowed`.
    """
    moved = other.astype(np.float64) - x.out
    x = x.but(dout=FLOAT16.round(moved / moved.std()))
    answer, f, allowed = run(x), x.forward, reference(x).allowed
    sides: list[np.ndarray] = []
    slack = np.zeros(2)
    for array, gradient, off in ((f.q, answer.dq, allowed.dq), (f.k, answer.dk, allowed.dk)):
        by_head = (array.astype(np.float64) * gradient).sum(axis=(0, 2, 3))
        sides.append(by_head.reshape(2, -1).sum(axis=1))
        slack += (np.abs(array.astype(np.float64)) * off).sum(axis=(0, 2, 3)).reshape(2, -1).sum(axis=1)
    return _close("<Q, dQ> of a K/V head against <K, dK>", sides[0], sides[1], slack)


def linear(run: Run, rng: np.random.Generator) -> float:
    """Twice the gradient of the output is twice every gradient."""
    x = _drawn(rng, 40, 90)
    doubled = x.but(dout=FLOAT16.round(2 * x.dout))
    once, twice = run(x), run(doubled)
    of_once = Answer(**{each.name: 2 * getattr(once, each.name).astype(np.float64) for each in GRADIENTS})
    return _same("dO doubled", twice, of_once, doubled)


def equal_values(run: Run, rng: np.random.Generator) -> float:
    """Where all rows of V are equal, no weight matters: dQ and dK are 0."""
    f = forward.normal(rng, 1, 2, 40, 90, 64)
    f = f.but(v=np.broadcast_to(f.v[:, :, :1], f.v.shape).copy())
    x = backward_inputs(f, rng)
    answer, allowed = run(x), bounds.reference(x).allowed
    return min(
        _close(f"equal rows of V, {name}", getattr(answer, name), 0 * each, each)
        for name, each in (("dq", allowed.dq), ("dk", allowed.dk))
    )


def keys_shifted(run: Run, rng: np.random.Generator) -> float:
    """A vector added to all keys adds a number to each row of scores, which changes no gradient.

    Both are multiples of 1/4, so that their sum is exact.
    """
    f = forward.normal(rng, 1, 2, 40, 90, 64)
    f = f.but(k=FLOAT16.round(np.round(4 * f.k) / 4))
    moved = f.but(k=FLOAT16.round(f.k + np.round(4 * rng.standard_normal(64)) / 4))
    x = backward_inputs(f, rng)
    y = backward_inputs(moved, rng).but(out=x.out, dout=x.dout)
    allowed_x, allowed_y = bounds.reference(x).allowed, bounds.reference(y).allowed
    one, other = run(x), run(y)
    return min(
        _close(
            f"a vector added to all keys, {each.symbol}",
            getattr(one, each.name),
            getattr(other, each.name),
            getattr(allowed_x, each.name) + getattr(allowed_y, each.name),
        )
        for each in GRADIENTS
    )


def keys_permuted(run: Run, rng: np.random.Generator) -> float:
    """The order of the keys moves the rows of dK and dV, and nothing else."""
    x = _drawn(rng, 40, 150)
    order, f = rng.permutation(150), x.forward
    shuffled = x.but(forward=f.but(k=f.k[:, :, order], v=f.v[:, :, order]))
    one, other = run(x), run(shuffled)
    moved = Answer(dq=one.dq, dk=one.dk[:, :, order], dv=one.dv[:, :, order])
    return _same("keys permuted together with their values", moved, other, shuffled)


def empty_rows(run: Run, rng: np.random.Generator) -> float:
    """A row that sees no key has dQ = 0, and nothing of it reaches dK or dV."""
    x = _drawn(rng, 90, 33, causal=True)
    dout = x.dout.copy()
    dout[:, :, : 90 - 33] = 60000
    answer, other = run(x), run(x.but(dout=dout))
    blind = answer.dq[:, :, : 90 - 33]
    if blind.any() or np.isnan(blind).any():
        raise Failed("property", f"dQ of rows that see no key must be 0, and is up to {np.abs(blind).max()}")
    return _same("another dO of rows that see no key", answer, other, x)


def unseen_keys(run: Run, rng: np.random.Generator) -> float:
    """Where the gradient of one row alone is not 0, keys that the row does not see have dK = dV = 0."""
    x = _drawn(rng, 140, 170, causal=True)
    row = int(rng.integers(100))
    dout = np.zeros_like(x.dout)
    dout[:, :, row] = x.dout[:, :, row]
    answer = run(x.but(dout=dout))
    first = row + 170 - 140 + 1
    for name in ("dk", "dv"):
        unseen = getattr(answer, name)[:, :, first:]
        if unseen.any() or np.isnan(unseen).any():
            key = first + int(np.argwhere(unseen != 0)[0][2])
            raise Failed("property", f"row {row} does not see key {key}, but its gradient reaches {name}")
    return math.inf


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps run is the hardware's choice: it must not show in the answer."""
    x = _drawn(rng, 70, 150, causal=True)
    plain = run(x)
    orders = ("reverse", f"random:{rng.integers(1000)}")
    return min(_same(f"warps scheduled {each}", run(x, order=each), plain, x) for each in orders)


def same_bits(run: Trial, rng: np.random.Generator, variant: str | None) -> float:
    """The variant that promises it gives the same bits in any order of blocks.

    The keys have a part in common, so that what the blocks of keys add to dQ is large, and the sum small: it
    is another one in another order. On a GPU the order is not ours, and there are many runs instead; the CPU
    executor runs the blocks of kernels in CUDA C one after another, so that only a GPU tells of them.
    """
    if (run.variant or run.stage.default_variant) != variant:
        return math.inf
    f = forward.normal(rng, 1, 1, 40, 400, 64)
    x = backward_inputs(f.but(k=FLOAT16.round(f.k + 8)), rng)
    first, orders = run(x), ("reverse",) if run.backend == "simulator" else ("lockstep",) * 50
    for order in orders:
        other = run(x, order=order)
        for each in GRADIENTS:
            one, two = (getattr(answer, each.name).view(np.uint16) for answer in (first, other))
            if (one != two).any():
                raise Failed("property", f"{(one != two).sum()} elements of {each.symbol} have other bits")
    return math.inf


def any_gpu(run: Run, rng: np.random.Generator) -> float:
    """A launcher may divide the work by the size of the GPU, which must not show in the answer."""
    x = _drawn(rng, 70, 150)
    plain = run(x)
    return min(_same(f"on a GPU of {n} multiprocessors", run(x, sm_count=n), plain, x) for n in (1, 3))


SAME_BITS = "the same bits in every run, where the variant promises them"
ALWAYS = {
    "over the keys, dK sums to 0 and dV to the sum of dO": sums_over_keys,
    "<Q, dQ> is <K, dK>": scale_is_shared,
    "gradients are linear in dO": linear,
    "equal rows of V leave dQ and dK at 0": equal_values,
    "a vector added to all keys changes nothing": keys_shifted,
    "keys permuted with their values permute dK and dV": keys_permuted,
}
CAUSAL = {
    "a row that sees no key has no gradient": empty_rows,
    "no gradient reaches a key that is not seen": unseen_keys,
}
SIMULATED = {
    "every schedule of warps gives the same gradients": any_schedule,
    "every size of GPU gives the same gradients": any_gpu,
}
