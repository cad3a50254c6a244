"""What the kernel of `backward_one_launch` moves: pairs of tiles, past blocks of keys and of query rows."""

from typing import Any

from flashcore_numba.branches.backward import backward_resident as resident
from flashcore_numba.branches.backward import resident_traffic
from flashcore_numba.branches.backward.backward_one_launch import ROWS, STAGES, WARPGROUPS, cluster_of
from flashcore_numba.branches.backward.keys_traffic import tiles_seen
from flashcore_numba.predict.formula import (
    FLOAT,
    SECTOR,
    Traffic,
    barriers,
    ceil_div,
    loads,
    sectors_apart,
    shared_loads,
    shared_stores,
)
from flashcore_numba.predict.warp_rows import LDMATRIX_WAVEFRONTS
from flashcore_numba.predict.warpgroup_rows import WARPS, load_tiles, store_rows

QUAD_WAVEFRONTS = 4  # 16 bytes per lane


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    if variant == "resident" and resident.serves(problem):
        return resident_traffic.traffic(problem)
    p, cluster = problem, cluster_of(problem, variant)
    step, found = cluster * ROWS, Traffic()
    for b in range(p.batch):
        for h in range(0, p.heads, p.group):
            found += sum((_keys(p, b, h, first, cluster) for first in range(0, p.seq_k, step)), Traffic())
        for h in range(p.heads):
            found += sum((_rows(p, b, h, first, cluster) for first in range(0, p.seq_q, step)), Traffic())
    return found


def _keys(p: Any, b: int, h: int, first: int, cluster: int) -> Traffic:
    """The blocks of a cluster that owns keys from `first` on; `h` is the first of their query heads."""
    D, (begin, end) = p.head_dim, tiles_seen(p.mask, first, cluster * ROWS, ROWS)
    tiles = [(h + member, tile * ROWS) for member in range(p.group) for tile in range(begin, end)]
    columns = 2 * ROWS // 8 * shared_loads(2)  # LSE and D, a wavefront for half a warp
    known = barriers(1)  # LSE and D of the next tile
    walk = len(tiles) * WARPS * (columns + known) + _own(len(tiles), 2, D)
    for head, row in tiles:
        walk += _row_values(p, b, head, row) + WARPS * shared_stores(1)
    of_each = cluster * (walk + _ends(D, 2, cluster))
    inside = [max(0, p.seq_k - own) for own in range(first, first + cluster * ROWS, ROWS)]
    return of_each + len(tiles) * load_tiles(3, ROWS, D) + 2 * _stored(inside, D)


def _rows(p: Any, b: int, h: int, first: int, cluster: int) -> Traffic:
    """The blocks of a cluster that owns query rows of a head from `first` on."""
    D, last = p.head_dim, min(first + cluster * ROWS, p.seq_q) - 1
    begin, end = p.mask.tiles(first, last, ROWS)
    tiles = max(0, end - begin)
    busy = min(tiles, WARPGROUPS)  # warpgroups
    found = cluster * (_own(tiles, 3, D) + _refills(tiles, D) + _ends(D, 1, cluster))
    for own in range(first, first + cluster * ROWS, ROWS):
        found += busy * _row_values(p, b, h, own)  # each warpgroup for itself, and none goes to shared memory
    inside = [max(0, p.seq_q - own) for own in range(first, first + cluster * ROWS, ROWS)]
    return found + tiles * load_tiles(2, ROWS, D) + _stored(inside, D)


def _own(tiles: int, own: int, D: int) -> Traffic:
    """The block's own tiles, those two that stay in registers read by each warpgroup that multiplies."""
    operands = 2 * WARPS * (D // 16) * LDMATRIX_WAVEFRONTS if D == 64 else 0
    return min(tiles, 1) * load_tiles(own, ROWS, D) + min(tiles, WARPGROUPS) * shared_loads(operands)


def _refills(pairs: int, D: int) -> Traffic:
    """A warpgroup's barriers before a slot is filled again."""
    each = (ceil_div(pairs - w, WARPGROUPS) for w in range(WARPGROUPS))
    return barriers(WARPS * sum(max(0, n - STAGES[D]) for n in each))


def _row_values(p: Any, b: int, h: int, first: int) -> Traffic:
    """LSE and D of 64 query rows from `first` on, two lanes for a row of dO and of O."""
    found = WARPS * 2 * (p.head_dim // 16) * shared_loads(QUAD_WAVEFRONTS)
    start = ((b * p.heads + h) * p.seq_q + first) * FLOAT
    arrays = 1 + (getattr(p, "dlse", None) is not None)
    for row in range(0, ROWS, ROWS // WARPS):
        inside = max(0, min(ROWS // WARPS, p.seq_q - first - row))
        if inside:
            found += arrays * loads(1, sectors_apart((start + row * FLOAT) % SECTOR, inside, FLOAT))
    return found


def _ends(D: int, results: int, cluster: int) -> Traffic:
    """How a block begins, and how its warpgroups add up their sums."""
    sums = results * WARPS * (D // 8) * QUAD_WAVEFRONTS
    meetings = WARPGROUPS * (1 + 2)  # all, and in the end each warpgroup and all
    meetings += (cluster > 1) * 2 * WARPGROUPS  # arrivals at the cluster's
    return shared_stores(sums) + shared_loads(sums) + barriers(WARPS * meetings)


def _stored(inside: list[int], D: int) -> Traffic:
    """A result of each block, of whose rows so many exist."""
    return sum((store_rows(rows, D) for rows in inside), Traffic())
