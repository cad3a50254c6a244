"""What the kernel of `backward_resident` moves: pairs of tiles, past blocks of keys and of query rows."""

from typing import Any

from flashcore_numba.branches.backward.backward_resident import (
    CLUSTER,
    HEAD_DIM,
    ROWS,
    WARPGROUPS,
)
from flashcore_numba.branches.backward.keys_traffic import tiles_seen
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
    LANES,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    loads,
    sectors_apart,
    shared_loads,
    shared_stores,
    stores,
)
from flashcore_numba.predict.warp_rows import LDMATRIX_WAVEFRONTS
from flashcore_numba.predict.warpgroup_rows import STMATRIX_WAVEFRONTS, WARPS, load_tiles

QUAD_WAVEFRONTS = 4  # 16 bytes per lane
STEP = CLUSTER * ROWS
ROW_SECTORS = HEAD_DIM * HALF // SECTOR
AT_ONCE = LANES // (HEAD_DIM // 8)  # rows of a request with 16 bytes per lane


def traffic(problem: Any) -> Traffic:
    p, found = problem, Traffic()
    for b in range(p.batch):
        for h in range(0, p.heads, p.group):
            found += sum((_keys(p, b, h, first) for first in range(0, p.seq_k, STEP)), Traffic())
        for h in range(p.heads):
            found += sum((_rows(p, b, h, first) for first in range(0, p.seq_q, STEP)), Traffic())
    return found


def _keys(p: Any, b: int, h: int, first: int) -> Traffic:
    """The two blocks that own keys from `first` on; `h` is the first of their query heads."""
    begin, end = tiles_seen(p.mask, first, STEP, ROWS)
    tiles = [(h + member, tile * ROWS) for member in range(p.group) for tile in range(begin, end)]
    found = _both(len(tiles), 2, 1)
    columns = 2 * ROWS // 8 * shared_loads(2)  # LSE and D, a wavefront for half a warp
    for head, row in tiles:
        found += CLUSTER * (_lse(p, b, head, row) + WARPS * columns) + _delta(p, b, head, row)
    return found + 2 * _stored(p.seq_k, first)


def _rows(p: Any, b: int, h: int, first: int) -> Traffic:
    """The two blocks that own query rows of a head from `first` on."""
    begin, end = p.mask.tiles(first, min(first + STEP, p.seq_q) - 1, ROWS)
    tiles = max(0, end - begin)
    found = _both(tiles, 1, 2)
    if tiles:
        for own in range(first, first + STEP, ROWS):
            found += _lse(p, b, h, own) + _delta(p, b, h, own)
    found += CLUSTER * tiles * WARPS * shared_loads(4)  # LSE and D of two rows
    return found + _stored(p.seq_q, first)


def _both(pairs: int, results: int, held: int) -> Traffic:
    """Tiles, operands and sums of two blocks of a kind, which have `held` of their own tiles in registers."""
    alone = min(pairs, WARPGROUPS)  # pairs that each block fetches for itself
    operands = alone * held * WARPS * (HEAD_DIM // 16) * LDMATRIX_WAVEFRONTS
    sums = results * WARPS * (HEAD_DIM // 8) * QUAD_WAVEFRONTS
    meetings = WARPGROUPS * (2 + 1 + 1)  # all twice, each warpgroup, and the arrival at the cluster's
    each = shared_loads(operands + sums) + shared_stores(sums) + barriers(WARPS * meetings)
    each += (min(pairs, 1) + alone) * load_tiles(2, ROWS, HEAD_DIM)
    return CLUSTER * each + (pairs - alone) * load_tiles(2, ROWS, HEAD_DIM)


def _lse(p: Any, b: int, h: int, first: int) -> Traffic:
    """LSE of 64 query rows from `first` on, past the end that of the last, to shared memory."""
    found, start = ROWS // LANES * shared_stores(1), _row_start(p, b, h)
    for begin in range(first, first + ROWS, LANES):
        row, inside = min(begin, p.seq_q - 1), max(1, min(LANES, p.seq_q - begin))
        found += loads(1, sectors_apart((start + row * FLOAT) % SECTOR, inside, FLOAT))
    return found


def _delta(p: Any, b: int, h: int, first: int) -> Traffic:
    """D of 64 query rows from `first` on: O from global memory, dO and whether a row has keys from shared."""
    warps, start, found = WARPS * WARPGROUPS, _row_start(p, b, h), Traffic()
    for row in range(first, first + ROWS, AT_ONCE):
        inside = max(0, min(AT_ONCE, p.seq_q - row))
        found += loads(inside > 0, inside * ROW_SECTORS)
    found += ROWS // AT_ONCE * shared_loads(QUAD_WAVEFRONTS) + warps * shared_loads(4)
    if getattr(p, "dlse", None) is not None:
        for row in range(first, first + ROWS, ROWS // warps):  # a warp's eight: two in a request
            for both in ((row + i, row + i + 4) for i in range(4)):
                inside = [each for each in both if each < p.seq_q]
                found += loads(bool(inside), len({(start + each * FLOAT) // SECTOR for each in inside}))
    return found


def _row_start(p: Any, b: int, h: int) -> int:
    """Of LSE and of its gradient, where a head begins."""
    return (b * p.heads + h) * p.seq_q * FLOAT


def _stored(length: int, first: int) -> Traffic:
    """A result of each of two blocks, of whose rows so many exist."""
    found = Traffic()
    for own in range(first, first + STEP, ROWS):
        inside = max(0, min(ROWS, length - own))
        found += shared_stores(WARPS * STMATRIX_WAVEFRONTS * HEAD_DIM // 16) + shared_loads(inside)
        found += stores(ceil_div(inside, AT_ONCE), inside * ROW_SECTORS)
    return found
