"""FlashCore: fused attention kernels, from a scalar loop to the tensor core, one idea a stage."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flashcore_numba.attention import attention
from flashcore_numba.core.problem import ArgumentError, Problem, UnsupportedError

__all__ = ["LADDER", "ArgumentError", "Problem", "UnsupportedError", "__version__", "attention"]

try:
    __version__ = version("flashcore-numba")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    """`LADDER` on first use: it brings Numba, which takes a second to import."""
    if name == "LADDER":
        from flashcore_numba.stages import LADDER

        return LADDER
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
