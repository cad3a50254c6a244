"""Faster than physics: the time that no kernel can go below on a GPU."""

from dataclasses import dataclass

from flashcore_numba.core.operation import Work
from flashcore_numba.predict.limits import Device, limits_us


@dataclass(frozen=True)
class Timed:
    """A measured candidate: its microseconds and those of the lesson's own stage, both medians of one run on
    `device`, and what was computed, a shape BxHxSxD without a mask.
    """

    us: float
    stage_us: float
    shape: str
    device: Device


def floor_us(work: Work, device: Device) -> float | None:
    """Microseconds of all multiply-adds on the tensor cores at the highest clock; None where their rate is
    not known.

    Of the units in `limits_us` it is the only one that binds every kernel: exponentials can be computed by
    multiply-adds, and inputs that stay in the L2 between two launches are not read from memory.
    """
    return limits_us(work, device)["tensor"]


def too_fast(us: float, work: Work, device: Device) -> str | None:
    """Why a measured time is refused, in a sentence; None for one that is possible, or cannot be judged."""
    floor = floor_us(work, device)
    if floor is None or us >= floor:
        return None
    return (
        f"It took {us:.3g} µs, and the multiply-adds alone take {floor:.3g} µs with all tensor cores at "
        "the highest clock: it does not do the work, or the clock is wrong."
    )
