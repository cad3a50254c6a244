"""What the kernels of `backward_one_launch` move: pairs of tiles, past blocks of keys and of query rows."""

from typing import Any

from flashcore_numba.branches.backward.backward_one_launch import (
    ROLES,
    ROWS,
    STAGES,
    STORED_ROWS,
    WARPGROUPS,
    cluster_of,
)
from flashcore_numba.branches.backward.keys_traffic import tiles_seen
from flashcore_numba.predict.formula import (
    FLOAT,
    HALF,
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
from flashcore_numba.predict.warp_rows import LDMATRIX_WAVEFRONTS, rows_a_request
from flashcore_numba.predict.warpgroup_rows import STMATRIX_WAVEFRONTS, WARPS, load_tiles, store_rows

QUAD_WAVEFRONTS = 4  # 16 bytes per lane


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p, roles, cluster = problem, variant in ROLES, cluster_of(problem, variant)
    step, found = cluster * ROWS, Traffic()
    for b in range(p.batch):
        for h in range(0, p.heads, p.group):
            found += sum(
                (_keys(p, b, h, first, cluster, roles) for first in range(0, p.seq_k, step)), Traffic()
            )
        for h in range(p.heads):
            found += sum(
                (_rows(p, b, h, first, cluster, roles) for first in range(0, p.seq_q, step)), Traffic()
            )
    return found


def _keys(p: Any, b: int, h: int, first: int, cluster: int, roles: bool) -> Traffic:
    """The blocks of a cluster that owns keys from `first` on; `h` is the first of their query heads."""
    D, (begin, end) = p.head_dim, tiles_seen(p.mask, first, cluster * ROWS, ROWS)
    tiles = [(h + member, tile * ROWS) for member in range(p.group) for tile in range(begin, end)]
    columns = 2 * ROWS // 8 * shared_loads(2)  # LSE and D, a wavefront for half a warp
    known = barriers(0 if roles else 1)  # LSE and D of the next tile
    walk = len(tiles) * WARPS * (columns + known)
    for head, row in tiles:
        walk += _row_values(p, b, head, row, roles)
    walk += _own(len(tiles), 2, D) + roles * _refills(len(tiles), D)
    of_each = cluster * (walk + _ends(D, 2, cluster, roles))
    inside = [max(0, p.seq_k - own) for own in range(first, first + cluster * ROWS, ROWS)]
    return of_each + _streamed(len(tiles), 3, D, cluster, roles) + 2 * _stored(inside, D, roles)


def _rows(p: Any, b: int, h: int, first: int, cluster: int, roles: bool) -> Traffic:
    """The blocks of a cluster that owns query rows of a head from `first` on."""
    D, last = p.head_dim, min(first + cluster * ROWS, p.seq_q) - 1
    begin, end = p.mask.tiles(first, last, ROWS)
    tiles = max(0, end - begin)
    busy = min(tiles, WARPGROUPS)  # warpgroups
    found = cluster * (_own(tiles, 3, D) + _refills(tiles, D) + _ends(D, 1, cluster, roles))
    for own in range(first, first + cluster * ROWS, ROWS):
        if roles:  # a lane reads LSE and D of its two rows
            found += min(tiles, 1) * _row_values(p, b, h, own, roles) + busy * WARPS * shared_loads(4)
        else:  # each warpgroup for itself, and none goes to shared memory
            found += busy * _row_values(p, b, h, own, roles, kept=False)
    inside = [max(0, p.seq_q - own) for own in range(first, first + cluster * ROWS, ROWS)]
    return found + _streamed(tiles, 2, D, cluster, roles) + _stored(inside, D, roles)


def _own(tiles: int, own: int, D: int) -> Traffic:
    """The block's own tiles, those two that stay in registers read by each warpgroup that multiplies."""
    operands = 2 * WARPS * (D // 16) * LDMATRIX_WAVEFRONTS if D == 64 else 0
    return min(tiles, 1) * load_tiles(own, ROWS, D) + min(tiles, WARPGROUPS) * shared_loads(operands)


def _streamed(pairs: int, arrays: int, D: int, cluster: int, roles: bool) -> Traffic:
    """The tiles that pass a cluster: once, or with a third warpgroup the first ones once per block."""
    alone = min(pairs, WARPGROUPS) if roles else 0
    return (pairs + (cluster - 1) * alone) * load_tiles(arrays, ROWS, D)


def _refills(pairs: int, D: int) -> Traffic:
    """A warpgroup's barriers before a slot is filled again."""
    each = (ceil_div(pairs - w, WARPGROUPS) for w in range(WARPGROUPS))
    return barriers(WARPS * sum(max(0, n - STAGES[D]) for n in each))


def _row_values(p: Any, b: int, h: int, first: int, roles: bool, kept: bool = True) -> Traffic:
    """LSE and D of 64 query rows from `first` on, two lanes for a row of dO and of O."""
    found = WARPS * (2 * (p.head_dim // 16) * shared_loads(QUAD_WAVEFRONTS) + kept * shared_stores(1))
    if roles:  # the LSE and its gradient wait in shared memory for the sum
        found += WARPS * (shared_loads(2) + shared_stores(1))
    start = ((b * p.heads + h) * p.seq_q + first) * FLOAT
    arrays = 1 + (getattr(p, "dlse", None) is not None)
    for row in range(0, ROWS, ROWS // WARPS):
        inside = max(0, min(ROWS // WARPS, p.seq_q - first - row))
        if inside or roles:  # after the last row: that of the last
            sectors = max(1, sectors_apart((start + row * FLOAT) % SECTOR, inside, FLOAT))
            found += arrays * loads(1, sectors)
    return found


def _ends(D: int, results: int, cluster: int, roles: bool) -> Traffic:
    """How a block begins, and how its warpgroups add up their sums."""
    sums = results * WARPS * (D // 8) * QUAD_WAVEFRONTS
    meetings = WARPGROUPS * (1 + 2) + roles  # all, and in the end each warpgroup and all that multiply
    meetings += (cluster > 1) * (WARPGROUPS + 2 if roles else 2 * WARPGROUPS)  # arrivals at the cluster's
    return shared_stores(sums) + shared_loads(sums) + barriers(WARPS * meetings)


def _stored(inside: list[int], D: int, roles: bool) -> Traffic:
    """A result of each block, of whose rows so many exist: by TMA, or 16 bytes per lane."""
    if not roles:
        return sum((store_rows(rows, D) for rows in inside), Traffic())
    found = (
        len(inside) * WARPS * (D // 16) * (shared_stores(STMATRIX_WAVEFRONTS) + shared_loads(QUAD_WAVEFRONTS))
    )
    for rows in inside:
        for first in range(0, ROWS, STORED_ROWS):
            own = max(0, min(STORED_ROWS, rows - first))
            found += D // 64 * stores(ceil_div(own, rows_a_request(64)), own * 64 * HALF // SECTOR)
    return found
