"""The configurations of the backward pass on wgmma, and which one serves a problem."""

from collections.abc import Iterable
from typing import NamedTuple

from flashcore_numba.branches.backward.parts import key_tiles
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.stages.tuning import recorded

KEYS = 128  # of a block


class Tile(NamedTuple):
    """Query rows of a tile, slots of the ring of Q and dO, and macros that the kernel's header explains."""

    rows: int
    stages: int
    deterministic: bool = False
    ping_pong: bool = True
    dv_early: bool = False
    heads_together: int = 1

    @classmethod
    def of(cls, values: Iterable[int]) -> "Tile":
        """From the numbers of a search, in the order of its space."""
        rows, stages, ping_pong, dv_early, heads_together = values
        return cls(rows, stages, False, bool(ping_pong), bool(dv_early), heads_together)


TILES = {64: Tile(128, 3), 128: Tile(64, 2, dv_early=True)}  # by head dimension


def tile_for(problem: BackwardProblem, variant: str | None, sm_count: int) -> Tile:
    """The tile of a search of this problem, else of `TILES`, as the deterministic variant has it always."""
    tile = TILES[problem.head_dim]
    if variant == "deterministic":
        return in_turn(problem, tile, sm_count)
    if found := recorded.find("backward/wgmma", problem, sm_count):
        return Tile.of(found)
    return tile


def in_turn(problem: BackwardProblem, tile: Tile, sm_count: int) -> Tile:
    """The tile of the deterministic variant. Of one head's blocks each waits for the one before, so as many
    heads go side by side as have two blocks for an SM.
    """
    together = max(1, 2 * sm_count // max(1, key_tiles(problem, KEYS)))
    return tile._replace(deterministic=True, heads_together=min(together, problem.kv_heads))
