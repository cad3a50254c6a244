"""What must hold whatever the input: relations between answers, most of them bit for bit."""

import math
from collections.abc import Callable

import numpy as np

from flashcore_numba.branches.fp8.cases import along
from flashcore_numba.branches.fp8.quantise import TILE
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Answer, Failed, Inputs
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.operation import Property

Run = Callable[..., Answer]
MOST_OFF = 0.01  # relative: some flips of e4m3 among many
MOST_OF_P = 0.1  # relative: 2^-4 of rounding, and weights that vanish
ORDERS = ("reverse", "random:1", "random:2")


def properties(stage: object, backend: str) -> list[Property]:
    """The schedule and the size of the GPU are ours on the simulator alone."""
    found = ALWAYS | (SIMULATED if backend == "simulator" else {})
    return [Property(name, holds) for name, holds in found.items()]


def _same_bits(what: str, one: Answer, other: Answer) -> float:
    for name, bits in (("out", np.uint16), ("lse", np.uint32)):
        wrong = getattr(one, name).view(bits) != getattr(other, name).view(bits)
        if wrong.any():
            raise Failed("property", f"{what}: {int(wrong.sum())} elements of {name} have other bits")
    return math.inf


def twice_the_rows(run: Run, rng: np.random.Generator) -> float:
    """Scales take up powers of 2: Q and K times 2 and 4 at an eighth of the scale are the same bytes."""
    x = normal(rng, 1, 2, 70, 200, 128, 1, scale=0.125)
    large = x.but(q=2 * x.q, k=4 * x.k, scale=0.125 / 8)
    return _same_bits("Q times 2, K times 4, an eighth of the scale", run(x), run(large))


def larger_values(run: Run, rng: np.random.Generator) -> float:
    """V times 4 gives four times the output: m has other last bits, so some weights round another way."""
    x = normal(rng, 1, 1, 70, 300, 64)
    one, other = (answer.out.astype(np.float64) for answer in (run(x), run(x.but(v=4 * x.v))))
    off = float(np.linalg.norm(other - 4 * one) / np.linalg.norm(other))
    if not off < MOST_OFF:
        raise Failed("property", f"V times 4: the outputs are off by {off:.3g} of four times what they were")
    return MOST_OFF / off if off else math.inf


def one_value(run: Run, rng: np.random.Generator) -> float:
    """Weights add up to 1, also where scores are so large that their steps are powers of 2 of a weight."""
    x = normal(rng, 1, 1, 300, 300, 128)
    size = 10.0 ** rng.uniform(-3, 4, (300, 1))
    value = 7 * 2.0 ** int(rng.integers(-7, 8))
    q, k = FLOAT16.round(size * x.q.astype(np.float64)), FLOAT16.round(1e4 * x.k.astype(np.float64))
    out = run(x.but(q=q, k=k, v=np.full_like(x.v, value))).out.astype(np.float64)
    off = float(np.abs(out / value - 1).max())
    if not off < MOST_OF_P:
        raise Failed("property", f"all of V is {value}: an output is off by {off:.3g} of that")
    return MOST_OF_P / off if off else math.inf


def heads_in_another_order(run: Run, rng: np.random.Generator) -> float:
    """Heads and batches know nothing of each other."""
    x = normal(rng, 2, 4, 40, 150, 64, 2)
    order, batch = np.array([2, 3, 0, 1]), np.array([1, 0])
    moved = x.but(q=x.q[batch][:, order], k=x.k[batch][:, [1, 0]], v=x.v[batch][:, [1, 0]])
    one, other = run(x), run(moved)
    one = Answer(out=one.out[batch][:, order], lse=one.lse[batch][:, order])
    return _same_bits("heads and batches in another order", one, other)


def keys_not_seen(run: Run, rng: np.random.Generator) -> float:
    """Under a causal mask, keys of tiles that a row sees nothing of change no bit of it."""
    x = normal(rng, 1, 1, 2 * TILE, 2 * TILE, 128, causal=True)
    later = (slice(None), slice(None), slice(TILE, None))
    k, v = x.k.copy(), x.v.copy()
    k[later], v[later] = 3 * k[later], 60 * v[later]
    answers = [run(x), run(x.but(k=k, v=v))]
    before = [Answer(out=a.out[:, :, :TILE].copy(), lse=a.lse[:, :, :TILE].copy()) for a in answers]
    return _same_bits("other keys after the tile of the diagonal", *before)


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps and blocks run must not show in a bit."""
    x = along(rng, np.linspace(0.5, 0, 400), 64, FLOAT16).but(causal=True)
    plain = run(x)
    return min(_same_bits(f"scheduled {each}", plain, run(x, order=each)) for each in ORDERS)


def any_gpu(run: Run, rng: np.random.Generator) -> float:
    """Blocks that take several work tiles, in the order in which they draw them, give the same bits."""
    x = _many_works(rng)
    plain = run(x)
    return min(_same_bits(f"on {n} SMs", plain, run(x, sm_count=n, order="random:3")) for n in (1, 3))


def _many_works(rng: np.random.Generator) -> Inputs:
    return normal(rng, 1, 2, 450, 300, 64, 1, causal=True)


ALWAYS: dict[str, Callable[..., float]] = {
    "Q and K times powers of 2: the same bits": twice_the_rows,
    "V times 4: four times the output": larger_values,
    "V of one number: that number": one_value,
    "heads and batches in another order: the same bits": heads_in_another_order,
    "keys of tiles that are not seen change no bit": keys_not_seen,
}
SIMULATED = {
    "any schedule: the same bits": any_schedule,
    "any size of GPU: the same bits": any_gpu,
}
