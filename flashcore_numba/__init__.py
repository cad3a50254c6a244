"""FlashCore: fused attention kernels, from a scalar loop to the tensor core, one idea a stage."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["LADDER", "ArgumentError", "Problem", "UnsupportedError", "__version__", "attention"]

# Loaded on first use: Numba takes a second to import, and `flashcore --help` needs none of it.
_HOMES = {
    "ArgumentError": "problem",
    "LADDER": "stages",
    "Problem": "problem",
    "UnsupportedError": "problem",
    "attention": "attention",
}

try:
    __version__ = version("flashcore")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value
