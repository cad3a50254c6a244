"""What the kernels of `backward_wgmma` move: rows of Q and dO by TMA, and a few words."""

from typing import Any

from flashcore_numba.branches.backward.backward_wgmma import ROWS, THREADS, WARPS
from flashcore_numba.branches.backward.keys_traffic import keys_of, sequences, tiles_seen
from flashcore_numba.branches.backward.parts import key_tiles, padded_rows
from flashcore_numba.branches.backward.rows_traffic import finish, prepare
from flashcore_numba.branches.backward.wgmma_tiles import KEYS, Tile, tile_for
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import (
    FLOAT,
    LANES,
    SECTOR,
    Traffic,
    atomics,
    barriers,
    ceil_div,
    loads,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.warp_rows import search
from flashcore_numba.predict.warpgroup_rows import STMATRIX_WAVEFRONTS, load_tiles, store_rows


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    """A block is taken to find that its turn has come: another look would be another load."""
    p, tile = problem, tile_for(problem, variant, sm_count)
    of_a_head = _lengths(p, tile)
    for (mask, keys), times in sequences(p).items():
        for first_key in range(0, keys, KEYS):
            of_a_head += times * _block(p, mask, keys, first_key, tile)
    words = p.batch * p.heads * padded_rows(p) // tile.rows  # that say whose turn it is
    cleared = stores(ceil_div(words, LANES), ceil_div(words * FLOAT, SECTOR))
    return prepare(p) + tile.deterministic * cleared + p.kv_heads * of_a_head + finish(p)


def _block(p: Any, mask: Mask, keys: int, first_key: int, tile: Tile) -> Traffic:
    """What a block moves for its keys, of `keys` of which the mask's count, but for their lengths."""
    D, (begin, end) = p.head_dim, tiles_seen(mask, first_key, KEYS, tile.rows)
    found, steps = _gradients(p, keys - first_key), max(0, end - begin) * p.group
    found += barriers(THREADS // LANES)
    if steps == 0:
        return found
    found += load_tiles(2 * KEYS // ROWS, ROWS, D)  # K and V
    found += barriers(tile.ping_pong * WARPS // 2)  # who begins has the first turn
    step = 2 * load_tiles(1, tile.rows, D) + 2 * loads(1, tile.rows * FLOAT // SECTOR)
    step += WARPS * (_products(tile.rows, D) + barriers(2 * tile.ping_pong))
    if tile.deterministic:
        step += atomics(1, 1)
        before = tiles_seen(mask, first_key + KEYS, KEYS, tile.rows)  # of the block that adds before
        waits = max(0, min(end, before[1]) - max(begin, before[0])) * p.group
        found += loads(waits, waits)
    return found + steps * step


def _products(rows: int, head_dim: int) -> Traffic:
    """Of one warp in one tile: the LSE and D, a wavefront for half a warp; dS; and its part of dQ added."""
    moved = shared_loads(2 * 2 * rows // 8) + shared_stores(STMATRIX_WAVEFRONTS * rows // 16)
    added = rows * head_dim // (WARPS * 4 * LANES)  # four floats per lane at a time
    return moved + added * atomics(1, 4 * LANES * FLOAT // SECTOR)


def _gradients(p: Any, inside: int) -> Traffic:
    """dK and dV of a block, of whose keys the first `inside` exist; and what was kept for that in words."""
    words = 1 + 2 * p.features.ragged
    kept = shared_stores(words) + shared_loads(WARPS * words)
    groups = (2 * store_rows(max(0, inside - first), p.head_dim) for first in range(0, KEYS, ROWS))
    return sum(groups, kept)


def _lengths(p: Any, tile: Tile) -> Traffic:
    """What the blocks of a head read to know their sequences: every warp, and once more who keeps it."""
    keys, ragged = keys_of(p), p.features.ragged
    warps = THREADS // LANES
    numbers = warps * ((6 + tile.deterministic) * ragged + (p.features.seqused_k is not None)) + ragged
    blocks = sum(ceil_div(n, KEYS) for n in keys)
    found = loads(numbers * blocks, numbers * blocks)
    return found + warps * search(keys, KEYS, key_tiles(p, KEYS)) if ragged else found
