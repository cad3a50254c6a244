"""What stages 15 and 16 read for the norm and the gate that follow attention."""

from typing import Any

from flashcore_numba.core.element import FLOAT32
from flashcore_numba.predict.formula import HALF, SECTOR, Traffic, ceil_div, loads

COLUMNS = SECTOR // HALF  # of the gate that a quad reads of a row
ROWS = 8  # of a request
PAIRS = 8  # columns of whose weights a lane has two


def gates(problem: Any) -> Traffic:
    """The gate, once, of all rows: a request is 8 rows of one sector each."""
    p, moved = problem, Traffic()
    if p.features.gate is None:
        return moved
    pieces = p.heads * (p.value_dim // COLUMNS)
    for each in p.sequences:
        rows = each.rows.stop - each.rows.start
        moved += loads(pieces * ceil_div(rows, ROWS), pieces * rows)
    return moved


def norm_weights(problem: Any, warps: int) -> Traffic:
    """The weights of all columns by so many warps, whose lanes read the same ones: elements in pairs, floats
    one by one.
    """
    weight = problem.features.norm_weight
    if weight is None:
        return Traffic()
    requests = warps * problem.value_dim // PAIRS * (2 if weight.dtype == FLOAT32.dtype else 1)
    return loads(requests, requests)
