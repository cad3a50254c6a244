"""Stage 15, ping_pong: 128 or 192 rows share what 64 rows of stage 14 load.

Every work tile, BLOCK_M rows of a head, moves the same whichever block does it; what blocks add are
the numbers of the work tiles, which go through shared memory.
"""

from typing import Any

import numpy as np

from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.epilogue import gates, norm_weights
from flashcore_numba.predict.formula import Traffic, atomics, ceil_div, loads, masks, shared_loads
from flashcore_numba.predict.merging import merging
from flashcore_numba.predict.warp_rows import LDMATRIX_WAVEFRONTS, read_sinks
from flashcore_numba.predict.warpgroup_rows import ROWS, load_tiles, store_rows
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most
from flashcore_numba.stages.parts.tile_maps import bounded_kv
from flashcore_numba.stages.tuning.stage15_tiles import Tile, tile_for

WARPS = 4  # of a warpgroup


def traffic(problem: Any, variant: str, sm_count: int) -> Traffic:
    """No tile is taken to be done twice because a maximum rises, as in stage 12."""
    p = problem
    tile, longest_first = tile_for(p, variant, sm_count)
    block_rows = ROWS * tile.consumers
    works, of_a_head = 0, Traffic()
    for mask, times in masks(p).items():
        row_tiles = ceil_div(mask.seq_q, block_rows)
        works += times * p.heads * row_tiles
        # Where the rows fill no block, those that miss are before the first one; of packed sequences, after
        # the last one.
        start = 0 if p.features.ragged else ceil_div(mask.seq_q, ROWS) * ROWS - row_tiles * block_rows
        for first_row in range(start, mask.seq_q, block_rows):
            of_a_head += times * _work_tile(p, mask, first_row, tile)
    pieces = p.batch * p.heads * row_tiles_at_most(p, block_rows)
    blocks = min(pieces, sm_count * tile.blocks)
    # Of every work tile, and of the end of every block, one thread writes the number and each warp reads it;
    # with two places for Q its head and first row, and of lengths that only the GPU knows 6 words.
    words = works * (6 if bounded_kv(p) else 3 if tile.two_q else 1) + blocks
    whole = p.heads * of_a_head + _lengths(p, works, blocks) + merging(p) + gates(p)
    whole += Traffic(shared_store_wavefronts=words, shared_load_wavefronts=words * WARPS * tile.consumers)
    if (longest_first or bounded_kv(p)) and blocks < pieces:
        # Each work tile draws the number of another; with packed sequences, the last takes the counter back.
        whole += atomics(works + p.features.ragged, works + p.features.ragged)
    # Of a block: one barrier of all warps, and the first turn.
    return whole + Traffic(barriers=blocks * WARPS * (tile.consumers + 1 + _turns(tile)))


def _turns(tile: Tile) -> bool:
    return tile.turns and tile.consumers > 1


def _work_tile(p: Any, mask: Mask, first_row: int, tile: Tile) -> Traffic:
    """What a block moves for the rows from `first_row` on, but for their number and lengths."""
    end_row = first_row + ROWS * tile.consumers
    tiles, turns = _tiles(mask, first_row, end_row, tile.keys), 0
    moved = load_tiles(tile.consumers, ROWS, p.columns) + load_tiles(2 * tiles, tile.keys, p.columns)
    for group_row in range(max(0, first_row), min(end_row, mask.seq_q), ROWS):
        moved += (not p.features.float32_out) * store_rows(mask.seq_q - group_row, p.value_dim)
        moved += read_sinks(p, WARPS * 2) + norm_weights(p, WARPS)  # a lane has two rows
        moved += _again(p, mask, group_row, tile)
        moved += shared_loads(WARPS * tile.queries * LDMATRIX_WAVEFRONTS)  # 16 columns of Q each
        turns = max(turns, _tiles(mask, group_row, group_row + ROWS, tile.keys))
    if p.features.alibi_slopes is not None:
        moved += loads(WARPS * tile.consumers, WARPS * tile.consumers)
    # A turn is waited for and handed on once per tile, by idle warpgroups too. Under a window these are the
    # tiles of the warpgroup that has most.
    turns = turns if p.windowed else tiles
    return moved + Traffic(barriers=_turns(tile) * 2 * turns * WARPS * tile.consumers)


def _tiles(mask: Mask, first_row: int, end_row: int, keys: int) -> int:
    """Of keys, that these rows see; one at least, to mask."""
    begin, end = mask.tiles(max(0, first_row), min(end_row, mask.seq_q) - 1, keys)
    begin = min(begin, max(0, mask.seq_k - 1) // keys)
    return max(begin + 1, end) - begin


def _again(p: Any, mask: Mask, group_row: int, tile: Tile) -> Traffic:
    """Where the first of 64 rows sees no key before the first tile that all of them see whole, it has no
    maximum to be lazy with: its warp multiplies that tile again, and reads Q and K for mma.sync.
    """
    begins, ends = mask.interval(np.array([max(0, group_row), min(group_row + ROWS, mask.seq_q) - 1]))
    whole, rest = divmod(int(ends[0]), tile.keys)
    later = whole <= (int(ends[1]) - 1) // tile.keys  # there are tiles that only other rows see
    if not (tile.lazy and p.scale > 0 and whole and not rest and later):
        return Traffic()
    if int(begins[1]) > (whole - 1) * tile.keys:
        return Traffic()
    return shared_loads(ceil_div(p.columns, 16) * (1 + tile.keys // 16) * LDMATRIX_WAVEFRONTS)


def _lengths(p: Any, works: int, blocks: int) -> Traffic:
    """What the loading threads read of lengths: of packed sequences each goes once through all, and reads the
    one that it is at again for each work tile.
    """
    numbers = 4 * p.features.ragged + (p.features.seqused_k is not None)
    read = numbers * (works + (blocks * p.sequence_count if p.features.ragged else 0))
    return loads(read, read)
