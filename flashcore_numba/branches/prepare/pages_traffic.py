"""What `prepare_pages.cu` moves: rows, and for each warp a slot, a position, tables and weights.

With pools of e4m3 the weights are read for each row of a lane.
"""

from typing import Any

import numpy as np

from flashcore_numba.branches.prepare.outputs import tokens_written
from flashcore_numba.branches.prepare.prepare_pages import ROWS, choose, lanes
from flashcore_numba.core.scaled import is_number
from flashcore_numba.predict.formula import FLOAT, HALF, SECTOR, Traffic, ceil_div, loads, stores

CHUNK = 8  # columns


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """Of all warps; a warp of a token without a slot ends when it has read its rows and the slot."""
    p = problem
    rows = ROWS[variant if variant in ROWS else choose(p, sm_count)]
    a_row, side = lanes(p), 32 // lanes(p)
    lane, turned = np.arange(a_row), p.rotated // 16 or a_row
    pairs = lane < turned
    low, high = np.where(pairs, lane, lane + turned), np.where(pairs, lane + turned, lane + a_row)
    row = _sectors(low, CHUNK * HALF) + _sectors(high, CHUNK * HALF)
    row_stored = _sectors(low, CHUNK) + _sectors(high, CHUNK) if p.e4m3 else row

    tile, found = rows * side, Traffic()
    tokens, with_slot = p.tokens, int(tokens_written(p).sum())
    for heads, keyed, weight, written, scale in (
        (p.heads, True, p.q_weight, row, 1.0),
        (p.kv_heads, True, p.k_weight, row_stored, p.k_scale),
        (p.kv_heads, False, None, row_stored, p.v_scale),
    ):
        warps, requests, with_rope = ceil_div(heads, tile), ceil_div(heads, side), keyed and p.rotated > 0
        found += tokens * (warps * loads(1 + with_rope, 1 + with_rope) + loads(2 * requests, heads * row))
        found += with_slot * stores(2 * requests, heads * written)
        if not is_number(scale):
            found += with_slot * _scales(scale, heads, side)
        if with_rope:
            found += 2 * with_slot * warps * _angles(p.interleaved, low[pairs], high[pairs])
        if weight is not None:
            found += with_slot * warps * (rows if p.e4m3 else 1) * loads(4, 4 * a_row)
    return found


def _sectors(chunks: np.ndarray, nbytes: int) -> int:
    """Sectors that chunks of so many bytes touch together, in a row that begins with one."""
    return len(np.unique(chunks * nbytes // SECTOR))


def _scales(scale: Any, heads: int, side: int) -> Traffic:
    """Of the heads, as many at a time as a warp has rows side by side."""
    step, found = scale.strides[0], Traffic()
    for first in range(0, heads, side):
        at = np.arange(first, min(first + side, heads)) * step
        found += loads(1, len(np.unique(at // SECTOR)))
    return found


def _angles(interleaved: bool, low: np.ndarray, high: np.ndarray) -> Traffic:
    """Of one table: two requests of 16 bytes per lane."""
    if interleaved:
        return loads(2, sum(_sectors(chunks, 4 * FLOAT) for chunks in (low, high)))
    return loads(2, 2 * _sectors(low, CHUNK * FLOAT))
