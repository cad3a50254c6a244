"""What the kernels of `fp8/wgmma` move: Q, K and V once in q's type, their bytes once and then per tile."""

from typing import Any

import numpy as np

from flashcore_numba.branches.fp8.fp8_wgmma import CONSUMERS, KEYS, ROWS, longest_first, works
from flashcore_numba.branches.fp8.quantise import COLUMNS, THREADS, TILE
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
from flashcore_numba.predict.warpgroup_rows import WARPS, store_rows

CHUNK = 16  # bytes of one load or store
QUANTISING = THREADS // LANES  # warps of a block


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    """No row's LSE is written: what is counted asks for none."""
    p, d = problem, problem.head_dim
    heads, kv_heads = p.batch * p.heads, p.batch * p.kv_heads
    tiles = ceil_div(p.seq_k, TILE)
    found = heads * _rows(p.seq_q, d) + _words(heads, p.seq_q, LANES // (d // COLUMNS), stores)
    found += kv_heads * (_rows(p.seq_k, d) + tiles * _largest())
    found += kv_heads * _values(p.seq_k, d)
    return found + _attention(p, variant, sm_count)


def _rows(length: int, d: int) -> Traffic:
    """Of a head of Q or K, without its scales: a lane has two chunks of its row, and stores one of bytes."""
    lanes = d // COLUMNS
    requests = ceil_div(length, LANES // lanes)
    return loads(2 * requests, 2 * length * lanes) + stores(requests, length * d // SECTOR)


def _words(heads: int, rows: int, together: int, move: Any) -> Traffic:
    """A float of each row [heads, rows], of so many rows by one request."""
    first = np.arange(0, rows, together)
    at = FLOAT * (np.arange(heads)[:, None] * rows + first)
    sectors = sectors_apart(at % SECTOR, np.minimum(together, rows - first), FLOAT)
    return move(sectors.size, sectors.sum())


def _largest() -> Traffic:
    """The largest number of a block, and the scale or the exponent that it makes."""
    return shared_stores(QUANTISING) + shared_loads(QUANTISING**2) + barriers(QUANTISING) + stores(1, 1)


def _values(length: int, d: int) -> Traffic:
    """Of a head of V: each tile goes through shared memory, by rows and then by pairs of columns."""
    found, wavefronts = Traffic(), TILE * d * HALF // (4 * LANES)
    at_once = LANES * CHUNK // (d * HALF)  # rows of one request
    for first in range(0, length, TILE):
        inside = min(TILE, length - first)
        found += loads(ceil_div(inside, at_once), inside * d * HALF // SECTOR)
        found += shared_stores(wavefronts) + shared_loads(wavefronts) + _largest()
        of_pairs = d // 2 * TILE // CHUNK // LANES  # requests for two columns of 16 keys each
        found += shared_loads(CHUNK * of_pairs) + stores(2 * of_pairs, 2 * of_pairs * LANES * CHUNK // SECTOR)
    return found


def _attention(p: Any, variant: str | None, sm_count: int) -> Traffic:
    """As in stage 15, with a request of TMA per tile."""
    turns, block_rows = variant != "free", ROWS * CONSUMERS
    of_a_head = Traffic()
    row_tiles = ceil_div(p.seq_q, block_rows)
    for first_row in range(ceil_div(p.seq_q, ROWS) * ROWS - row_tiles * block_rows, p.seq_q, block_rows):
        tiles = _tiles(p, first_row + block_rows)
        of_a_head += _bytes(CONSUMERS, ROWS, p.head_dim) + _bytes(2 * tiles, KEYS, p.head_dim)
        of_a_head += Traffic(barriers=turns * 2 * tiles * WARPS * CONSUMERS)
        for group_row in range(max(0, first_row), min(first_row + block_rows, p.seq_q), ROWS):
            own = WARPS * _tiles(p, group_row + ROWS)
            of_a_head += store_rows(p.seq_q - group_row, p.value_dim) + loads(2 * own, 2 * own)
    heads, pieces = p.batch * p.heads, works(p)
    blocks = min(pieces, sm_count)
    words = pieces + blocks  # of every work tile, and of the end of every block
    found = heads * of_a_head + _words(heads, p.seq_q, 8, loads)
    found += shared_stores(words) + shared_loads(words * WARPS * CONSUMERS)
    found += longest_first(p, sm_count) * atomics(pieces, pieces)
    return found + Traffic(barriers=blocks * WARPS * (CONSUMERS + 1 + turns))


def _tiles(p: Any, end_row: int) -> int:
    """Tiles that rows before this one see keys of; one at least, to mask."""
    _, ends = p.mask.interval(np.array([min(end_row, p.seq_q) - 1]))
    return max(1, ceil_div(int(ends[0]), KEYS))


def _bytes(tiles: int, rows: int, d: int) -> Traffic:
    """So many tiles of `rows` rows of bytes, by TMA."""
    return tiles * Traffic(global_load_requests=1, global_load_sectors=rows * d // SECTOR)
