"""What the kernel of `epilogue/norm` moves: stage 16's tiles and merge, the residual, and moments."""

from typing import Any

from flashcore_numba.branches.epilogue.epilogue_norm import ROWS, WARPGROUPS, choose
from flashcore_numba.predict.formula import Traffic, ceil_div, loads, stores
from flashcore_numba.predict.warpgroup_rows import WARPS, load_tiles, tiles_seen

WAVEFRONTS = 4  # 16 bytes per lane
STATE_STORED, STATE_READ = 4, 2  # m and l, 16 bytes per quad: one lane stores them, all read them
BARRIERS = 4  # of a warp: the block's, the cluster's, and two with the other warp of its rows
CHUNK = 8  # columns that a quad reads at once: 16 bytes


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    """What is counted asks for no sum. Messages between blocks are stores past the warp's wavefronts."""
    p, split = problem, choose(problem, variant)
    found, parts = Traffic(), split.cluster * WARPGROUPS
    for first_row in range(0, p.seq_q, ROWS):
        tiles = tiles_seen(p.mask, first_row, first_row + ROWS, split.keys)
        refills = sum(
            max(0, ceil_div(tiles - part, parts) - split.stages) for part in range(min(parts, tiles))
        )
        found += load_tiles(split.cluster, ROWS, p.head_dim) + load_tiles(2 * tiles, split.keys, p.head_dim)
        found += Traffic(barriers=WARPS * (BARRIERS * parts + refills))
        found += parts * WARPS * _messages(p, split.cluster) + _rows(p, min(ROWS, p.seq_q - first_row))
    return p.batch * p.heads * found


def _messages(p: Any, cluster: int) -> Traffic:
    """What a warp stores for the other of its block, and reads of all that it is told."""
    left = p.head_dim // 2 // WARPGROUPS  # floats of O per lane
    sums = WAVEFRONTS * left // 4
    read = STATE_READ + sums
    if cluster > 1:
        read += STATE_READ + sums // 2
    shares = p.heads * cluster * WARPGROUPS
    read += WAVEFRONTS * ceil_div(shares, 4)
    # Two shares that are left over are read by half of the lanes, in as many wavefronts as four.
    conflicts = WAVEFRONTS // 2 if shares % 4 else 0
    return Traffic(
        shared_store_wavefronts=STATE_STORED + sums, shared_load_wavefronts=read, bank_conflicts=conflicts
    )


def _rows(p: Any, rows: int) -> Traffic:
    """Of a head: the residual, the weights for each 16 rows, and the output, 16 columns at a time."""
    chunks, eights = p.head_dim // CHUNK, ceil_div(rows, 8)
    found = chunks // 2 * stores(eights, rows)
    if p.residual is not None:
        found += chunks * loads(eights, rows)
    return found + (1 if p.bias is None else 2) * chunks * loads(WARPS, WARPS)
