"""What the kernels of `decode/chunks` move."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_chunks_attend import FEWEST_KEYS, LANES, MOST_CHUNKS, WARPS
from flashcore_numba.core.features import Sequence
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    SECTOR,
    Traffic,
    ceil_div,
    loads,
    requests_for,
    sectors_apart,
    stores,
)

WIDTH = 4  # bytes of a load2


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    return sum((_request(problem, each) for each in problem.sequences), Traffic())


def _request(p: Any, each: Sequence) -> Traffic:
    """All rows of one request, of every head."""
    length = each.mask.seq_k
    size = max(FEWEST_KEYS, ceil_div(length, MOST_CHUNKS * LANES) * LANES)
    given = min(MOST_CHUNKS, ceil_div(p.capacity, FEWEST_KEYS))  # chunks that the scratch memory has room for
    # Every warp of the first kernel looks at the length, and the warp of a row in the second does.
    found = p.heads * p.seq_q * loads(*2 * (ceil_div(given, WARPS) * WARPS + 1,))
    q, k, v = _row(p.head_dim), _row(p.head_dim), _row(p.value_dim)
    for token in range(p.seq_q):
        begin, end = each.mask.interval(token)
        chunks = range(begin // size, ceil_div(end, size) if begin < end else 0)
        for chunk in chunks:
            first, last = max(begin, chunk * size), min(end, (chunk + 1) * size)
            tiles = np.arange(first, last, LANES)
            keys = last - first
            found += p.heads * (loads(*q) + keys * (loads(*k) + loads(*v)))
            found += p.heads * loads(len(tiles), _table(p, each.number, tiles, last).sum())
            # The two components of a lane go out one by one, each to every other float of 256 bytes.
            each_store = requests_for(1, p.value_dim, WIDTH)
            found += p.heads * (2 * stores(each_store, each_store * 64 * FLOAT // SECTOR) + stores(1, 1))
        found += _merged(p, each.number, token, chunks, given)
    return found


def _row(dim: int) -> tuple[int, int]:
    """Requests and sectors of one row of q or of a pool, which a warp reads with `load2`."""
    return requests_for(1, dim, WIDTH), dim * HALF // SECTOR


def _table(p: Any, request: int, tiles: np.ndarray, last: int) -> np.ndarray:
    """Sectors that the lookups of each tile touch: neighbouring entries, of its first to its last page."""
    first_page = tiles // p.page
    last_page = (np.minimum(tiles + LANES, last) - 1) // p.page
    start = FLOAT * (request * p.table_row + first_page)
    return sectors_apart(start, last_page - first_page + 1, FLOAT)


def _merged(p: Any, request: int, token: int, chunks: range, given: int) -> Traffic:
    """The row of every head in the second kernel."""
    found = Traffic()
    parts = p.value_dim // LANES
    for head in range(p.heads):
        row = (request * p.heads + head) * p.seq_q + token
        if chunks:
            start = FLOAT * (row * given + chunks.start)
            found += loads(1, sectors_apart(np.array(start), np.array(len(chunks)), FLOAT))
    found += p.heads * len(chunks) * loads(parts, parts * LANES * FLOAT // SECTOR)
    found += p.heads * (stores(parts, parts * LANES * HALF // SECTOR) + stores(1, 1))
    return found if p.sinks is None else found + p.heads * loads(2, 2)
