"""The backward pass on mma.sync: a warp owns keys. The kernel: `backward_mma_sync.cu`."""

import math
from typing import NamedTuple

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.parts import finish, prepare, sizes
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import ALL
from flashcore_numba.stages.parts.cuda_arguments import defines, strides
from flashcore_numba.stages.stage import Stage

SLOTS = 2  # of Q, dO, lse2 and delta


class Tile(NamedTuple):
    """16-key tiles of a warp, warps, query rows of a tile, and blocks that an SM has room for."""

    row_tiles: int
    warps: int
    rows: int
    blocks_an_sm: int

    @property
    def keys(self) -> int:
        """Of a block."""
        return 16 * self.row_tiles * self.warps

    def block_bytes(self, head_dim: int) -> int:
        """Of shared memory: K and V, the slots, and dS^T in rows padded by 8 elements."""
        elements = 2 * head_dim * (self.keys + SLOTS * self.rows) + self.keys * (self.rows + 8)
        return 2 * elements + 2 * SLOTS * self.rows * 4


class SplitTile(NamedTuple):
    """Keys of a block, query rows of a tile, warps, and blocks that an SM has room for."""

    keys: int
    rows: int
    warps: int
    blocks_an_sm: int
    late: bool = False
    load_late: bool = False
    unroll: int = 4
    stmatrix: bool = False

    @property
    def part_rows(self) -> int:
        """Query rows of a warp's part of S, which has 32 keys."""
        return min(32, self.keys * self.rows // (32 * self.warps))

    def block_bytes(self, head_dim: int) -> int:
        """Of shared memory: K and V, the slots, P^T and dS^T."""
        pitch, slots, buffers = -(-self.rows // 64) * 64, 2 + self.late, 1 + self.late
        elements = 2 * head_dim * (self.keys + slots * self.rows) + 2 * buffers * self.keys * pitch
        return 2 * elements + 2 * slots * self.rows * 4


SPLITS: dict[int, dict[str, SplitTile]] = {
    64: {
        "128x64x4": SplitTile(128, 64, 4, 2),
        "128x64x4 2": SplitTile(128, 64, 4, 2, unroll=2),
        "128x64x4 load": SplitTile(128, 64, 4, 2, load_late=True),
        "128x64x8": SplitTile(128, 64, 8, 1),
        "128x128x8": SplitTile(128, 128, 8, 1),
        "64x64x4": SplitTile(64, 64, 4, 2),
        "64x32x4": SplitTile(64, 32, 4, 3),
        "64x64x8": SplitTile(64, 64, 8, 2),
        "32x64x4": SplitTile(32, 64, 4, 3),
        "128x64x8 late": SplitTile(128, 64, 8, 1, late=True),
        "64x64x4 late": SplitTile(64, 64, 4, 2, late=True),
        "128x64x4 st": SplitTile(128, 64, 4, 2, stmatrix=True),
        "128x64x8 late st": SplitTile(128, 64, 8, 1, late=True, stmatrix=True),
    },
    128: {
        "128x64x8": SplitTile(128, 64, 8, 1),
        "128x64x8 8": SplitTile(128, 64, 8, 1, unroll=8),
        "128x64x8 load": SplitTile(128, 64, 8, 1, load_late=True),
        "128x32x8": SplitTile(128, 32, 8, 1),
        "64x64x4": SplitTile(64, 64, 4, 2),
        "64x64x4 2": SplitTile(64, 64, 4, 2, unroll=2),
        "64x64x4 8": SplitTile(64, 64, 4, 2, unroll=8),
        "64x64x4 load": SplitTile(64, 64, 4, 2, load_late=True),
        "64x32x4": SplitTile(64, 32, 4, 2),
        "64x64x8": SplitTile(64, 64, 8, 1),
        "32x64x4": SplitTile(32, 64, 4, 2),
        "128x64x8 late": SplitTile(128, 64, 8, 1, late=True),
        "128x64x8 late 8": SplitTile(128, 64, 8, 1, late=True, unroll=8),
        "128x32x8 late": SplitTile(128, 32, 8, 1, late=True),
        "64x64x8 late": SplitTile(64, 64, 8, 1, late=True),
        "128x64x8 st": SplitTile(128, 64, 8, 1, stmatrix=True),
        "64x64x4 st": SplitTile(64, 64, 4, 2, stmatrix=True),
        "128x64x8 late st": SplitTile(128, 64, 8, 1, late=True, stmatrix=True),
    },
}

# By head dimension, the first are preferred.
TILES: dict[int, dict[str, Tile]] = {
    64: {"large": Tile(2, 4, 32, 2), "tall": Tile(2, 4, 32, 2), "small": Tile(1, 4, 32, 3)},
    128: {"large": Tile(1, 8, 32, 1), "tall": Tile(1, 8, 64, 1), "small": Tile(1, 4, 32, 1)},
}


def choose(problem: BackwardProblem, sm_count: int, room: float = math.inf) -> str:
    """The large tile if it fits `room` bytes of shared memory and its blocks fill three quarters of the GPU;
    twice as much where a mask makes work uneven.
    """
    p, tile = problem, TILES[problem.head_dim]["large"]
    blocks = p.batch * p.kv_heads * key_tiles(p, tile.keys)
    fills = blocks >= 0.75 * tile.blocks_an_sm * sm_count * (2 if p.causal else 1)
    return "large" if fills and tile.block_bytes(p.head_dim) <= room else "small"


def key_tiles(problem: BackwardProblem, keys: int) -> int:
    """Tiles of so many keys in a head: of packed sequences, as many as any lengths could make."""
    tails = problem.sequence_count if problem.features.ragged else 1
    return (problem.seq_k + tails * (keys - 1)) // keys


def launch(
    problem: BackwardProblem,
    dq: Array,
    dk: Array,
    dv: Array,
    executor: Executor,
    variant: str | None = None,
) -> None:
    """Queue the kernels: dq [B, H, S_q, D], dk and dv [B, H_kv, S_k, D]."""
    p, names = problem, TILES[problem.head_dim]
    if variant in SPLITS[p.head_dim]:
        return launch_split(p, dq, dk, dv, executor, SPLITS[p.head_dim][variant])
    tile = names[variant if variant in names else choose(p, executor.sm_count, executor.shared_limit)]
    kernel = source(
        "backward_mma_sync",
        HEAD_DIM=p.head_dim,
        ROW_TILES=tile.row_tiles,
        WARPS=tile.warps,
        BLOCK_N=tile.rows,
        BLOCKS_PER_SM=tile.blocks_an_sm,
        **defines(p.forward),
    )
    rows = prepare(p, executor)
    steps = (step for x in (p.q, p.k, p.v, p.dout, dk, dv) for step in strides(x))
    arguments = (p.q, p.k, p.v, p.dout, *rows, dk, dv, *steps, *sizes(p), np.float32(p.scale))
    grid = (key_tiles(p, tile.keys), p.kv_heads, p.batch)
    executor.launch(kernel, grid, 32 * tile.warps, *arguments, shared_bytes=tile.block_bytes(p.head_dim))
    finish(p, rows.dq_sum, dq, executor)


def launch_split(
    problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, tile: SplitTile
) -> None:
    p = problem
    kernel = source(
        "backward_mma_split",
        HEAD_DIM=p.head_dim,
        ROW_TILES=2,
        WARPS=tile.warps,
        BLOCK_N=tile.part_rows,
        BLOCK_ROWS=tile.rows,
        LATE=tile.late,
        LOAD_LATE=tile.load_late,
        UNROLL=tile.unroll,
        STMATRIX=tile.stmatrix,
        BLOCK_KEYS=tile.keys,
        BLOCKS_PER_SM=tile.blocks_an_sm,
        **defines(p.forward),
    )
    rows = prepare(p, executor)
    steps = (step for x in (p.q, p.k, p.v, p.dout, dk, dv) for step in strides(x))
    arguments = (p.q, p.k, p.v, p.dout, *rows, dk, dv, *steps, *sizes(p), np.float32(p.scale))
    grid = (key_tiles(p, tile.keys), p.kv_heads, p.batch)
    executor.launch(kernel, grid, 32 * tile.warps, *arguments, shared_bytes=tile.block_bytes(p.head_dim))
    finish(p, rows.dq_sum, dq, executor)


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
    features=ALL,
    outputs=GRADIENTS,
    variants={
        "large": "128 keys per block: for problems whose blocks of this size fill the GPU",
        "tall": "the same, with tiles of 64 query rows at D = 128 in place of 32: half as many barriers",
        "small": "64 keys per block: for short problems, and for GPUs with less shared memory",
        "mma_sync": "large or small, whichever fills the GPU",
    },
    operation=BACKWARD,
)
