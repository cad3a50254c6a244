"""What stages 14 to 16 move alike, as `warpgroup_rows.cuh` holds what their kernels do alike.

TMA moves boxes of 64 columns, a request each. A box of a load counts whole, because what is beyond the tensor
arrives as zeros; a box of a store counts what is inside. TMA and the operands that
wgmma reads pass through shared memory without a wavefront of a warp.
"""

from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import HALF, SECTOR, Traffic, ceil_div

ROWS, WARPS = 64, 4  # of a warpgroup
PANEL = 64  # columns
STMATRIX_WAVEFRONTS = 4  # 32 rows of 16 bytes, 8 at a time


def tiles_seen(mask: Mask, first_row: int, end_row: int, keys: int) -> int:
    """Tiles of `keys` keys that some of the rows from `first_row` on and before `end_row` sees keys of."""
    begin, end = mask.tiles(first_row, end_row - 1, keys)
    return end - begin


def load_tiles(tiles: int, rows: int, head_dim: int) -> Traffic:
    """So many tiles of `rows` rows, by TMA."""
    panels = ceil_div(head_dim, PANEL)
    return tiles * Traffic(
        global_load_requests=panels, global_load_sectors=panels * rows * HALF * PANEL // SECTOR
    )


def store_rows(inside: int, head_dim: int) -> Traffic:
    """O of a warpgroup, of whose rows the first `inside` exist: each warp's 16 rows by a TMA of its own."""
    return Traffic(
        shared_store_wavefronts=WARPS * STMATRIX_WAVEFRONTS * head_dim // 16,
        global_store_requests=WARPS * ceil_div(head_dim, PANEL),
        global_store_sectors=min(inside, ROWS) * HALF * head_dim // SECTOR,
    )
