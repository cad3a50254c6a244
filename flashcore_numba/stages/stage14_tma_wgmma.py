"""Stage 14: TMA moves tiles, a warpgroup multiplies them. The kernel: `stage14_tma_wgmma.cu`."""

import math
from typing import NamedTuple

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, scalars
from flashcore_numba.stages.parts.tile_maps import tile_map
from flashcore_numba.stages.stage import Stage

ROWS, STORED_ROWS = 64, 16  # of a block, and of what one warp stores


class Tile(NamedTuple):
    """Keys per K/V tile, slots of the ring, blocks per SM."""

    keys: int
    stages: int
    blocks_an_sm: int


TILES = {64: Tile(128, 2, 3), 128: Tile(64, 2, 2)}  # by head dimension


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    launch_tile(problem, out, executor, lse, TILES[problem.head_dim])


def launch_tile(problem: Problem, out: Array, executor: Executor, lse: Array, tile: Tile) -> None:
    p, (keys, stages, blocks_an_sm) = problem, tile
    kernel = source(
        "stage14_tma_wgmma",
        HEAD_DIM=p.head_dim,
        BLOCK_N=keys,
        STAGES=stages,
        BLOCKS_PER_SM=blocks_an_sm,
        **defines(p),
    )
    mbarriers = 1 + 2 * stages
    executor.launch(
        kernel,
        (-(-p.seq_q // ROWS), p.heads, p.batch),
        128,
        *(tile_map(p.q, ROWS), tile_map(p.k, keys), tile_map(p.v, keys), tile_map(out, STORED_ROWS), lse),
        *scalars(p, p.scale * math.log2(math.e)),
        shared_bytes=2 * p.head_dim * (ROWS + 2 * stages * keys) + 8 * mbarriers,
    )


STAGE = Stage(
    number=14,
    name="tma_wgmma",
    title="One thread moves a tile, four warps multiply it",
    idea="Hopper's copy engine fetches whole tiles, and its tensor core reads them where they land.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    grouped_queries=True,
    outputs=(OUT, LSE),
)
