"""The configurations of the backward pass on mma.sync, and which one serves a problem."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from flashcore_numba.branches.backward.parts import key_tiles
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.stages.tuning import recorded

WHOLE, SPLIT = "backward_mma_sync", "backward_mma_sync_split"  # the kernels


class Tile(NamedTuple):
    """Keys of a block, query rows of a tile, warps, blocks that an SM has room for, from how many blocks per
    SM on it pays, the kernel, and whether dV, dK and dQ come one tile late.
    """

    keys: int
    rows: int
    warps: int
    blocks_an_sm: int
    pays_from: int
    kernel: str = WHOLE
    late: bool = False

    @classmethod
    def of(cls, values: Iterable[int]) -> "Tile":
        """From the numbers of a search, in the order of its space."""
        keys, rows, warps, blocks_an_sm, split, late = values
        return cls(keys, rows, warps, blocks_an_sm, 0, SPLIT if split else WHOLE, bool(late))

    def macros(self, head_dim: int) -> dict[str, Any]:
        """What the kernel is compiled with, features aside."""
        shared = {"HEAD_DIM": head_dim, "WARPS": self.warps, "BLOCKS_PER_SM": self.blocks_an_sm}
        if self.kernel != SPLIT:
            return shared | {"ROW_TILES": self.keys // (16 * self.warps), "BLOCK_N": self.rows}
        shared |= {"BLOCK_KEYS": self.keys, "BLOCK_ROWS": self.rows, "LATE": int(self.late)}
        return shared | {"ROW_TILES": 2, "BLOCK_N": min(32, self.keys * self.rows // (32 * self.warps))}

    def block_bytes(self, head_dim: int) -> int:
        """Of shared memory: K and V, the slots of Q, dO, lse2 and delta, and dS^T with or without P^T."""
        slots = 3 if self.late else 2
        row = 2 * (slots - 1) * self.rows if self.kernel == SPLIT else self.rows + 8  # of a key
        tiles = 2 * head_dim * (self.keys + slots * self.rows)
        return 2 * (tiles + self.keys * row) + 8 * slots * self.rows


# By head dimension, the first preferred.
TILES: dict[int, dict[str, Tile]] = {
    64: {
        "large": Tile(128, 32, 4, 2, 2),
        "split": Tile(64, 64, 4, 2, 1, SPLIT, late=True),
        "short": Tile(32, 64, 4, 3, 0, SPLIT),
    },
    128: {
        "split": Tile(128, 64, 8, 1, 1, SPLIT, late=True),
        "large": Tile(64, 32, 4, 1, 1),
        "short": Tile(32, 64, 4, 2, 0, SPLIT),
    },
}


def tile_for(problem: BackwardProblem, variant: str | None, sm_count: int, room: float = math.inf) -> Tile:
    """The tile that a variant names, else that of a search of this problem, else `choose`'s, the rule's."""
    p, tiles = problem, TILES[problem.head_dim]
    if variant not in tiles and (found := recorded.find("backward/mma_sync", p, sm_count)):
        tile = Tile.of(found)
        if tile.block_bytes(p.head_dim) <= room:
            return tile
    return tiles[variant if variant in tiles else choose(p, sm_count, room)]


def choose(problem: BackwardProblem, sm_count: int, room: float = math.inf) -> str:
    """The first tile that fits `room` bytes of shared memory and has three quarters of the blocks from which
    on it pays; twice as many where a mask makes work uneven.
    """
    p, uneven = problem, 2 if problem.causal else 1
    for name, tile in TILES[p.head_dim].items():
        blocks = p.batch * p.kv_heads * key_tiles(p, tile.keys)
        if tile.block_bytes(p.head_dim) <= room and blocks >= 0.75 * tile.pays_from * sm_count * uneven:
            return name
    return "short"
