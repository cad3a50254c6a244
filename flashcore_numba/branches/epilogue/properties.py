"""What must hold whatever the input: relations between answers."""

import math
from collections.abc import Callable

import numpy as np

from flashcore_numba.branches.epilogue.inputs import drawn
from flashcore_numba.checks.trial import Answer, Failed
from flashcore_numba.core.operation import Property

Run = Callable[..., Answer]
ORDERS = ("reverse", "random:1", "random:2")


def properties(stage: object, backend: str) -> list[Property]:
    """The schedule is ours on the simulator alone."""
    found = ALWAYS | (SIMULATED if backend == "simulator" else {})
    return [Property(name, holds) for name, holds in found.items()]


def _same_bits(what: str, one: np.ndarray, other: np.ndarray) -> float:
    wrong = one.view(np.uint16) != other.view(np.uint16)
    if wrong.any():
        raise Failed("property", f"{what}: {int(wrong.sum())} elements have other bits")
    return math.inf


def rows_apart(run: Run, rng: np.random.Generator) -> float:
    """A row knows nothing of the others: in another place of another tile it has the same bits."""
    x = drawn(rng, 1, 3, 70, 300, 64)
    order = rng.permutation(70)
    assert x.residual is not None
    one, other = run(x), run(x.but(q=x.q[:, :, order], residual=x.residual[:, :, order]))
    return min(
        _same_bits(f"{name} of rows in another order", getattr(one, name)[:, :, order], getattr(other, name))
        for name in ("out", "summed")
    )


def norm_without_size(run: Run, rng: np.random.Generator) -> float:
    """Twice the numbers and four times eps have the same norm, bit for bit."""
    x = drawn(rng, 1, 2, 40, 150, 64, bias=False, norm=str(rng.choice(["layer", "rms"])))
    twice = x.but(v=2 * x.v, residual=2 * x.residual, eps=4 * x.eps)  # type: ignore[operator]
    return _same_bits("twice the numbers and four times eps", run(x).out, run(twice).out)


def any_schedule(run: Run, rng: np.random.Generator) -> float:
    """The order in which warps and blocks run must not show in a bit."""
    x = drawn(rng, 1, 3, 70, 700, 64, causal=True)
    plain = run(x)
    return min(_same_bits(f"scheduled {each}", plain.out, run(x, order=each).out) for each in ORDERS)


ALWAYS: dict[str, Callable[..., float]] = {
    "rows in another order: the same bits": rows_apart,
    "twice the numbers and four times eps: the same bits": norm_without_size,
}
SIMULATED = {"any schedule: the same bits": any_schedule}
