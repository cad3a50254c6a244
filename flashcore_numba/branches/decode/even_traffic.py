"""What the kernel of `decode/even` moves: K and V once for all rows of a block, and parts of cut requests."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_even import Division, plan
from flashcore_numba.branches.decode.decode_parts import KEYS
from flashcore_numba.branches.decode.decode_traffic import part, refuse_e4m3, seen, tiles_of_rows
from flashcore_numba.branches.decode.split_traffic import merged
from flashcore_numba.predict.formula import (
    FLOAT,
    LANES,
    Traffic,
    barriers,
    ceil_div,
    loads,
    sectors_apart,
)


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    p = problem
    refuse_e4m3(p)
    tile, blocks = plan(p, variant, sm_count)
    found = Traffic()
    for rows in tiles_of_rows(p, tile):
        ends = [seen(request.mask, rows, p.group) for request in p.sequences]
        tiles = [(begin // KEYS, ceil_div(end, KEYS)) for begin, end in ends]
        steps = [max(1, ceil_div(last - first, tile.warps)) for first, last in tiles]
        division = Division.of(steps, blocks)
        parts_of_all = division.parts(steps)
        for request, parts in enumerate(parts_of_all):
            for _, begins, done in parts:
                first, last = (tiles[request][0] + step * tile.warps for step in (begins, done))
                own = first, min(last, tiles[request][1])
                found += p.kv_heads * part(p, tile, request, *ends[request], *own, rows.size)
            found += p.kv_heads * len(parts) * barriers(tile.warps)  # before O of the warps is written over
            for h_kv in range(p.kv_heads):
                places = np.array([2 * block + (number == 0) for number, (block, *_) in enumerate(parts)])
                found += merged(p, tile, h_kv, rows, places * p.kv_heads + h_kv)
        found += p.kv_heads * tile.warps * _search(division, steps, parts_of_all, blocks)
    return found


def _search(division: Division, steps: list[int], parts_of_all: list[list], blocks: int) -> Traffic:
    """The lengths that a warp of each block reads: all of them, those up to each request that it comes to,
    and once more that of a request of which it has nothing but steps before its own.
    """

    def lengths(count: int) -> Traffic:
        firsts = range(0, count, LANES)
        each = (sectors_apart(np.array(FLOAT * at), np.array(min(LANES, count - at)), FLOAT) for at in firsts)
        return sum((loads(1, sectors) for sectors in each), Traffic())

    found, at = blocks * lengths(len(steps)), 0
    for request, parts in enumerate(parts_of_all):
        ends = at + (division.room or division.lead + steps[request])
        comes = range(at // division.share, min(blocks, ceil_div(ends, division.share)))
        up_to = min(len(steps), (request // LANES + 1) * LANES)
        found += len(comes) * lengths(up_to) + (len(comes) - len(parts)) * loads(1, 1)
        at = ends
    return found
