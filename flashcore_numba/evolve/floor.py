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


UNITS = {"tensor": "tensor cores", "fp32": "CUDA cores"}


def floor_us(work: Work, device: Device, unit: str) -> float | None:
    """Microseconds of all multiply-adds at the highest clock on a unit of `limits_us`, which is that of the
    stage's language: Numba reaches no tensor core. None where its rate is not known.

    The other limits do not bind every kernel: exponentials can be computed by multiply-adds, and inputs
    that stay in the L2 between two launches are not read from memory.
    """
    return limits_us(work, device)[unit]


def too_fast(us: float, work: Work, device: Device, unit: str) -> str | None:
    """Why a measured time is refused, in a sentence; None for one that is possible, or cannot be judged."""
    floor = floor_us(work, device, unit)
    if floor is None or us >= floor:
        return None
    return (
        f"It took {us:.3g} µs, and the multiply-adds alone take {floor:.3g} µs with all {UNITS[unit]} at "
        "the highest clock: it does not do the work, or the clock is wrong."
    )
