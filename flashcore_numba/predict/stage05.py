"""Stage 05: stage 04 without the scores in global memory, and with half of its barriers."""

from collections import Counter
from typing import Any

import numpy as np

from flashcore_numba.predict.common import all_tiles, load_tile
from flashcore_numba.predict.formula import Traffic, barriers, ceil_div, loads, shared_stores, stores
from flashcore_numba.predict.stage04 import accumulate_pv, dot, out_rows
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most
from flashcore_numba.stages.stage04_shared_tiles import KEYS, ROWS


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    lengths = Counter((each.mask.seq_q, each.mask.seq_k) for each in problem.sequences)
    moved = sum((times * _sequence(*each, problem.head_dim) for each, times in lengths.items()), Traffic())
    return problem.heads * (moved + _features(problem))


def _sequence(seq_q: int, seq_k: int, D: int) -> Traffic:
    """One head of one sequence."""
    blocks = ceil_div(seq_q, ROWS)
    turns = blocks * ROWS * ceil_div(seq_k, KEYS)  # of a warp, one per tile

    # All tiles, also those that the mask hides.
    kv_tiles = 2 * blocks * all_tiles(seq_k, KEYS, D)
    qk, pv = turns * dot(D), turns * accumulate_pv(D)
    p_stores = turns * shared_stores(1)
    # K and V of a tile come together: one barrier when they are whole, one when they have been read.
    waits = 2 * barriers(turns)
    lse_stores = stores(seq_q, seq_q)  # one lane of a row's warp
    return all_tiles(seq_q, ROWS, D) + kv_tiles + qk + p_stores + pv + waits + out_rows(seq_q, D) + lse_stores


def _features(problem: Any) -> Traffic:
    """What all warps of one head read to know what is on, a number at a time."""
    on = problem.features
    blocks = np.array([ceil_div(each.mask.seq_q, ROWS) for each in problem.sequences])
    each_block = sum(numbers is not None for numbers in (on.sinks, on.alibi_slopes, on.seqused_k))
    if not on.ragged:
        return ROWS * blocks.sum() * each_block * loads(1, 1)
    idle = row_tiles_at_most(problem, ROWS) - blocks.sum()
    # A block adds up row tiles until it has found its own, or to the end; then where its keys begin and end.
    ends = blocks @ np.arange(2, len(blocks) + 2) + idle * (len(blocks) + 1)
    found = ends + (blocks.sum() + idle) * (2 + each_block)
    return ROWS * found * loads(1, 1) + idle * load_tile(0, ROWS, problem.head_dim)
