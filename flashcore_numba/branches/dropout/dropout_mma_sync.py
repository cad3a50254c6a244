"""Stage 12, its kernel, with dropout: a lane draws for eight elements at once, all of them its own."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.dropout.operation import DROPOUT
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import GRID_LIMIT
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments, defines, row_tiles_at_most
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning.stage12_tiles import (
    STAGES,
    TILES,
    block_bytes,
    choose,
    fitting_keys,
    tiles_for,
)


def launch(
    problem: DropoutProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the kernel; where nothing is dropped, that of stage 12."""
    p, room = problem, executor.shared_limit
    name = variant if variant in TILES[64] else choose(p, executor.sm_count, room)
    row_tiles, warps, _, blocks_an_sm, lazy = tiles_for(p.columns)[name]
    rows, keys = 16 * row_tiles * warps, fitting_keys(p.columns, name, room)
    kernel = source(
        "stage12_mma_sync",
        HEAD_DIM=p.head_dim,
        ROW_TILES=row_tiles,
        WARPS=warps,
        BLOCK_N=keys,
        STAGES=STAGES,
        BLOCKS_PER_SM=blocks_an_sm,
        LAZY_MAX=lazy,
        **defines(p),
        **p.dropout.macros,
    )
    tiles = row_tiles_at_most(p, rows)
    waiting = tiles * p.heads * p.batch > blocks_an_sm * executor.sm_count
    longest_first = p.causal and waiting and tiles <= GRID_LIMIT
    grid = (p.heads, p.batch, tiles) if longest_first else (tiles, p.heads, p.batch)
    given = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    executor.launch(
        kernel,
        grid,
        32 * warps,
        *(*given, *p.dropout.arguments, np.int32(longest_first)),
        shared_bytes=block_bytes(p.columns, rows, keys),
    )


STAGE = Stage(
    number=None,
    name="mma_sync",
    title="Dropout where P is packed",
    idea="What decides on an element is drawn from its place: nothing is stored, and any kernel can redo it.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    elements=ACCEPTED,
    grouped_queries=True,
    outputs=(OUT, LSE),
    operation=DROPOUT,
    variants={
        "large": "128 query rows per block, 32 per warp",
        "medium": "64 query rows per block, 16 per warp",
        "small": "32 query rows per block, 16 per warp: for short problems",
        "mma_sync": "the largest of these tiles that fills the GPU",
    },
)
