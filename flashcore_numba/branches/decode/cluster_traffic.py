"""What the kernel of `decode/cluster` moves: K and V once for all rows, and no part of O in global memory.

What a block sends to the blocks of its cluster, itself included, is no wavefront; what they read of it is.
"""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_cluster import TILES, choose
from flashcore_numba.branches.decode.decode_parts import KEYS, Tile
from flashcore_numba.branches.decode.decode_traffic import (
    QUAD,
    part,
    refuse_e4m3,
    seen,
    tiles_of_rows,
    words,
)
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
    stores,
)

LSES_A_WAVEFRONT = 8  # each the first word of 16 bytes


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p = problem
    refuse_e4m3(p)
    name, blocks = choose(p, sm_count, variant)
    tile, found = TILES[p.head_dim][name], Traffic()
    for rows in tiles_of_rows(p, tile):
        for request in p.sequences:
            begin, end = seen(request.mask, rows, p.group)
            found += p.kv_heads * _cluster(p, tile, request.number, begin, end, rows.size, blocks)
            for h_kv in range(p.kv_heads):
                found += _stored(p, h_kv, rows, blocks)
    return found


def _cluster(p: Any, tile: Tile, request: int, begin: int, end: int, rows: int, blocks: int) -> Traffic:
    """What all blocks of a cluster read, and how they merge."""
    first, last = begin // KEYS, ceil_div(end, KEYS)
    each = ceil_div(ceil_div(max(0, last - first), blocks), tile.warps) * tile.warps
    found = blocks * (tile.warps * barriers(1) + _merged(p.head_dim, rows, blocks))  # the cluster's barrier
    for begins in range(first, first + blocks * each, each) if each else [last] * blocks:
        found += part(p, tile, request, begin, end, begins, min(begins + each, last), rows)
    return found


def _merged(D: int, rows: int, blocks: int) -> Traffic:
    """What a block reads of every part, of the columns that it merges: each log-sum-exp twice, and O."""
    lanes = _lanes(D, blocks)
    at_once = max(1, LANES // lanes)  # rows
    again = max(1, lanes // LANES)
    found = shared_loads(ceil_div(rows * lanes * QUAD, 128))
    for first in range(0, rows, at_once):
        wavefronts = ceil_div(min(at_once, rows - first), LSES_A_WAVEFRONT)
        found += 2 * again * shared_loads(wavefronts, wavefronts - 1)
    return blocks * found


def _stored(p: Any, h_kv: int, rows: np.ndarray, blocks: int) -> Traffic:
    """The output of these rows, of which each block has every `blocks`-th 8 bytes; and the sinks that join
    before.
    """
    lanes = _lanes(p.head_dim, blocks)
    sectors = rows.size * min(lanes, p.head_dim * HALF // SECTOR)
    found = stores(ceil_div(rows.size * lanes, LANES), sectors)
    if p.sinks is not None:
        found += loads(*words(lanes, h_kv * p.group + rows % p.group, every=True))
    return blocks * found


def _lanes(D: int, blocks: int) -> int:
    """Of each block, that merge 16 bytes of the same row each."""
    return FLOAT * D // QUAD // blocks
