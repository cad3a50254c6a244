"""What kernels of decoding in CUDA C move alike: a block's part of the keys, up to O of each warp."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_parts import KEYS, Tile
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    loads,
    shared_loads,
    shared_stores,
)
from flashcore_numba.predict.warp_rows import copy_rows, query_fragments, rows_a_request, tile_fragments

QUAD = 16  # bytes of O that a thread merges


def refuse_e4m3(problem: Any) -> None:
    """Raises ArgumentError for pools of e4m3."""
    if problem.e4m3:
        raise ArgumentError("no formula predicts the traffic of pools of e4m3: count it")


def tiles_of_rows(p: Any, tile: Tile) -> Iterator[np.ndarray]:
    """The query rows of each tile of a K/V head."""
    for first in range(0, p.seq_q * p.group, 16 * tile.row_tiles):
        yield np.arange(first, min(first + 16 * tile.row_tiles, p.seq_q * p.group))


def seen(mask: Mask, rows: np.ndarray, group: int) -> tuple[int, int]:
    """The first key that some row sees, and where the last one ends."""
    return mask.interval(int(rows[0]) // group)[0], mask.interval(int(rows[-1]) // group)[1]


def part(p: Any, tile: Tile, request: int, begin: int, end: int, first: int, last: int, rows: int) -> Traffic:
    """Tiles `first` to `last` of the keys from `begin` to `end`, up to O of each warp or warpgroup in shared
    memory, and how the threads merge these.
    """
    D, row_tiles, at_once = p.head_dim, tile.row_tiles, rows_a_request(p.head_dim)
    found = copy_rows(16 * row_tiles, rows, D) + tile.warps * loads(1, 1)  # Q, and the length once more
    per_turn = shared_stores(KEYS * HALF * D // 128)  # K or V of 16 keys, zeros where there are none
    for number in range(first, last):
        low, high = max(begin - KEYS * number, 0), min(end - KEYS * number, KEYS)
        sectors = (high - low) * HALF * D // SECTOR
        # Zeros, where a window begins, read nothing: lanes that skip a row join the others a row later,
        # unless they meet before each row, to pass its page on.
        skipped = 0 if _run(p) == KEYS else low % at_once
        copied = loads(ceil_div(high - low + skipped, at_once), sectors)
        found += 2 * (copied + per_turn + Traffic(async_sectors=sectors))
        if not tile.wgmma:
            found += shared_loads(tile_fragments(row_tiles, KEYS, D, D))
    for warp in range(tile.warps):
        found += _places(p, tile, request, begin, end, range(first + warp, last, tile.warps))
    found += tile.warps * barriers(2)  # Q has come, and O of all
    if tile.wgmma:
        turns = sum(
            ceil_div(max(0, last - first - share), tile.warps) for share in range(0, tile.warps, tile.sharers)
        )
        found += (tile.sharers * turns - max(0, last - first)) * 2 * per_turn  # of warps without keys
        found += tile.sharers * turns * barriers(2) + tile.warps * barriers(1)  # K, V; O in place of the ring
    own_rows = 2 * row_tiles // tile.sharers  # of a lane
    own = shared_stores(own_rows * (2 + 2 * D // 8))  # m, l and O of a warp
    found += tile.warps * (own + shared_loads(0 if tile.wgmma else query_fragments(row_tiles, D)))
    shares = tile.warps // tile.sharers
    return found + shared_loads(shares * (3 * requests_of_o(rows, D) + rows * D * FLOAT // 128))


def _places(p: Any, tile: Tile, request: int, begin: int, end: int, tiles: range) -> Traffic:
    """What a warp with these tiles reads of the table."""
    run = _run(p)
    page = p.capacity if p.width == 1 else p.page
    found, held = Traffic(), LANES * run // KEYS
    for turn in range(0, len(tiles), held):
        keys = np.array(
            [KEYS * each + slot for each in tiles[turn : turn + held] for slot in range(0, KEYS, run)]
        )
        keys = keys[(keys + run > begin) & (keys < end)]
        entries = np.unique(FLOAT * (request * p.table_row + keys // page) // SECTOR)
        found += loads(keys.size > 0, entries.size)
    return found


def _run(p: Any) -> int:
    """Keys in a row of which the table is read once."""
    return KEYS if p.page % KEYS == 0 or p.width == 1 else 1


def requests_of_o(rows: int, D: int) -> int:
    """For rows of D floats, 16 bytes per lane."""
    return ceil_div(rows * D * FLOAT, LANES * QUAD)


def words(lanes: int, places: np.ndarray, every: bool = False) -> tuple[int, int]:
    """Requests and sectors of a word of each row, which the first of its `lanes` moves, or all of them."""
    rows, again = max(1, LANES // lanes), max(1, lanes // LANES) if every else 1
    groups = [places[at : at + rows] for at in range(0, places.size, rows)]
    return again * len(groups), again * sum(np.unique(FLOAT * group // SECTOR).size for group in groups)
