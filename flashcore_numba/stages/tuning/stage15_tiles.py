"""The configurations of stage 15, and which one serves a problem."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from flashcore_numba.core.features import EPILOGUE, MERGING
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.tile_maps import PANEL
from flashcore_numba.stages.tuning import recorded

ROWS = 64  # of a warpgroup


class Tile(NamedTuple):
    """A configuration: warpgroups that multiply, keys per K/V tile, slots of the rings, and what overlaps.

    overlap: a warpgroup's softmax and its own P V. turns: warpgroups take turns at the tensor cores. lazy: no
    maximum as long as the weights stay small. polynomials: of 16 exponentials so many leave the
    special-function unit. blocks: so many share an SM. queries: so many times 16 columns of Q are in
    registers, where D is no less. two_q: the next work tile's Q arrives under this one, and O takes the place
    of its own Q.
    """

    consumers: int
    keys: int
    stages: int
    overlap: bool = True
    turns: bool = True
    lazy: bool = True
    polynomials: int = 0
    blocks: int = 1
    queries: int = 0
    two_q: bool = False

    @classmethod
    def of(cls, values: Iterable[int]) -> "Tile":
        """From the numbers of a search, in the order of the fields."""
        typed: Iterable[Any] = (type(x)(value) for x, value in zip(cls(0, 0, 0), values, strict=True))
        return cls._make(typed)


# By the most columns. Those of 192 and 256 are what fits beside their Q and O; nobody has measured them.
TILES = {64: Tile(4, 64, 4, overlap=False), 128: Tile(3, 80, 3), 192: Tile(2, 80, 2), 256: Tile(2, 48, 2)}
# With columns of Q in registers: measured from LONG keys on, at D = 64 and without features.
LONG = 4096
WITH_Q = Tile(3, 96, 3, overlap=False, queries=4), TILES[64]._replace(queries=1)
# One or two tiles of keys are too few to overlap anything: blocks that share an SM do.
SHORT = Tile(1, 64, 2, overlap=False, turns=False, lazy=False, blocks=3, queries=4)
SHORTS = {64: SHORT, 80: SHORT._replace(keys=80), 128: SHORT}  # for up to so many keys
IN_WINDOWS = {TILES[128]: Tile(3, 64, 4)}  # fewer keys that are masked, and a slot more
SHORT_PIECES = 9  # for each SM at least
# Where large work tiles would leave SMs idle, others. On an H200, microseconds: of a tile of keys, and of
# what a work tile adds.
TIMES = {
    64: {
        TILES[64]: 1.03,
        Tile(3, 128, 2): 1.66,
        Tile(2, 128, 3): 1.40,
        Tile(2, 192, 2): 2.02,
        WITH_Q[0]: 1.09,
        WITH_Q[1]: 0.99,
    },
    128: {TILES[128]: 1.33, Tile(2, 128, 2): 1.68},
    192: {TILES[192]: 1.7},
    256: {TILES[256]: 1.7},
}
# Softcap and ALiBi take registers beside these, and exponentials: with them these were the fastest.
ADJUSTED = {64: (TILES[64], Tile(2, 128, 3)), 128: (Tile(2, 128, 2),), 192: (TILES[192],), 256: (TILES[256],)}
PIECE_TIME = 2.0
RING_BYTES = 226 << 10  # of shared memory, for Q, O, K and V of a block
GAPS = 1.25  # what is left of them, where pieces of different length meet
VARIANTS: dict[str, dict[str, Any]] = {
    "in_sequence": {"overlap": False, "turns": False, "lazy": False, "polynomials": 0}
}


def tile_for(problem: Problem, variant: str | None, sm_count: int) -> tuple[Tile, bool]:
    """The configuration of a variant, else that of a search of this problem, else that of the rule, `choose`,
    and whether the longest work tiles go first.
    """
    if variant not in VARIANTS and (found := recorded.find(15, problem, sm_count)):
        return Tile.of(found[:-1]), bool(found[-1])
    return choose(problem, variant, sm_count)


def choose(problem: Problem, variant: str | None, sm_count: int) -> tuple[Tile, bool]:
    """By the rule: the configuration, and whether the longest work tiles go first."""
    p = problem
    tiles = _tiles(p)
    tile = tiles[0]._replace(**VARIANTS.get(variant or "", {}))
    if variant not in VARIANTS and 2 * pieces(p, 2) > sm_count:  # with fewer rows, stage 16 is for them
        tile = min(tiles, key=lambda tile: _predicted(p, tile, sm_count))
        few_keys = p.seq_k <= max(SHORTS) and not p.causal and _plain_64(p)
        if few_keys and pieces(p, SHORT.consumers) >= SHORT_PIECES * sm_count:
            tile = next(short for most, short in SHORTS.items() if p.seq_k <= most)
    if p.windowed and variant not in VARIANTS:
        tile = _windowed(p, tile)
    # An order matters to blocks that wait for a place.
    return tile, p.causal and pieces(p, tile.consumers) > sm_count


def _tiles(p: Problem) -> tuple[Tile, ...]:
    """Those to choose from, the ladder's first."""
    width = _width(p)
    if p.features.adjusting:
        return ADJUSTED[width]
    tiles = tuple(tile for tile in TIMES[width] if not tile.queries)
    if p.seq_k < LONG or not _plain_64(p):
        return tiles
    return tiles + (WITH_Q[1:] if p.causal else WITH_Q)


def _windowed(p: Problem, tile: Tile) -> Tile:
    """The next work tile's Q comes early. Warpgroups that are some tiles apart hold so many slots: there are
    two more, where they fit.
    """
    tile = IN_WINDOWS.get(tile, tile)
    apart = math.ceil(ROWS * (tile.consumers - 1) / tile.keys)
    rows = RING_BYTES // (4 * PANEL * math.ceil(p.columns / PANEL))  # of O and Q, or V and K
    fit = (rows - ROWS * tile.consumers) // tile.keys
    return tile._replace(stages=max(tile.stages, min(apart + 2, fit)), two_q=True)


def _plain_64(p: Problem) -> bool:
    # What the parts of a result need, norm and gate come after the last tile.
    return p.head_dim == p.value_dim == 64 and {*p.features.names} <= {*MERGING, *EPILOGUE}


def _width(p: Problem) -> int:
    """The key of `TILES` for its columns."""
    return next(most for most in TILES if p.columns <= most)


def pieces(p: Problem, consumers: int) -> int:
    """How many work tiles a problem is, of `consumers` * ROWS rows of a head each."""
    return p.sequence_count * p.heads * -(-_each(p, p.seq_q) // (ROWS * consumers))


def _each(p: Problem, rows: int) -> int:
    """Rows of a sequence: of packed ones, whose lengths only the GPU knows, as if all were equal."""
    return -(-rows // p.sequence_count) if p.features.ragged else rows


def _predicted(p: Problem, tile: Tile, sm_count: int) -> float:
    """Microseconds of a launch: pieces of one length go in rounds, others fill most of each other's gaps."""
    keys = _each(p, p.seq_k)
    works, longest = pieces(p, tile.consumers), math.ceil(keys / tile.keys)
    rounds = math.ceil(works / sm_count)
    # What the rows of a warpgroup see through a window with two ends, which may begin anywhere in a tile.
    seen = (p.mask.left + p.mask.right + ROWS - 1) / tile.keys + 1
    if min(p.mask.left, p.mask.right) >= 0 and seen < longest:
        return rounds * (PIECE_TIME + seen * TIMES[_width(p)][tile])
    tiles, time = float(rounds * longest), rounds * PIECE_TIME
    if p.causal and rounds > 1:
        shift = keys - _each(p, p.seq_q)
        shortest = math.ceil(max(0, shift + ROWS * tile.consumers) / tile.keys)
        tiles = GAPS * max(longest, works / sm_count * (longest + shortest) / 2)
    return time + tiles * TIMES[_width(p)][tile]
