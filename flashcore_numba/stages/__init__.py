"""The ladder: every stage in order, one file each."""

from .stage import Stage
from .stage01_scalar import STAGE as STAGE_01

__all__ = ["LADDER", "Stage"]

LADDER: tuple[Stage, ...] = (STAGE_01,)
