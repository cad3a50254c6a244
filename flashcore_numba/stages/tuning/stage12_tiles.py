"""The configurations of stage 12, and which one serves a problem."""

import math
from collections.abc import Iterable

from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.tuning import recorded

Tile = tuple[int, int, int, int, bool]

# By the most columns, largest first: 16-row tiles per warp, warps, keys per K/V tile, blocks per SM, lazy.
TILES: dict[int, dict[str, Tile]] = {
    64: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 128, 1, True), "small": (1, 2, 128, 1, False)},
    128: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 64, 2, True), "small": (1, 2, 64, 2, False)},
    192: {"large": (1, 8, 64, 1, True), "medium": (1, 4, 64, 1, True), "small": (1, 2, 32, 2, False)},
    256: {"large": (1, 8, 64, 1, True), "medium": (1, 4, 64, 1, True), "small": (1, 2, 32, 2, False)},
}
STAGES = 2  # K/V tiles in shared memory; a third was measured and gains nothing


def tiles_for(columns: int) -> dict[str, Tile]:
    """Those of `TILES` for rows of so many columns."""
    return next(tiles for most, tiles in TILES.items() if columns <= most)


def tile_for(
    problem: Problem, variant: str | None, sm_count: int, room: float = math.inf, searched: bool = True
) -> Tile:
    """The tile that a variant names, else that of a search of this problem, else that of the rule, `choose`.

    searched: False for a kernel with more in it than the one that is searched.
    """
    p, tiles = problem, tiles_for(problem.columns)
    if variant not in tiles and searched and (found := recorded.find(12, p, sm_count)):
        row_tiles, warps, keys, *_ = tile = tile_of(found)
        if block_bytes(p.columns, 16 * row_tiles * warps, keys) <= room:
            return tile
    name = variant if variant in tiles else choose(p, sm_count, room)
    row_tiles, warps, _, blocks_an_sm, lazy = tiles[name]
    return row_tiles, warps, fitting_keys(p.columns, name, room), blocks_an_sm, lazy


def tile_of(values: Iterable[int]) -> Tile:
    """From the numbers of a search, in the order of its space."""
    row_tiles, warps, keys, blocks_an_sm, lazy = values
    return row_tiles, warps, keys, blocks_an_sm, bool(lazy)


def choose(problem: Problem, sm_count: int, room: float = math.inf) -> str:
    """The largest tile that fits `room` bytes of shared memory and fills three quarters of the GPU; twice as
    much where a mask makes work uneven.
    """
    p = problem
    for name, (row_tiles, warps, _, blocks_an_sm, _) in tiles_for(p.columns).items():
        if block_bytes(p.columns, 16 * row_tiles * warps, fitting_keys(p.columns, name, room)) > room:
            continue
        blocks = p.batch * p.heads * -(-p.seq_q // (16 * row_tiles * warps))
        if blocks >= 0.75 * blocks_an_sm * sm_count * (2 if p.causal else 1):
            return name
    return "small"


def block_bytes(columns: int, rows: int, keys: int) -> int:
    """Of shared memory: Q and the K/V tiles, whose rows are `columns` rounded up to a multiple of 64."""
    pitch = -(-columns // 64) * 64
    return 2 * pitch * (rows + 2 * STAGES * keys)


def fitting_keys(columns: int, name: str, room: float) -> int:
    """The keys of a tile, halved until a block fits `room` bytes of shared memory; its threads
    copy up to 4 rows per warp at once.
    """
    row_tiles, warps, keys, *_ = tiles_for(columns)[name]
    while keys > max(16, 4 * warps) and block_bytes(columns, 16 * row_tiles * warps, keys) > room:
        keys //= 2
    return keys
