"""Stage 13, split_kv: the K and V of stage 12, shared out; what is new is the merging of parts.

Inside a block parts of O meet in shared memory as floats. With splits over blocks they go through global
memory, written once and read once, and a second launch merges them.
"""

from typing import Any

import numpy as np

from flashcore_numba.predict.formula import FLOAT, SECTOR, Traffic, ceil_div
from flashcore_numba.predict.warp_rows import (
    copy_rows,
    query_fragments,
    rows_a_request,
    store_rows,
    tile_fragments,
)
from flashcore_numba.stages.stage13_split_kv import TILES, choose


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """`in_order` changes only which block starts first; no tile is taken to be done twice, as in stage 12."""
    p, D = problem, problem.head_dim
    tile, splits = choose(p, sm_count)
    splits = {"unsplit": 1, "two_splits": 2}.get(variant, splits)
    row_tiles, row_warps, key_warps, keys, *_ = TILES[D][tile]
    warps, block_rows, step_keys = row_warps * key_warps, 16 * row_tiles * row_warps, key_warps * keys
    of_a_head = Traffic()
    for first_row in range(0, p.seq_q, block_rows):
        rows = min(block_rows, p.seq_q - first_row)
        begin, behind = p.mask.tiles(first_row, first_row + rows - 1, step_keys)
        for split in range(splits):
            first, end = (begin + (behind - begin) * part // splits for part in (split, split + 1))
            q_copy = copy_rows(block_rows, rows, D)
            k_copies = sum(
                (copy_rows(step_keys, p.seq_k - s * step_keys, D) for s in range(first, end)), Traffic()
            )
            # The tiles of keys in the block's steps that some of each warp's rows sees.
            multiplied = 0
            for row in range(first_row, first_row + block_rows, 16 * row_tiles):
                seen_from, seen_to = p.mask.tiles(row, row + 16 * row_tiles - 1, keys)
                multiplied += max(0, min(seen_to, end * key_warps) - max(seen_from, first * key_warps))
            fragments = Traffic(
                shared_load_wavefronts=warps * query_fragments(row_tiles, D)
                + multiplied * tile_fragments(row_tiles, keys, D)
            )
            # After Q; one a step; before the parts replace K and V; before they are merged; and, in a block
            # that goes on, before the next Q replaces them.
            barriers = warps * (1 + end - first + 2 + (variant == "persistent"))
            of_a_head += q_copy + 2 * k_copies + fragments + Traffic(barriers=barriers)
            of_a_head += _merge_in_block(rows, block_rows, key_warps, D)
        if splits == 1:
            of_a_head += store_rows(rows, D)
    whole = p.batch * p.heads * of_a_head
    return whole + _merge_of_splits(p, splits) if splits > 1 else whole


def _merge_in_block(rows: int, block_rows: int, key_warps: int, D: int) -> Traffic:
    """Every key warp leaves its O, m and l in shared memory; the rows that exist are read and merged."""
    parts = key_warps * block_rows
    groups = ceil_div(rows, rows_a_request(D))
    # A store of m or l serves 8 rows; a float2 of O, 8 rows of 8 components, takes two wavefronts.
    stores = parts // 8 * (2 + 2 * D // 8)
    # m is read for the greatest and again for the weight, then l: three words a row, in one wavefront each.
    statistics = 3 * groups
    o_loads = rows * D * FLOAT // 128
    return Traffic(shared_store_wavefronts=stores, shared_load_wavefronts=key_warps * (statistics + o_loads))


def _merge_of_splits(problem: Any, splits: int) -> Traffic:
    """Parts of O and their logarithms of sums to global memory, and the second launch that reads them.

    A lane has 8 floats of a part: two accesses of 16 bytes, each of which touches all its sectors.
    """
    p, D = problem, problem.head_dim
    parts = splits * p.batch * p.heads
    groups = ceil_div(p.seq_q, rows_a_request(D))
    o_requests, o_sectors = 2 * parts * groups, 2 * parts * p.seq_q * D * FLOAT // SECTOR
    # A group of 4 or 2 neighbouring sums may cross from one sector into the next where S_q is odd.
    starts = np.arange(0, p.seq_q, rows_a_request(D))
    ends = np.minimum(starts + rows_a_request(D), p.seq_q) - 1
    row_zero = p.seq_q * np.arange(parts)[:, None]
    floats = SECTOR // FLOAT
    lse_requests = parts * groups
    lse_sectors = int(((row_zero + ends) // floats - (row_zero + starts) // floats + 1).sum())
    lse_reads = 3  # for the greatest, for the weight, and to see whether the part has any key
    return p.batch * p.heads * store_rows(p.seq_q, D) + Traffic(
        global_store_requests=o_requests + lse_requests,
        global_store_sectors=o_sectors + lse_sectors,
        global_load_requests=o_requests + lse_reads * lse_requests,
        global_load_sectors=o_sectors + lse_reads * lse_sectors,
    )
