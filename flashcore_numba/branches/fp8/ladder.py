"""The ladder of attention in 8 bits."""

from flashcore_numba.branches.fp8.fp8_wgmma import STAGE as WGMMA
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (WGMMA,)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "fp8", "attention in 8 bits")
