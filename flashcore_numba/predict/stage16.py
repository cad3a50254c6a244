"""Stage 16, cluster_split: a cluster loads K and V once per row tile; then the parts merge.

Within a block what a part gives away is ordinary shared memory. What goes to another block is written past
the warp's wavefronts, as asynchronous stores, and read as the rest is.
"""

from typing import Any

from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.epilogue import gates, norm_weights
from flashcore_numba.predict.formula import Traffic, ceil_div, masks
from flashcore_numba.predict.warp_rows import find_sequences, read_sinks
from flashcore_numba.predict.warpgroup_rows import ROWS, load_tiles, tiles_seen
from flashcore_numba.stages.tuning.stage16_tiles import split_for

WARPS = 4  # of a warpgroup
WAVEFRONTS = 4  # 16 bytes per lane
STATE_STORED, STATE_READ = 4, 2  # m and l, 16 bytes per quad: one lane stores them, all read them


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    p, D = problem, problem.head_dim
    split = split_for(p, variant, sm_count)
    parts = split.cluster * split.warpgroups
    of_a_head = parts * WARPS * find_sequences(p, ROWS)
    for mask, times in masks(p).items():
        for first_row in range(0, mask.seq_q, ROWS):
            of_a_head += times * (_row_tile(mask, first_row, split, D) + _norm(p, split, parts))
            of_a_head += times * read_sinks(p, parts * WARPS * 2)  # a lane has two rows
    return p.heads * of_a_head + gates(p)


def _row_tile(mask: Mask, first_row: int, split: Any, D: int) -> Traffic:
    """What a cluster moves, but for lengths and sinks."""
    tiles, parts = tiles_seen(mask, first_row, first_row + ROWS, split.keys), split.cluster * split.warpgroups
    # A part waits for its warps before it fills a slot again.
    refills = sum(max(0, ceil_div(tiles - part, parts) - split.stages) for part in range(min(parts, tiles)))
    beginnings = parts * (2 if split.cluster > 1 else 1)  # a block's barrier, and the cluster's
    moved = load_tiles(split.cluster, ROWS, D) + load_tiles(2 * tiles, split.keys, D)
    moved += Traffic(barriers=WARPS * (beginnings + refills)) + _merge(split, parts, D)
    rows = min(ROWS, mask.seq_q - first_row)  # for each 8, a store of 16 columns of O, a sector each
    return moved + (D // 16) * Traffic(global_store_requests=ceil_div(rows, 8), global_store_sectors=rows)


def _norm(p: Any, split: Any, parts: int) -> Traffic:
    """The warps of a row tile tell each other the squares of their columns, as they told m and l before."""
    if p.features.norm_weight is None:
        return Traffic()
    told, moved = Traffic(shared_load_wavefronts=STATE_READ), Traffic()
    if split.warpgroups > 1:
        moved += told + Traffic(shared_store_wavefronts=STATE_STORED, barriers=1)
    if split.cluster > 1:
        moved += told
    return parts * WARPS * moved + norm_weights(p, WARPS)  # each warp reads its part of the columns


def _merge(split: Any, parts: int, D: int) -> Traffic:
    """What each warp gives away and gets: m and l, and floats of O, 16 bytes per lane at a time."""
    merged, left = Traffic(), D // 2  # floats of O per lane
    if split.warpgroups > 1:
        left //= 2
        sums = WAVEFRONTS * left // 4
        merged += Traffic(
            shared_store_wavefronts=STATE_STORED + sums, shared_load_wavefronts=STATE_READ + sums, barriers=2
        )
    if split.cluster > 1:
        merged += Traffic(shared_load_wavefronts=STATE_READ + WAVEFRONTS * left // 2 // 4)
    return parts * WARPS * merged
