"""The ladder: every stage in order, one file each."""

from .stage import Stage
from .stage01_scalar import STAGE as STAGE_01
from .stage02_coalesced import STAGE as STAGE_02
from .stage03_warp_reduction import STAGE as STAGE_03

__all__ = ["LADDER", "Stage"]

LADDER: tuple[Stage, ...] = (STAGE_01, STAGE_02, STAGE_03)
