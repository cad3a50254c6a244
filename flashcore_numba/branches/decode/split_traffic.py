"""What the kernel of `decode/split` moves: K and V once for all rows of a block, and parts of O as floats."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_parts import KEYS, Tile
from flashcore_numba.branches.decode.decode_split import TILES, plan
from flashcore_numba.branches.decode.decode_traffic import (
    QUAD,
    part,
    refuse_e4m3,
    requests_of_o,
    seen,
    tiles_of_rows,
    words,
)
from flashcore_numba.branches.decode.split_parts import MAX_PARTS, part_tiles, parts_of
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


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p = problem
    refuse_e4m3(p)
    name, at_least, longest, most, blocks = plan(p, variant, sm_count)
    tile, found = TILES[p.head_dim][name], Traffic()
    for rows in tiles_of_rows(p, tile):
        counts = []
        for request in p.sequences:
            begin, end = seen(request.mask, rows, p.group)
            tiles = ceil_div(end, KEYS) - begin // KEYS
            how = tile.warps, longest, at_least
            count, each = parts_of(tiles, *how), part_tiles(tiles, *how)
            counts.append(count)
            for number in range(count):
                first = begin // KEYS + number * each
                last = min(first + each, ceil_div(end, KEYS))
                found += p.kv_heads * part(p, tile, request.number, begin, end, first, last, rows.size)
            found += p.kv_heads * count * barriers(tile.warps)  # before O of the warps is written over
            for h_kv in range(p.kv_heads):
                places = (request.number * p.kv_heads + h_kv) * MAX_PARTS + np.arange(count)
                found += merged(p, tile, h_kv, rows, places)
        found += p.kv_heads * tile.warps * _search(counts, blocks, most)
    return found


def _search(counts: list[int], blocks: int, most: int) -> Traffic:
    """The lengths that a warp of each of so many blocks reads, 32 at a time, to find its parts, and at last
    that there is none, unless there could be `most` parts and no more.
    """
    found, left = Traffic(), sum(counts) + min(blocks, most - sum(counts))
    for first in range(0, len(counts), LANES):
        here = counts[first : first + LANES]
        found += left * loads(1, sectors_apart(np.array(FLOAT * first), np.array(len(here)), FLOAT))
        left -= sum(here)
    return found


def merged(p: Any, tile: Tile, h_kv: int, rows: np.ndarray, places: np.ndarray) -> Traffic:
    """Parts of a request's rows: if there are several, left in these places of global memory, each for all
    rows of a K/V head, and merged again.
    """
    D, count = p.head_dim, places.size
    of_rows, lanes = requests_of_o(rows.size, D), FLOAT * D // QUAD
    o = rows.size * D * FLOAT // 128
    out = stores(of_rows, rows.size * D * HALF // SECTOR)
    if p.sinks is not None:
        out += loads(*words(lanes, h_kv * p.group + rows % p.group, every=True))
    if count == 1:
        return out
    place = places[:, None] * p.seq_q * p.group + rows
    left, found = stores(of_rows, rows.size * D * FLOAT // SECTOR), Traffic()
    for of_part in place:
        found += left + stores(*words(lanes, of_part))
    arrived = atomics(1, 1) + shared_stores(1) + shared_loads(tile.warps)  # and every warp hears what it gave
    found += count * (arrived + barriers(tile.warps)) + barriers(2 * tile.warps)
    numbers = LANES // (16 * tile.row_tiles)  # parts whose sums a warp reads at once
    for at in range(0, count, numbers):
        found += loads(1, np.unique(FLOAT * place[at : at + numbers] // SECTOR).size) + shared_stores(1)
    sectors = rows.size * D * FLOAT // SECTOR
    fetched = loads(of_rows, sectors) + shared_stores(o) + Traffic(async_sectors=sectors)
    return found + count * (fetched + shared_loads(2 * of_rows + o)) + out
