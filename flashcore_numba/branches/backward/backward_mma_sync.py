"""The backward pass on mma.sync: a warp owns keys, or, in the split kernel, has a part of each product."""

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.backward.mma_sync_tiles import Tile, tile_for
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.parts import finish, key_tiles, prepare, sizes
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import OF_MODELS
from flashcore_numba.stages.parts.cuda_arguments import defines, strides
from flashcore_numba.stages.stage import Stage


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
    tile = tile_for(problem, variant, executor.sm_count, executor.shared_limit)
    run(problem, dq, dk, dv, executor, tile)


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
