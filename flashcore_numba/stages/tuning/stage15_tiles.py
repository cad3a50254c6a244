"""The configurations of stage 15, and which one serves a problem."""

import math
from typing import NamedTuple

ROWS = 64  # of a warpgroup


class Tile(NamedTuple):
    """A configuration: warpgroups that multiply, keys a K/V tile, slots of the rings, and what overlaps.

    overlap: a warpgroup's softmax and its own P V. turns: warpgroups take turns at the tensor cores. lazy: no
    maximum as long as the weights stay small. polynomials: of 16 exponentials so many leave the
    special-function unit.
    """

    consumers: int
    keys: int
    stages: int
    overlap: bool = True
    turns: bool = True
    lazy: bool = True
    polynomials: int = 0


TILES = {64: Tile(4, 64, 4, overlap=False), 128: Tile(3, 80, 3)}  # by head dimension
# Where large pieces of work would leave SMs idle, others. On an H200, microseconds: of a tile of keys, and of
# what a piece adds.
TIMES = {
    64: {TILES[64]: 1.03, Tile(3, 128, 2): 1.66, Tile(2, 128, 3): 1.40, Tile(2, 192, 2): 2.02},
    128: {TILES[128]: 1.33, Tile(2, 128, 2): 1.68},
}
PIECE_TIME = 2.0
GAPS = 1.25  # what is left of them, where pieces of different length meet
VARIANTS = {"in_sequence": {"overlap": False, "turns": False, "lazy": False, "polynomials": 0}}


def choose(problem, variant, sm_count):
    """The configuration of a variant, and whether the longest pieces of work go first."""
    p = problem
    tile = TILES[p.head_dim]._replace(**VARIANTS.get(variant, {}))
    if variant not in VARIANTS and 2 * pieces(p, 2) > sm_count:  # with fewer rows, stage 16 is for them
        tile = min(TIMES[p.head_dim], key=lambda tile: _predicted(p, tile, sm_count))
    # An order matters to blocks that wait for a place.
    return tile, p.causal and pieces(p, tile.consumers) > sm_count


def pieces(p, consumers):
    """How many pieces of work a problem is, of `consumers` * ROWS rows of a head each."""
    return p.batch * p.heads * -(-p.seq_q // (ROWS * consumers))


def _predicted(p, tile, sm_count):
    """Microseconds of a launch: pieces of one length go in rounds, others fill most of each other's gaps."""
    works, longest = pieces(p, tile.consumers), math.ceil(p.seq_k / tile.keys)
    rounds = math.ceil(works / sm_count)
    tiles, time = rounds * longest, rounds * PIECE_TIME
    if p.causal and rounds > 1:
        shortest = math.ceil(max(0, p.mask.shift + ROWS * tile.consumers) / tile.keys)
        tiles = GAPS * max(longest, works / sm_count * (longest + shortest) / 2)
    return time + tiles * TIMES[p.head_dim][tile]
