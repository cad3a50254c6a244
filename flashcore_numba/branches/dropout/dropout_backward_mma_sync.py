"""The gradients of attention with dropout: a warp owns keys, and draws the mask of the forward pass again."""

from typing import cast

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.backward.mma_sync_tiles import TILES
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.parts import finish, key_tiles, prepare, sizes
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.dropout.operation import DROPOUT_BACKWARD
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines, strides
from flashcore_numba.stages.stage import Stage

TILE = "large"  # of `TILES`, the one whose warps own keys


def launch(
    problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, variant: str | None = None
) -> None:
    """Queue the kernels for a problem whose `forward` is a `DropoutProblem`: dq [B, H, S_q, D], dk and dv
    [B, H_kv, S_k, D]. Where nothing is dropped, they are those of `backward/mma_sync`.
    """
    p, tile = problem, TILES[problem.head_dim][TILE]
    dropout = cast(DropoutProblem, p.forward).dropout
    rows = prepare(p, executor)
    steps = (step for x in (p.q, p.k, p.v, p.dout, dk, dv) for step in strides(x))
    arguments = (p.q, p.k, p.v, p.dout, *rows, dk, dv, *steps, *sizes(p), *dropout.arguments)
    kernel = source(tile.kernel, **tile.macros(p.head_dim), **defines(p.forward), **dropout.macros)
    grid, room = (key_tiles(p, tile.keys), p.kv_heads, p.batch), tile.block_bytes(p.head_dim)
    executor.launch(kernel, grid, 32 * tile.warps, *arguments, np.float32(p.scale), shared_bytes=room)
    finish(p, rows.dq_sum, dq, executor)


STAGE = Stage(
    number=None,
    name="mma_sync",
    title="The same mask, transposed",
    idea="Rows of a warp are keys here, and the eight elements of a draw are still one lane's.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    elements=ACCEPTED,
    grouped_queries=True,
    outputs=GRADIENTS,
    operation=DROPOUT_BACKWARD,
)
