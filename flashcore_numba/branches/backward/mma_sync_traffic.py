"""What the kernels of `backward_mma_sync` move: the less for a product, the larger a warp's part of it."""

from typing import Any

from flashcore_numba.branches.backward.keys_traffic import keys_of, sequences, tiles_seen
from flashcore_numba.branches.backward.mma_sync_tiles import SPLIT, Tile, tile_for
from flashcore_numba.branches.backward.parts import key_tiles
from flashcore_numba.branches.backward.rows_traffic import finish, prepare
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
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
from flashcore_numba.predict.warp_rows import LDMATRIX_WAVEFRONTS, copy_rows, rows_a_request, search

PART_KEYS, DQ_ROWS, COLUMNS = 32, 32, 64  # of a warp in the split kernel: of S, of dQ, of dV or dK


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p, tile = problem, tile_for(problem, variant, sm_count)
    of_a_head = _lengths(p, tile)
    for (mask, keys), times in sequences(p).items():
        for first_key in range(0, keys, tile.keys):
            of_a_head += times * _block(p, mask, keys, first_key, tile)
    return prepare(p) + p.kv_heads * of_a_head + finish(p)


def _block(p: Any, mask: Mask, keys: int, first_key: int, tile: Tile) -> Traffic:
    """What a block moves for its keys, of `keys` of which the mask's count, but for their lengths."""
    D, warps = p.head_dim, tile.warps
    copies = 2 * copy_rows(tile.keys, mask.seq_k - first_key, D)  # K and V
    begin, end = tiles_seen(mask, first_key, tile.keys, tile.rows)
    rows = sum((_rows(tile.rows, mask.seq_q - i * tile.rows, D) for i in range(begin, end)), Traffic())
    products = _split_products(tile, D) if tile.kernel == SPLIT else _products(tile, D)
    products += (p.features.alibi_slopes is not None) * loads(1, 1) + barriers(1 if tile.late else 2)
    rows += max(0, end - begin) * warps * products
    around = barriers(warps * (1 + (tile.late and begin < end)))  # before the gradients, and the last dQ
    return copies + p.group * rows + around + _gradients(tile, D, keys - first_key)


def _rows(rows: int, inside: int, D: int) -> Traffic:
    """Q and dO of a tile of rows of which the first `inside` exist, with their LSE and D, by cp.async. Half a
    warp reads the one, half the other, which counts as a request of each array.
    """
    nbytes = rows * FLOAT
    numbers = loads(1, nbytes // SECTOR) + shared_stores(nbytes // 128)
    return 2 * (copy_rows(rows, inside, D) + numbers + Traffic(async_sectors=nbytes // SECTOR))


def _products(tile: Tile, D: int) -> Traffic:
    """Of one warp, in one tile of rows, where it owns keys: P^T and dS^T stay in its registers."""
    row_tiles, query_tiles = tile.keys // (16 * tile.warps), tile.rows // 16
    dq_columns = D * query_tiles // tile.warps
    s_or_dp = (row_tiles + query_tiles) * (D // 16)
    dv_or_dk = query_tiles * (D // 16)
    dq = tile.keys // 16 * (1 + dq_columns // 16)
    weights = shared_stores(2 * row_tiles * tile.rows // 8)  # dS^T: a wavefront for 8 keys and 8 rows
    return _fragments(2 * s_or_dp + 2 * dv_or_dk + dq, tile.rows) + weights + _added(dq_columns)


def _split_products(tile: Tile, D: int) -> Traffic:
    """The same where a warp has a part of each product: P^T and dS^T go through shared memory."""
    part_rows = tile.macros(D)["BLOCK_N"]
    parts = tile.keys * tile.rows // (PART_KEYS * part_rows * tile.warps)
    dq_columns = D * tile.rows // (DQ_ROWS * tile.warps)
    s_or_dp = parts * (PART_KEYS // 16 + part_rows // 16) * (D // 16)
    dv_or_dk = tile.rows // 16 * (_gradient_keys(tile, D) // 16 + COLUMNS // 16)
    dq = tile.keys // 16 * (DQ_ROWS // 16 + dq_columns // 16)
    weights = 2 * shared_stores(parts * PART_KEYS // 8 * part_rows // 8)
    moved = _fragments(2 * s_or_dp + dv_or_dk + dq, parts * part_rows)
    return moved + weights + DQ_ROWS // 16 * _added(dq_columns)


def _fragments(ldmatrix: int, rows: int) -> Traffic:
    """So many fragments, and the LSE and D of so many rows, two of them a lane, in two wavefronts each."""
    return shared_loads(LDMATRIX_WAVEFRONTS * ldmatrix + 2 * 2 * rows // 8)


def _added(columns: int) -> Traffic:
    """So many columns of 16 rows to the sums of dQ, four floats per lane."""
    return columns // 8 * atomics(1, 4 * LANES * FLOAT // SECTOR)


def _gradient_keys(tile: Tile, D: int) -> int:
    """Of dV or dK in the split kernel, the keys of a warp: half of the warps have one of the two."""
    return tile.keys * (D // COLUMNS) // (tile.warps // 2)


def _gradients(tile: Tile, D: int, inside: int) -> Traffic:
    """dK and dV of a block, of whose keys the first `inside` exist, through shared memory."""
    split = tile.kernel == SPLIT
    columns = COLUMNS if split else D
    keys = _gradient_keys(tile, D) if split else tile.keys // tile.warps  # of a warp
    written = shared_stores(tile.keys // 8 * D // 8)
    for first in range(0, tile.keys, keys):
        own = max(0, min(keys, inside - first))
        moved = shared_loads(own * HALF * columns // 128)
        moved += stores(ceil_div(own, rows_a_request(columns)), own * HALF * columns // SECTOR)
        written += D // columns * moved
    return 2 * written


def _lengths(p: Any, tile: Tile) -> Traffic:
    """What the blocks of a head read to know their sequences."""
    keys, ragged = keys_of(p), p.features.ragged
    numbers = 7 * ragged + (p.features.seqused_k is not None)
    blocks = sum(ceil_div(n, tile.keys) for n in keys)
    found = loads(numbers * blocks, numbers * blocks)
    if ragged:
        found += search(keys, tile.keys, key_tiles(p, tile.keys))
    return tile.warps * found
