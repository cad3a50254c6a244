"""What stages 07 to 11 move alike: tiles, WMMA fragments, and rows that 8 lanes share, as in `tile.cuh`.

A pitch is how many elements there are from the beginning of a row in shared memory to that of the next.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from flashcore_numba.predict.formula import (
    BANKS,
    FLOAT,
    HALF,
    SECTOR,
    Traffic,
    ceil_div,
    loads,
    requests_for,
    row_tiles,
    shared_loads,
    shared_stores,
    stores,
)

LINE = BANKS * 4  # bytes: of shared memory in one wavefront, of global memory under one tag
CHUNK = 16  # bytes: the widest access of a lane
Access = Callable[..., Traffic]  # shared_loads or shared_stores
WARP_ROWS = 4  # rows of a warp in the softmax, 8 lanes each


def for_each_block(problem: Any, rows: int, keys: int, of_block: Callable[[int, int], Traffic]) -> Traffic:
    """The sum of `of_block(inside, tiles)` over all blocks: how many of a block's `rows` query rows exist,
    and how many K/V tiles of `keys` keys its rows see.
    """
    first, inside = row_tiles(problem.seq_q, rows)
    begin, end = problem.mask.tiles(first, first + inside - 1, keys)
    tiles = end - begin
    blocks, times = np.unique(np.stack([inside, tiles]), axis=1, return_counts=True)
    of_head = sum(
        (int(n) * of_block(int(i), int(t)) for i, t, n in zip(*blocks, times, strict=True)), Traffic()
    )
    return problem.batch * problem.heads * of_head


def kv_tiles(problem: Any, tiles: int, keys: int, load: Callable[[int], Traffic]) -> Traffic:
    """The first `tiles` tiles of K, and of V: `load(inside)` is a tile of which so many rows exist."""
    missing = max(0, tiles * keys - problem.seq_k)  # in the last tile
    if not missing:
        return 2 * tiles * load(keys)
    return 2 * ((tiles - 1) * load(keys) + load(keys - missing))


# ---- tiles of rows of D halves


def shared_lines(rows: int, head_dim: int) -> int:
    """Wavefronts of 8 neighbouring lanes each that access 128 bytes in a row: no pitch makes them collide."""
    return rows * head_dim * HALF // LINE


def load_tile(rows: int, inside: int, head_dim: int) -> Traffic:
    """A tile through registers, 16 bytes per lane. Rows from `inside` on are not read; zeros are stored."""
    read = loads(requests_for(inside, head_dim), inside * head_dim * HALF // SECTOR)
    return read + shared_stores(shared_lines(rows, head_dim))


def copy_tile(rows: int, inside: int, head_dim: int, pitch: int) -> Traffic:
    """A tile by cp.async. Rows from `inside` on are not read, but filled with zeros, a wavefront per line.

    For the rows that exist the pitch matters, unlike for stores: copies move sectors, not words.
    """
    sectors = inside * head_dim * HALF // SECTOR
    read = loads(requests_for(inside, head_dim), sectors) + Traffic(async_sectors=sectors)
    lines_a_row = head_dim * HALF // LINE
    copied = lines_a_row * sum(_copied_line(row * pitch * HALF % LINE) for row in range(inside))
    zeros = lines_a_row * (rows - inside)
    return read + shared_stores(copied + zeros, copied + zeros - shared_lines(rows, head_dim))


def _copied_line(shift: int) -> int:
    """Wavefronts of a copy of one line of global memory to `shift` bytes into a line of shared memory.

    Each wavefront fills one line there, and puts what it has of a sector into one sector there. So a line
    that begins elsewhere than at a line costs two, and one that begins in the middle of a sector, where each
    sector becomes two halves, up to four.
    """
    parts_of_a_sector = 1 if shift % SECTOR == 0 else 2
    return sum(min(parts_of_a_sector, nbytes // CHUNK) for nbytes in (LINE - shift, shift))


# ---- 16 x 16 fragments


def half_fragment(pitch: int) -> Traffic:
    """A fragment of halves, loaded by one ldmatrix: four times 8 rows of 16 bytes, a row from 8 banks' slots.

    Rows meet in a slot where `pitch` has a factor in common with the 8 slots: D + 8 has none, D has all.
    """
    slots = LINE // CHUNK
    rows_in_a_slot = gcd(pitch * HALF // CHUNK, slots)
    return shared_loads(4 * rows_in_a_slot, 4 * (rows_in_a_slot - 1))


def float_fragment(access: Access, pitch: int) -> Traffic:
    """A fragment of floats, by four loads or four stores of two neighbouring floats per lane.

    Half a warp at a time touches 4 rows of 32 bytes. As with halves, they meet in one of 4 slots where
    `pitch` has a factor in common with those.
    """
    rows, row_bytes, times = 4, 32, 4 * 2
    rows_in_a_slot = gcd(pitch * FLOAT // row_bytes, rows)
    return access(times * rows_in_a_slot, times * (rows_in_a_slot - 1))


# ---- rows that 8 neighbouring lanes share


def row_lines(access: Access, rows: int, columns: int) -> Traffic:
    """Floats, of every 32 each lane has 4: the 8 lanes of a row touch a line."""
    return access(rows * columns * FLOAT // LINE)


def store_pairs(rows: int, distance: int) -> Traffic:
    """8 bytes per lane: half a warp at a time writes 64 bytes of each of two rows.

    These lie `distance` bytes apart, and meet unless one takes the first half of the banks and the other the
    second.
    """
    meet = distance % LINE != LINE // 2
    return shared_stores(rows // 2 * (1 + meet), rows // 2 * meet)


def store_rows(inside: int, head_dim: int) -> Traffic:
    """The rows of O that exist, from shared memory: a lane reads 8 floats as two float4 and writes 16 bytes.

    The 8 lanes of a row read 16 bytes of every 32, so two lanes meet in each bank: twice the wavefronts.
    """
    parts = head_dim // 64  # a lane has 8 of every 64 components
    lines = parts * 2 * inside
    written = stores(parts * ceil_div(inside, WARP_ROWS), inside * head_dim * HALF // SECTOR)
    return shared_loads(2 * lines, lines) + written


# ---- what one warp multiplies


def multiply_qk(head_dim: int, q_pitch: int | None, k_pitch: int, s_pitch: int) -> Traffic:
    """16 x 16 scores: D / 16 fragments of Q and of K, and S stored. Without `q_pitch` Q is in registers."""
    q = half_fragment(q_pitch) if q_pitch else Traffic()
    return head_dim // 16 * (q + half_fragment(k_pitch)) + float_fragment(shared_stores, s_pitch)


def accumulate_pv(keys: int, p_pitch: int, v_pitch: int, o_pitch: int) -> Traffic:
    """16 x 16 of O, loaded, multiplied and stored again: keys / 16 fragments of P and of V in between."""
    o = float_fragment(shared_loads, o_pitch) + float_fragment(shared_stores, o_pitch)
    return o + keys // 16 * (half_fragment(p_pitch) + half_fragment(v_pitch))
