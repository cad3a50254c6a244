"""The extents of a grid and of a block, and what CUDA allows of them."""

from math import prod
from typing import Any

import numpy as np

from cuda_reference.shown import shown

MOST_THREADS = 1024
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MOST_OF_GRID, MOST_OF_BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)


def grid_extents(grid: Any) -> tuple[int, int, int]:
    """x, y and z of a grid that is given as a whole number or as one to three of them. Raises ValueError."""
    return _three("grid", grid, MOST_OF_GRID)


def block_extents(block: Any) -> tuple[int, int, int]:
    """The same of a block, which has at most 1024 threads. Raises ValueError."""
    extents = _three("block", block, MOST_OF_BLOCK)
    if prod(extents) > MOST_THREADS:
        raise ValueError(
            f"block is {shown(block)}, {prod(extents)} threads: a block has at most {MOST_THREADS}"
        )
    return extents


def _three(name: str, given: Any, most: tuple[int, int, int]) -> tuple[int, int, int]:
    extents = tuple(given) if isinstance(given, tuple | list) else (given,)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in extents)
    if not 1 <= len(extents) <= 3 or not whole:
        raise ValueError(f"{name} is 1 to 3 positive extents, whole numbers, not {shown(given)}")
    x, y, z = (*map(int, extents), 1, 1)[:3]
    for axis, extent, limit in zip("xyz", (x, y, z), most, strict=True):
        if extent > limit:
            raise ValueError(f"{name} is {shown(given)}: {axis} is at most {limit}")
    return x, y, z
