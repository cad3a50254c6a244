"""What the kernels of `backward_rows.cu` move, before and after the main one of a backward pass."""

from collections import Counter
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.parts import ROW_PIECE, SUM_ROWS, THREADS
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    ceil_div,
    loads,
    sectors_apart,
    stores,
)
from flashcore_numba.predict.warp_rows import requests_for_rows, rows_a_request, search
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most

QUAD = 16  # bytes


def prepare(problem: Any) -> Traffic:
    """The numbers of every row, of O and dO, and zeros for the sums of dQ."""
    p, D = problem, problem.head_dim
    together = rows_a_request(D)  # rows of a warp
    zeros = stores(SUM_ROWS * D * FLOAT // (LANES * QUAD), SUM_ROWS * D * FLOAT // SECTOR)
    numbers = 2 * SUM_ROWS // together * stores(1, 1)  # lse2 and delta
    found = _lengths(p)
    for (length, start, sees), times in _sequences(p).items():
        blocks = len(_blocks(length))
        found += times * blocks * (zeros + numbers)
        found += times * 2 * loads(requests_for_rows(length, D), length * D * HALF // SECTOR)
        first = np.arange(0, length, together)
        found += times * _floats(start, first, np.minimum(first + together, length))  # the LSE
        if getattr(p, "dlse", None) is not None:  # a forward problem of that shape will do
            begin, end = np.clip(first, *sees), np.clip(first + together, *sees)
            found += times * _floats(start, begin, end)
    return found


def finish(problem: Any) -> Traffic:
    """dQ of its sums, as accumulators have them: a thread has 8 columns of rows g and g + 8."""
    p, chunks = problem, problem.head_dim // 8
    pairs = np.arange(SUM_ROWS // 2)
    upper = (pairs // 8 * 16 + pairs % 8).reshape(-1, LANES // chunks)  # rows, of those of a warp
    found = _lengths(p)
    for (length, *_), times in _sequences(p).items():
        rows = _blocks(length)[:, None, None] + upper
        inside = [(rows + below < length).sum(-1) for below in (0, 8)]
        read = 4 * loads(np.count_nonzero(inside[0]), inside[0].sum() * chunks)  # quads, 64 bytes apart
        written = (stores(np.count_nonzero(n), n.sum() * chunks * QUAD // SECTOR) for n in inside)
        found += times * sum(written, read)
    return found


def _sequences(p: Any) -> Counter:
    """(rows, how far into a sector the LSE of the first one is, the rows that see a key) of every head of
    every sequence, and how many are the same.
    """
    found: Counter = Counter()
    for each in p.sequences:
        length, keys = each.mask.seq_q, np.arange(each.mask.seq_k)
        begin, end = each.mask.rows(keys) if len(keys) else (np.zeros(1), np.zeros(1))
        sees = (0, length) if p.features.sinks is not None else (int(begin.min()), int(end.max()))
        for h in range(p.heads):
            start = ((each.batch * p.heads + h) * p.seq_q + each.rows.start) * FLOAT % SECTOR
            found[length, start, sees] += 1
    return found


def _blocks(length: int) -> np.ndarray:
    """The first row of each block of a head, padding included."""
    return np.arange(0, ceil_div(length, ROW_PIECE) * ROW_PIECE, SUM_ROWS)


def _floats(start: int, begin: np.ndarray, end: np.ndarray) -> Traffic:
    """Numbers of the rows from each of `begin` on and before that of `end`, read together."""
    sectors = sectors_apart(start + FLOAT * begin, end - begin, FLOAT)
    return loads(np.count_nonzero(end > begin), sectors.sum())


def _lengths(p: Any) -> Traffic:
    """Of one of the two kernels: what its blocks read to know their sequences."""
    lengths = [each.mask.seq_q for each in p.sequences]
    numbers = 4 * p.features.ragged + (p.features.seqused_k is not None)
    pieces = sum(ceil_div(length, ROW_PIECE) for length in lengths)
    found = loads(numbers * pieces, numbers * pieces)
    if p.features.ragged:
        found += search(lengths, ROW_PIECE, row_tiles_at_most(p, ROW_PIECE))
    return p.heads * (THREADS // LANES) * (ROW_PIECE // SUM_ROWS) * found
