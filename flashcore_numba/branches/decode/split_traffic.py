"""What the kernel of `decode/split` moves: K and V once for all rows of a block, and parts of O as floats."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_parts import KEYS, Tile
from flashcore_numba.branches.decode.decode_split import (
    MAX_PARTS,
    PART_ELEMENTS,
    TILES,
    part_tiles,
    parts_of,
    plan,
)
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    atomics,
    barriers,
    ceil_div,
    loads,
    sectors_apart,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.warp_rows import copy_rows, query_fragments, rows_a_request, tile_fragments

QUAD = 16  # bytes of O that a thread merges


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p = problem
    name, at_least, blocks = plan(p, variant, sm_count)
    tile, found = TILES[p.head_dim][name], Traffic()
    for block in range(tile.blocks_of_rows(p)):
        first_row = block * 16 * tile.row_tiles
        rows = np.arange(first_row, min(first_row + 16 * tile.row_tiles, p.seq_q * p.group))
        counts = []
        for request in p.sequences:
            begin, end = _seen(request.mask, rows, p.group)
            tiles = ceil_div(end, KEYS) - begin // KEYS
            how = tile.warps, PART_ELEMENTS[name] // p.head_dim, at_least
            count, each = parts_of(tiles, *how), part_tiles(tiles, *how)
            counts.append(count)
            for part in range(count):
                first = begin // KEYS + part * each
                last = min(first + each, ceil_div(end, KEYS))
                found += p.kv_heads * _part(p, tile, request.number, begin, end, first, last, rows.size)
            for h_kv in range(p.kv_heads):
                found += _merged(p, tile, request.number, h_kv, rows, count)
        found += p.kv_heads * tile.warps * _search(counts, blocks)
    return found


def _seen(mask: Mask, rows: np.ndarray, group: int) -> tuple[int, int]:
    return mask.interval(int(rows[0]) // group)[0], mask.interval(int(rows[-1]) // group)[1]


def _search(counts: list[int], blocks: int) -> Traffic:
    """The lengths that a warp of each of so many blocks reads, 32 at a time, to find its parts, and at last
    that there is none.
    """
    found, left = Traffic(), sum(counts) + blocks
    for first in range(0, len(counts), LANES):
        here = counts[first : first + LANES]
        found += left * loads(1, sectors_apart(np.array(FLOAT * first), np.array(len(here)), FLOAT))
        left -= sum(here)
    return found


def _part(
    p: Any, tile: Tile, request: int, begin: int, end: int, first: int, last: int, rows: int
) -> Traffic:
    """Tiles `first` to `last` of the keys from `begin` to `end`, up to O of each warp in shared memory."""
    D, row_tiles = p.head_dim, tile.row_tiles
    found = copy_rows(16 * row_tiles, rows, D) + tile.warps * loads(1, 1)  # Q, and the length once more
    for number in range(first, last):
        low, high = max(begin - KEYS * number, 0), min(end - KEYS * number, KEYS)
        sectors = (high - low) * HALF * D // SECTOR
        # A request is what lanes read for the same time: zeros, where a window begins, read nothing.
        copied = loads(ceil_div(high - low, rows_a_request(D)), sectors)
        found += 2 * (copied + shared_stores(KEYS * HALF * D // 128) + Traffic(async_sectors=sectors))
        found += shared_loads(tile_fragments(row_tiles, KEYS, D, D))
    for warp in range(tile.warps):
        found += _places(p, tile, request, begin, end, range(first + warp, last, tile.warps))
    own = shared_stores(2 * row_tiles * (2 + 2 * D // 8))  # m, l and O of a warp
    return found + tile.warps * (own + shared_loads(query_fragments(row_tiles, D)) + barriers(3))


def _places(p: Any, tile: Tile, request: int, begin: int, end: int, tiles: range) -> Traffic:
    """What a warp with these tiles reads of the table."""
    run = KEYS if p.page % KEYS == 0 or p.width == 1 else 1
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


def _merged(p: Any, tile: Tile, request: int, h_kv: int, rows: np.ndarray, count: int) -> Traffic:
    """Parts of a request's rows: merged in each block and, if there are several, left and merged again."""
    D, of_rows = p.head_dim, _requests(rows.size, p.head_dim)
    o = rows.size * D * FLOAT // 128
    found = count * shared_loads(tile.warps * (3 * of_rows + o))
    out = stores(of_rows, rows.size * D * HALF // SECTOR)
    heads = h_kv * p.group + rows % p.group
    out += stores(*_words(D, (request * p.heads + heads) * p.seq_q + rows // p.group))
    if p.sinks is not None:
        out += loads(*_words(D, heads, every=True))
    if count == 1:
        return found + out
    place = ((request * p.kv_heads + h_kv) * MAX_PARTS + np.arange(count)[:, None]) * p.seq_q * p.group + rows
    left = stores(of_rows, rows.size * D * FLOAT // SECTOR)
    for part in place:
        found += left + stores(*_words(D, part))
    arrived = atomics(1, 1) + shared_stores(1) + shared_loads(tile.warps)  # and every warp hears what it gave
    found += count * (arrived + barriers(tile.warps)) + barriers(2 * tile.warps)
    numbers = LANES // (16 * tile.row_tiles)  # parts whose sums a warp reads at once
    for at in range(0, count, numbers):
        found += loads(1, np.unique(FLOAT * place[at : at + numbers] // SECTOR).size) + shared_stores(1)
    sectors = rows.size * D * FLOAT // SECTOR
    fetched = loads(of_rows, sectors) + shared_stores(o) + Traffic(async_sectors=sectors)
    return found + count * (fetched + shared_loads(2 * of_rows + o)) + out


def _requests(rows: int, D: int) -> int:
    """For rows of D floats, 16 bytes per lane."""
    return ceil_div(rows * D * FLOAT, LANES * QUAD)


def _words(D: int, places: np.ndarray, every: bool = False) -> tuple[int, int]:
    """Requests and sectors of a word of each row, which its first lane moves, or every lane."""
    rows, again = max(1, LANES * QUAD // (FLOAT * D)), max(1, FLOAT * D // (LANES * QUAD)) if every else 1
    groups = [places[at : at + rows] for at in range(0, places.size, rows)]
    return again * len(groups), again * sum(np.unique(FLOAT * group // SECTOR).size for group in groups)
