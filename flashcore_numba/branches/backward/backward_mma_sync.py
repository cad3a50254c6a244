"""The backward pass on mma.sync: a warp owns keys, or, in the split kernel, has a part of each product."""

import math
from typing import Any, NamedTuple

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.parts import finish, key_tiles, prepare, sizes
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import OF_MODELS
from flashcore_numba.stages.parts.cuda_arguments import defines, strides
from flashcore_numba.stages.stage import Stage

SPLIT = "backward_mma_sync_split"


class Tile(NamedTuple):
    """Keys of a block, query rows of a tile, warps, blocks that an SM has room for, from how many blocks per
    SM on it pays, the kernel, and whether dV, dK and dQ come one tile late.
    """

    keys: int
    rows: int
    warps: int
    blocks_an_sm: int
    pays_from: int
    kernel: str = "backward_mma_sync"
    late: bool = False

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


def run(problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, tile: Tile) -> None:
    """Launch any configuration."""
    p, rows = problem, prepare(problem, executor)
    steps = (step for x in (p.q, p.k, p.v, p.dout, dk, dv) for step in strides(x))
    arguments = (p.q, p.k, p.v, p.dout, *rows, dk, dv, *steps, *sizes(p), np.float32(p.scale))
    kernel = source(tile.kernel, **tile.macros(p.head_dim), **defines(p.forward))
    grid, room = (key_tiles(p, tile.keys), p.kv_heads, p.batch), tile.block_bytes(p.head_dim)
    executor.launch(kernel, grid, 32 * tile.warps, *arguments, shared_bytes=room)
    finish(p, rows.dq_sum, dq, executor)


def launch(
    problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, variant: str | None = None
) -> None:
    """Queue the kernels: dq [B, H, S_q, D], dk and dv [B, H_kv, S_k, D]."""
    tiles = TILES[problem.head_dim]
    name = variant if variant in tiles else choose(problem, executor.sm_count, executor.shared_limit)
    run(problem, dq, dk, dv, executor, tiles[name])


STAGE = Stage(
    number=None,
    name="mma_sync",
    title="A warp owns keys",
    idea="Rows of a warp are keys: P and dS come transposed, as dV and dK take them, and only dS moves.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    elements=ACCEPTED,
    grouped_queries=True,
    features=OF_MODELS,
    outputs=GRADIENTS,
    variants={
        "large": "a warp owns keys: for large problems at D = 64, smaller ones or small GPUs at D = 128",
        "split": "a warp has a part of each product: for large problems at D = 128, smaller ones at D = 64",
        "short": "the same with 32 keys per block: for short problems",
        "mma_sync": "the first that fits and fills the GPU; at D = 128 split comes first",
    },
    operation=BACKWARD,
)
