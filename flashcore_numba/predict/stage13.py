"""Stage 13, split_kv: the K and V of stage 12, shared out; what is new is the merging of parts.

Inside a block parts of O meet in shared memory as floats. With splits over blocks they go through global
memory, written once and read once, and a second launch merges them.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from flashcore_numba.predict.formula import FLOAT, LANES, SECTOR, Traffic, ceil_div, loads, masks, stores
from flashcore_numba.predict.warp_rows import (
    copy_rows,
    find_sequences,
    query_fragments,
    read_sinks,
    rows_a_request,
    store_rows,
    tile_fragments,
)
from flashcore_numba.stages.stage13_split_kv import MERGE_THREADS
from flashcore_numba.stages.tuning.stage13_tiles import tile_for


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """`in_order` changes only which block starts first; no tile is taken to be done twice, as in stage 12."""
    p, D = problem, problem.head_dim
    (row_tiles, row_warps, key_warps, keys, *_), splits = tile_for(p, variant, sm_count)
    warps, block_rows, step_keys = row_warps * key_warps, 16 * row_tiles * row_warps, key_warps * keys
    of_a_head = splits * warps * find_sequences(p, block_rows)
    for mask, times in masks(p).items():
        for first_row in range(0, mask.seq_q, block_rows):
            rows = min(block_rows, mask.seq_q - first_row)
            begin, behind = mask.tiles(first_row, first_row + rows - 1, step_keys)
            for split in range(splits):
                first, end = (begin + (behind - begin) * part // splits for part in (split, split + 1))
                q_copy = copy_rows(block_rows, rows, D)
                k_copies = sum(
                    (copy_rows(step_keys, mask.seq_k - s * step_keys, D) for s in range(first, end)),
                    Traffic(),
                )
                # The tiles of keys in the block's steps that some of each warp's rows sees.
                multiplied = 0
                for row in range(first_row, first_row + block_rows, 16 * row_tiles):
                    seen_from, seen_to = mask.tiles(row, row + 16 * row_tiles - 1, keys)
                    multiplied += max(0, min(seen_to, end * key_warps) - max(seen_from, first * key_warps))
                fragments = Traffic(
                    shared_load_wavefronts=warps * query_fragments(row_tiles, D)
                    + multiplied * tile_fragments(row_tiles, keys, D, D)
                )
                # After Q; one per step; before the parts replace K and V; before they are merged; and, in a
                # block that goes on, before the next Q replaces them.
                barriers = warps * (1 + end - first + 2 + (variant == "persistent"))
                block = q_copy + 2 * k_copies + fragments + Traffic(barriers=barriers)
                of_a_head += times * (block + _merge_in_block(rows, block_rows, key_warps, D))
            if splits == 1:
                sinks = read_sinks(p, ceil_div(rows, rows_a_request(D)))
                of_a_head += times * (store_rows(rows, D) + sinks)
    whole = p.heads * of_a_head
    return whole + _merge_of_splits(p, splits) if splits > 1 else whole


def _merge_in_block(rows: int, block_rows: int, key_warps: int, D: int) -> Traffic:
    """Every key warp leaves its O, m and l in shared memory; the rows that exist are read and merged."""
    parts = key_warps * block_rows
    groups = ceil_div(rows, rows_a_request(D))
    # A store of m or l serves 8 rows; a float2 of O, 8 rows of 8 components, takes two wavefronts.
    stores = parts // 8 * (2 + 2 * D // 8)
    # m is read for the greatest and again for the weight, then l: three words per row, in one wavefront each.
    statistics = 3 * groups
    o_loads = rows * D * FLOAT // 128
    return Traffic(shared_store_wavefronts=stores, shared_load_wavefronts=key_warps * (statistics + o_loads))


def _merge_of_splits(problem: Any, splits: int) -> Traffic:
    """Parts of O and their logarithms of sums to global memory, and the second launch that reads them."""
    p, D = problem, problem.head_dim
    sequences = {(each.rows.start, each.rows.stop) for each in p.sequences}
    o, sums = _parts(p, splits, sequences)
    written = stores(*o) + stores(*sums)
    end = max(stop for _, stop in sequences)
    o, sums = _parts(p, splits, [(0, end)])
    sums_read = 3  # for the greatest, for the weight, and to see whether the part has any key
    read = loads(*o) + sums_read * loads(*sums)
    merged = store_rows(end, D) + read_sinks(p, ceil_div(end, rows_a_request(D)))
    if p.features.ragged:  # every warp reads where the last sequence ends
        warps = MERGE_THREADS // LANES * ceil_div(p.seq_q, MERGE_THREADS * 8 // D)
        merged += loads(warps, warps)
    return written + read + p.batch * p.heads * merged


def _parts(problem: Any, splits: int, rows: Iterable[tuple[int, int]]) -> tuple[Any, Any]:
    """(requests, sectors) of all parts of O, and of their sums, by warps that take groups of `rows`.

    A lane has 8 floats of a part: two accesses of 16 bytes, each of which touches all its sectors. The 4 or 2
    neighbouring sums of a group may cross from one sector into the next.
    """
    p, D = problem, problem.head_dim
    groups = [
        (at, min(at + rows_a_request(D), end))
        for first, end in rows
        for at in range(first, end, rows_a_request(D))
    ]
    starts, ends = np.array(groups).T
    row_zero = p.seq_q * np.arange(splits * p.batch * p.heads)[:, None]
    floats = SECTOR // FLOAT
    sectors = ((row_zero + ends - 1) // floats - (row_zero + starts) // floats + 1).sum()
    requests = len(row_zero) * len(groups)
    o_sectors = 2 * len(row_zero) * (ends - starts).sum() * D * FLOAT // SECTOR
    return (2 * requests, o_sectors), (requests, sectors)
