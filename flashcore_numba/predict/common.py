"""The traffic of what several Numba stages share: tiles in shared memory, and scores stored in between."""

from typing import Any

import numpy as np

from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    ceil_div,
    head_starts,
    loads,
    requests_for,
    row_tiles,
    sectors_apart,
    shared_stores,
)


def load_tile(exist: Any, rows: int, head_dim: int) -> Traffic:
    """`stages.common.load_tile` for tiles of `rows` rows, of which the first `exist` are in the array.

    `exist` is a number, or an array with one for each tile.

    A lane reads 8 float16 and writes 8 float32 in two stores. A store of 16 bytes a lane passes in quarters
    of a warp; a quarter writes to two neighbouring rows, and the padding has put those in different banks.
    Rows past the end are written too, as zeros: where one row of such a pair exists and the other does not,
    both branches take their wavefronts.
    """
    exist = np.asarray(exist)
    requests = requests_for(exist, head_dim).sum()
    sectors = exist.sum() * (head_dim * HALF // SECTOR)
    pairs = ceil_div(exist, 2) + ceil_div(rows - exist, 2)
    quarters = pairs.sum() * (2 * head_dim // (8 * 8))  # of 8 lanes with 8 components each
    return loads(requests, sectors) + shared_stores(2 * quarters)


def all_tiles(length: int, rows: int, head_dim: int) -> Traffic:
    """One head of [length, D] once through shared memory, tile after tile."""
    return load_tile(row_tiles(length, rows)[1], rows, head_dim)


def score_columns(problem: Any, rows: int, row_stride: int, key_stride: int) -> tuple[int, int]:
    """Requests and sectors when each warp takes a key after another and its lanes are `rows` query rows.

    The score of row i and key j is element `i * row_stride + j * key_stride` of its head. A warp goes on
    until its last row has seen all its keys; above the diagonal only the last rows of a warp take part.
    """
    first, count = row_tiles(problem.seq_q, rows)
    keys = np.arange(problem.seq_k)
    sees, _ = problem.mask.rows(keys)
    begin = np.maximum(first[:, None], sees)
    lanes = np.maximum(0, (first + count)[:, None] - begin)
    address = FLOAT * (begin * row_stride + keys * key_stride)
    requests = problem.batch * problem.heads * np.count_nonzero(lanes)
    sectors = sum(
        times * sectors_apart(start + address, lanes, FLOAT * row_stride).sum()
        for start, times in head_starts(problem, FLOAT * problem.seq_q * problem.seq_k)
    )
    return int(requests), int(sectors)


def score_rows(problem: Any) -> tuple[int, int]:
    """Requests and sectors when a warp takes a row of scores, [S_q, S_k] float32, 32 keys per request.

    Where S_k is no multiple of 8 the rows start anywhere in a sector, and most requests touch one more.
    """
    rows, keys = np.arange(problem.seq_q)[:, None], np.arange(0, problem.seq_k, LANES)
    _, end = problem.mask.interval(rows)
    lanes = np.clip(end - keys, 0, LANES)
    address = FLOAT * (rows * problem.seq_k + keys)
    requests = problem.batch * problem.heads * np.count_nonzero(lanes)
    sectors = sum(
        times * sectors_apart(start + address, lanes, FLOAT).sum()
        for start, times in head_starts(problem, FLOAT * problem.seq_q * problem.seq_k)
    )
    return int(requests), int(sectors)
