"""Stage 16, cluster_split: K and V once a row tile, whoever of the cluster loads them; then the parts merge.

Within a block a part's message is ordinary shared memory. What goes to another block is written past the
warp's wavefronts, as asynchronous stores, and read as the others are.
"""

from typing import Any

from flashcore_numba.stages.stage16_cluster_split import SPLITS, choose

from .formula import Traffic, ceil_div
from .warpgroup_rows import ROWS, load_tiles, tiles_seen

WARPS = 4  # of a warpgroup
MESSAGE_WAVEFRONTS = 4  # 16 bytes a lane
STORED_COLUMNS = 8  # a quad's pairs of halves: half a sector


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    p, D = problem, problem.head_dim
    split = SPLITS[D][variant if variant in SPLITS[D] else choose(p, sm_count)]
    parts = split.cluster * split.warpgroups
    of_a_head = Traffic()
    for first_row in range(0, p.seq_q, ROWS):
        tiles = tiles_seen(p, first_row + ROWS, split.keys)
        # A part waits for its warps before it fills a slot again.
        refills = sum(
            max(0, ceil_div(tiles - part, parts) - split.stages) for part in range(min(parts, tiles))
        )
        beginnings = parts * (2 if split.cluster > 1 else 1)  # a block's barrier, and the cluster's
        of_a_head += load_tiles(split.cluster, ROWS, D) + load_tiles(2 * tiles, split.keys, D)
        of_a_head += Traffic(barriers=WARPS * (beginnings + refills)) + _merge(split.warpgroups, parts, D)
        # Every 8 columns of O are a store of their own for each 8 rows.
        rows = min(ROWS, p.seq_q - first_row)
        of_a_head += (D // STORED_COLUMNS) * Traffic(
            global_store_requests=ceil_div(rows, 8), global_store_sectors=rows
        )
    return p.batch * p.heads * of_a_head


def _merge(warpgroups: int, parts: int, D: int) -> Traffic:
    """Rounds of messages: first half of O, D / 4 floats a lane, then half of that; each with its m and l."""
    merged = Traffic()
    for step in range((parts - 1).bit_length()):
        wavefronts = parts * WARPS * MESSAGE_WAVEFRONTS * ((D // 16 >> step) + 1)
        in_block = 1 << step < warpgroups
        merged += Traffic(
            shared_load_wavefronts=wavefronts, shared_store_wavefronts=wavefronts if in_block else 0
        )
    return merged
