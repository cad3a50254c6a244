"""The ladder: every stage in order, one file each."""

from typing import TYPE_CHECKING, Any

from cuda_reference.extras import explained
from flashcore_numba.stages.stage import Stage

if TYPE_CHECKING:
    from flashcore_numba.stages.ladder import LADDER

__all__ = ["LADDER", "Stage"]


def __getattr__(name: str) -> Any:
    """`LADDER` on first use: it brings Numba, which takes a second to import."""
    if name == "LADDER":
        with explained():
            from flashcore_numba.stages.ladder import LADDER

        return LADDER
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
