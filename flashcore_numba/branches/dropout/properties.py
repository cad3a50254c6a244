"""What must hold of dropout whatever the input: the mask itself, read out of kernels, and its statistics.

The softmax of equal scores is 1 / S_k, so a V of unit vectors shows the mask: column c of O is S_k O / factor
for key c. Of 64 columns, 64 keys at a time are seen that way.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.backward.properties import by_the_scale
from flashcore_numba.branches.dropout import bounds, oracle
from flashcore_numba.branches.dropout.dropout import STEPS, Dropout, dropout_mask
from flashcore_numba.branches.dropout.inputs import DropoutInputs, drawn, with_dropout
from flashcore_numba.branches.dropout.philox import uniforms
from flashcore_numba.checks.bounds import compare
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Answer, Failed
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.operation import Property

Run = Callable[..., Answer]
SIGMAS = 5.5  # of some 600 shares in a run; one run in 40000 has one that is that far off
D = 64
AXES = ("batch", "head", "row", "key")


def properties(stage: object, backend: str) -> list[Property]:
    """Those of the forward pass."""
    found = FORWARD | ({"any schedule: the same bits": any_schedule} if backend == "simulator" else {})
    return [Property(name, holds) for name, holds in found.items()]


def backward_properties(stage: object, backend: str) -> list[Property]:
    """Those of the backward pass."""
    return [Property(name, holds) for name, holds in BACKWARD.items()]


def the_mask_itself(run: Run, rng: np.random.Generator) -> float:
    """Read out of O, for every element: of batches, heads, rows and keys of several tiles."""
    shape = (2, 4, 150, 200)
    dropout = at_the_threshold(shape, rng)
    return _same_mask(seen_mask(run, shape, dropout), dropout_mask(shape, **options(dropout)))


def shares(run: Run, rng: np.random.Generator) -> float:
    """As many are kept as p says, in all, by head, row and key; and neighbours do not follow each other."""
    rare, even = drawn(rng, 0.15), drawn(rng, 0.5)
    shape = (2, 2, 128, 128)
    margin = share_margin(seen_mask(run, shape, rare), 1 - rare.steps / STEPS)
    mask = seen_mask(run, shape, even)
    return min(margin, share_margin(mask, 0.5), neighbours_margin(mask))


def other_addresses(run: Run, rng: np.random.Generator) -> float:
    """Another seed and another offset give masks that agree as often as two independent ones do."""
    dropout = drawn(rng, 0.5)
    low, high = dropout.seed & 0xFFFFFFFF, dropout.seed >> 32
    others = (
        Dropout(0.5, low ^ 1 | high << 32, dropout.offset),
        Dropout(0.5, low | (high ^ 1) << 32, dropout.offset),
        Dropout(0.5, dropout.seed, dropout.offset ^ 4),
    )
    shape = (1, 1, 64, 64)
    masks = [seen_mask(run, shape, each) for each in (dropout, *others)]
    return min(_near("masks that agree", masks[0] == other, 0.5) for other in masks[1:])


def nothing_dropped(run: Run, rng: np.random.Generator) -> float:
    """With p = 0 seed and offset change no bit."""
    x = with_dropout(normal(rng, 1, 2, 45, 100, D, causal=True), Dropout())
    one, other = run(x), run(x.but(dropout=drawn(rng, 0.0)))
    for name, bits in (("out", np.uint16), ("lse", np.uint32)):
        if (getattr(one, name).view(bits) != getattr(other, name).view(bits)).any():
            raise Failed("property", f"p = 0 with another seed: {name} has other bits")
    return math.inf


def lse_of_all(run: Run, rng: np.random.Generator) -> float:
    """Dropout changes no bit of the LSE: the softmax's sum is of all elements."""
    x = with_dropout(normal(rng, 1, 2, 45, 100, D, causal=True), Dropout())
    one, other = run(x), run(x.but(dropout=drawn(rng, 0.5)))
    if (one.lse.view(np.uint32) != other.lse.view(np.uint32)).any():
        raise Failed("property", "the LSE is another one with dropout")
    return math.inf


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps and blocks run must not show in a bit."""
    x = with_dropout(normal(rng, 1, 2, 90, 150, D, causal=True), drawn(rng, 0.3))
    plain = run(x)
    for order in ("reverse", f"random:{rng.integers(1000)}"):
        if (run(x, order=order).out.view(np.uint16) != plain.out.view(np.uint16)).any():
            raise Failed("property", f"warps scheduled {order}: out has other bits")
    return math.inf


def the_same_mask_back(run: Run, rng: np.random.Generator) -> float:
    """With equal scores and a dO of unit vectors, dV shows the mask that the forward pass had."""
    shape = (2, 4, 150, 200)
    dropout = at_the_threshold(shape, rng)
    batch, heads, rows, keys = shape
    found = np.empty(shape, bool)
    x = _equal_scores(shape, dropout)
    for first in range(0, rows, D):
        dout = np.zeros((batch, heads, rows, D), FLOAT16.dtype)
        for row in range(first, min(first + D, rows)):
            dout[:, :, row, row - first] = 1
        out, lse = np.zeros_like(dout), np.full(shape[:3], math.log(keys), np.float32)
        dv = run(BackwardInputs(x, out, lse, dout)).dv.astype(np.float64)
        found[:, :, first : first + D] = _read(dv, keys, dropout).swapaxes(2, 3)[:, :, : rows - first]
    return _same_mask(found, dropout_mask(shape, **options(dropout)))


def scale_is_shared(run: Run, rng: np.random.Generator) -> float:
    """<Q, dQ> = <K, dK>, under any mask."""
    f = with_dropout(normal(rng, 1, 4, 70, 90, D, kv_heads=2, scale=0.2), drawn(rng, 0.3))
    x = oracle.backward_inputs(f, rng)
    other = oracle.backward_inputs(with_dropout(f.but(scale=0.3), f.dropout), rng).out
    return by_the_scale(run, x, other, bounds.gradient_reference)


def nothing_dropped_back(run: Run, rng: np.random.Generator) -> float:
    """With p = 0 seed and offset change no bit of dK and dV; dQ is summed in any order."""
    f = with_dropout(normal(rng, 1, 2, 45, 100, D, causal=True), Dropout())
    x = oracle.backward_inputs(f, rng)
    one, other = run(x), run(x.but(forward=f.but(dropout=drawn(rng, 0.0))))
    for name in ("dk", "dv"):
        if (getattr(one, name).view(np.uint16) != getattr(other, name).view(np.uint16)).any():
            raise Failed("property", f"p = 0 with another seed: {name} has other bits")
    return math.inf


def options(dropout: Dropout) -> dict[str, Any]:
    """As calls take them."""
    return {"p": dropout.p, "seed": dropout.seed, "offset": dropout.offset}


def seen_mask(run: Run, shape: tuple[int, ...], dropout: Dropout) -> np.ndarray:
    """The mask that a forward kernel has, read out of its output: bool [B, H, S_q, S_k]."""
    batch, heads, _, keys = shape
    x, found = _equal_scores(shape, dropout), []
    for first in range(0, keys, D):
        v = np.zeros((batch, heads, keys, D), FLOAT16.dtype)
        for key in range(first, min(first + D, keys)):
            v[:, :, key, key - first] = 1
        found.append(_read(run(x.but(v=v)).out.astype(np.float64), keys, dropout)[..., : keys - first])
    return np.concatenate(found, axis=3)


def _equal_scores(shape: tuple[int, ...], dropout: Dropout) -> DropoutInputs:
    batch, heads, rows, keys = shape
    q, k = (np.zeros((batch, heads, n, D), FLOAT16.dtype) for n in (rows, keys))
    return DropoutInputs(q, k, k, dropout=dropout)


def _read(x: np.ndarray, keys: int, dropout: Dropout) -> np.ndarray:
    """Whether x is 0 or the weight of a kept element. Raises Failed where it is something else."""
    share = x * keys / dropout.factor
    if not (np.abs(share - (share > 0.5)) < 0.01).all():
        raise Failed("property", f"weights must be 0 or {dropout.factor / keys:.5g}: some are neither")
    return share > 0.5


def at_the_threshold(shape: tuple[int, ...], rng: np.random.Generator) -> Dropout:
    """A share around 0.4 such that the bits of one element equal the threshold: that element is kept."""
    batch, heads, rows, keys = shape
    any_share = drawn(rng, 0.4)
    # Of the first half of a word: of the other, the lower bits are compared too.
    bits = uniforms(any_share.seed, any_share.offset, batch - 1, heads - 1, range(min(8, rows)), range(keys))
    steps = int(bits.ravel()[np.abs(bits.astype(int) - 0.4 * STEPS).argmin()])
    return Dropout(steps / STEPS, any_share.seed, any_share.offset)


def _same_mask(found: np.ndarray, right: np.ndarray) -> float:
    wrong = found != right
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise Failed("property", f"{int(wrong.sum())} of {wrong.size} elements are wrong, first {at}")
    return math.inf


def share_margin(mask: np.ndarray, kept: float) -> float:
    """The smallest margin by which the share that is kept, in all and along each axis, is as it should be."""
    margins = [_near("elements kept", mask, kept)]
    for axis, name in enumerate(AXES):
        others = tuple(i for i in range(4) if i != axis)
        count = mask.size // mask.shape[axis]
        off = np.abs(mask.mean(axis=others) - kept).max() / math.sqrt(kept * (1 - kept) / count)
        margins.append(_within(f"elements kept of a {name}", off))
    return min(margins)


def neighbours_margin(mask: np.ndarray) -> float:
    """The same for elements of a mask with p = 1/2 that agree with one some steps further along an axis. They
    are independent of each other then, and half of all.
    """
    margins = [math.inf]
    for axis, name in enumerate(AXES):
        for step in (1, 8, 16, 32):
            if mask.shape[axis] > step:
                ahead, after = np.arange(step, mask.shape[axis]), np.arange(mask.shape[axis] - step)
                same = mask.take(ahead, axis) == mask.take(after, axis)
                margins.append(_near(f"elements {step} apart along the {name} that agree", same, 0.5))
    return min(margins)


def _near(what: str, found: np.ndarray, share: float) -> float:
    return _within(what, abs(found.mean() - share) / math.sqrt(share * (1 - share) / found.size))


def _within(what: str, sigmas: float) -> float:
    if sigmas > SIGMAS:
        raise Failed("property", f"the share of {what} is {sigmas:.1f} standard deviations off")
    return SIGMAS / sigmas if sigmas else math.inf


def _close(what: str, value: np.ndarray, right: np.ndarray, allowed: np.ndarray) -> float:
    verdict = compare(value, right, allowed + FLOAT16.least)
    if not verdict.passed:
        raise Failed("property", f"{what}: off by {verdict.error:.3g} where {verdict.bound:.3g} is allowed")
    return verdict.margin


FORWARD: dict[str, Callable[..., float]] = {
    "the mask itself": the_mask_itself,
    "shares, and neighbours": shares,
    "other seeds and offsets": other_addresses,
    "p = 0: no seed changes a bit": nothing_dropped,
    "the LSE is of all elements": lse_of_all,
}
BACKWARD: dict[str, Callable[..., float]] = {
    "dV has the mask of the forward pass": the_same_mask_back,
    "<Q, dQ> is <K, dK>": scale_is_shared,
    "p = 0: no seed changes a bit": nothing_dropped_back,
}
