"""What the kernels of `backward_recompute` move."""

from typing import Any

import numpy as np

from flashcore_numba.branches.backward.backward_recompute_tiles_q import OWN, PASSING, WARPS
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.common import load_tile
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    atomics,
    barriers,
    head_starts,
    loads,
    requests_for,
    row_tiles,
    sectors_apart,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.stage04 import HALVES, QUAD, out_rows
from flashcore_numba.stages.stage06_fragments import COLS, TM

WIDTH = 4  # bytes of a load2


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    adds = variant == "atomics"
    start = _delta(problem, clears=adds)
    if variant == "tiles":
        return start + _tiles_q(problem) + _tiles_kv(problem)
    if adds:
        return start + _rows_kv(problem) + _added(problem) + _scaled(problem)
    return start + _rows_q(problem) + _rows_kv(problem)


def _row(head_dim: int) -> tuple[int, int]:
    """Requests and sectors of one row of an array in float16, which a warp reads with `load2`."""
    return requests_for(1, head_dim, WIDTH), head_dim * HALF // SECTOR


def _delta(problem: Any, clears: bool) -> Traffic:
    rows = problem.batch * problem.heads * problem.seq_q
    dlse = getattr(problem, "dlse", None) is not None  # a forward problem of that shape will do
    given = 2 * loads(*_row(problem.head_dim)) + dlse * loads(1, 1)
    # Two stores for each load2, of every other float of 256 bytes.
    cleared = 2 * stores(1, 2 * LANES * FLOAT // SECTOR) * requests_for(1, problem.head_dim, WIDTH)
    return rows * (given + stores(1, 1) + clears * cleared)


def _added(problem: Any) -> Traffic:
    """dQ of a row by each key that it sees: of 256 bytes, every other float twice."""
    pairs = problem.batch * problem.heads * problem.mask.pairs
    return 2 * atomics(1, 2 * LANES * FLOAT // SECTOR) * requests_for(1, problem.head_dim, WIDTH) * pairs


def _scaled(problem: Any) -> Traffic:
    rows, D = problem.batch * problem.heads * problem.seq_q, problem.head_dim
    return rows * loads(D // LANES, D * FLOAT // SECTOR) + out_rows(rows, D)


def _rows_q(problem: Any) -> Traffic:
    """Q and dO of a row once, with its LSE and D; K and V for every key that it sees."""
    heads, row = problem.batch * problem.heads, loads(*_row(problem.head_dim))
    own = 2 * row + 2 * loads(1, 1) + 2 * stores(*_row(problem.head_dim))  # the components go out one by one
    return heads * (problem.seq_q * own + problem.mask.pairs * 2 * row)


def _rows_kv(problem: Any) -> Traffic:
    """K and V of a key once; Q, dO, the LSE and D of every row that sees it, for every head of its group."""
    row, pairs = loads(*_row(problem.head_dim)), problem.batch * problem.heads * problem.mask.pairs
    own = 2 * row + 2 * 2 * stores(*_row(problem.head_dim))
    keys = problem.batch * problem.kv_heads * problem.seq_k
    return keys * own + pairs * (2 * row + 2 * loads(1, 1))


def _products(head_dim: int, sums: int) -> Traffic:
    """One turn of a warp: S and dP, and `sums` gradients that P or dS is multiplied for."""
    passing = PASSING[head_dim]
    # Pairs of lanes agree, so half a warp passes at once. See `predict.stage06`, whose fragments these are.
    dots = 2 * head_dim // QUAD * shared_loads(HALVES * (TM + passing // COLS))
    # Two rows of P or dS that a warp writes together are in different banks: a wavefront for 32 words.
    weights = TM * passing // COLS * shared_stores(1)
    added = passing // QUAD * (head_dim // (QUAD * COLS)) * shared_loads(HALVES * (QUAD + TM))
    # The tiles are whole, and have been read.
    return dots + sums * (weights + added) + barriers(2)


def _tiles_q(problem: Any) -> Traffic:
    heads, D = problem.batch * problem.heads, problem.head_dim
    turns, passing = _passing(problem.mask, problem.seq_q, problem.seq_k, D)
    own = 2 * load_tile(row_tiles(problem.seq_q, OWN)[1], OWN, D)
    # Even lanes have one row of a warp, odd lanes the one TM further on: their numbers in a sector or in two.
    even = _rows_of_even_lanes(problem.seq_q)
    lanes = np.where(even + TM < problem.seq_q, 2, 1)
    sectors = sum(
        times * sectors_apart(start + FLOAT * even, lanes, FLOAT * TM).sum()
        for start, times in head_starts(problem, FLOAT * problem.seq_q)
    )
    numbers = 2 * loads(heads * len(even), sectors)  # the LSE and D
    each = own + 2 * passing + WARPS * int(turns.sum()) * _products(D, 1) + _store_rows(problem.seq_q, D)
    return heads * each + numbers


def _tiles_kv(problem: Any) -> Traffic:
    mask, D = problem.mask, problem.head_dim
    exchanged = Mask(mask.seq_k, mask.seq_q, mask.right, mask.left)
    turns, passing = _passing(exchanged, problem.seq_k, problem.seq_q, D)
    own = 2 * load_tile(row_tiles(problem.seq_k, OWN)[1], OWN, D) + 2 * _store_rows(problem.seq_k, D)
    each = 2 * passing + WARPS * int(turns.sum()) * _products(D, 2)
    # 16 columns of the LSE, and of D, a request, as far as there are rows; all warps read them.
    first = np.arange(0, problem.seq_q, COLS)
    lanes = np.minimum(COLS, problem.seq_q - first)
    times_read = WARPS * turns[first // PASSING[D]]
    sectors = sum(
        times * (times_read * sectors_apart(start + FLOAT * first, lanes, FLOAT)).sum()
        for start, times in head_starts(problem, FLOAT * problem.seq_q)
    )
    heads = problem.batch * problem.heads
    numbers = 2 * loads(heads * times_read.sum(), sectors)
    return problem.batch * problem.kv_heads * own + heads * each + numbers


def _passing(mask: Mask, own: int, length: int, head_dim: int) -> tuple[np.ndarray, Traffic]:
    """How many blocks each passing tile of `length` comes to, and what one of two tiles costs them all."""
    size = PASSING[head_dim]
    first, count = row_tiles(own, OWN)
    begin, end = mask.tiles(first, first + count - 1, size)
    exist = row_tiles(length, size)[1]
    tiles = np.arange(len(exist))
    turns = ((begin[:, None] <= tiles) & (tiles < end[:, None])).sum(0)
    return turns, load_tile(np.repeat(exist, turns), size, head_dim)


def _store_rows(length: int, head_dim: int) -> Traffic:
    """One head: 2 bytes per lane, 8 apart, of one row from even lanes, of the one TM further on from odd."""
    requests = len(_rows_of_even_lanes(length)) * head_dim // COLS
    return stores(requests, length * head_dim // COLS * (COLS * QUAD * HALF // SECTOR))


def _rows_of_even_lanes(length: int) -> np.ndarray:
    rows = np.arange(length)
    return rows[rows % (2 * TM) < TM]
