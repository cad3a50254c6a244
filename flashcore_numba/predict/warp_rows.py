"""What stages 12 and 13 move alike, as `warp_rows.cuh` holds what their kernels do alike.

Nothing here meets a bank twice: the chunks of a row in shared memory are permuted for that.
"""

from flashcore_numba.predict.formula import HALF, SECTOR, Traffic, ceil_div

BANKS_WIDTH = 128  # bytes
CHUNKS_A_REQUEST = 32  # a lane moves a chunk of 16 bytes
LDMATRIX_WAVEFRONTS = 4  # 32 rows of 16 bytes, 8 at a time
Q_IN_REGISTERS = 128  # the greatest ROW_TILES * D for which the kernel keeps Q there


def rows_a_request(head_dim: int) -> int:
    """Rows of `head_dim` halves that the 32 lanes of a warp move at once."""
    return CHUNKS_A_REQUEST * 16 // (HALF * head_dim)


def copy_rows(rows: int, inside: int, head_dim: int) -> Traffic:
    """A tile of `rows` rows by cp.async, of which the first `inside` exist; the others become zeros."""
    inside = max(0, min(rows, inside))
    sectors = inside * HALF * head_dim // SECTOR
    return Traffic(
        global_load_requests=ceil_div(inside, rows_a_request(head_dim)),
        global_load_sectors=sectors,
        shared_store_wavefronts=rows * HALF * head_dim // BANKS_WIDTH,
        async_sectors=sectors,
    )


def store_rows(rows: int, head_dim: int) -> Traffic:
    """`rows` rows of the output, 16 bytes a lane; from where is the caller's business."""
    return Traffic(
        global_store_requests=ceil_div(rows, rows_a_request(head_dim)),
        global_store_sectors=rows * HALF * head_dim // SECTOR,
    )


def query_fragments(row_tiles: int, head_dim: int) -> int:
    """Wavefronts of a warp that reads its Q once, before the first tile; 0 if it reads it with every tile."""
    return _all_of_q(row_tiles, head_dim) if row_tiles * head_dim <= Q_IN_REGISTERS else 0


def tile_fragments(row_tiles: int, keys: int, head_dim: int) -> int:
    """Wavefronts of a warp that multiplies its rows with a K and a V tile of `keys` keys.

    Each 16 x 16 of K and of V is one ldmatrix, whatever the number of row tiles: the more rows a warp has,
    the less it reads for each. A Q too large for the registers is read anew for every K tile.
    """
    k_and_v = 2 * LDMATRIX_WAVEFRONTS * (keys // 16) * (head_dim // 16)
    q_again = _all_of_q(row_tiles, head_dim) if row_tiles * head_dim > Q_IN_REGISTERS else 0
    return k_and_v + q_again


def _all_of_q(row_tiles: int, head_dim: int) -> int:
    return LDMATRIX_WAVEFRONTS * row_tiles * (head_dim // 16)
