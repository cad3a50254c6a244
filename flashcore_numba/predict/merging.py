"""What stages 12 and 15 move to merge with what was computed before, and for a float32 output.

Both go between global memory and registers: a lane has two neighbouring columns of every 8, a quad a row, so
a request is 8 rows of one sector each. The LSE of 8 rows is one request of one lane of each quad.
"""

from typing import Any

import numpy as np

from flashcore_numba.predict.formula import FLOAT, SECTOR, Traffic, loads, sectors_apart, stores

ROWS = 8  # of a request
COLUMNS = SECTOR // FLOAT


def merging(problem: Any) -> Traffic:
    """Of the whole problem; nothing where neither is on. No row is taken to have seen no key before."""
    p, moved = problem, Traffic()
    for each in p.sequences:
        first = np.arange(each.rows.start, each.rows.stop, ROWS)
        rows = np.minimum(ROWS, each.rows.stop - first)
        pieces = p.value_dim // COLUMNS
        requests, sectors = p.heads * pieces * len(rows), p.heads * pieces * rows.sum()
        if p.features.float32_out:
            moved += stores(requests, sectors)
        if p.features.prior_out is not None:
            heads = (each.batch * p.heads + np.arange(p.heads)[:, None]) * p.seq_q
            lse_sectors = sectors_apart(FLOAT * (heads + first), rows, FLOAT).sum()
            moved += loads(requests, sectors) + loads(p.heads * len(rows), lse_sectors)
    return moved
