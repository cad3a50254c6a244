"""What kernels of the backward pass share: padded rows, the sums of dQ, and the launches around them.

`cuda_reference/include/gradient_rows.cuh` says what the scratch arrays hold.
"""

import math
from typing import NamedTuple

import numpy as np

from cuda_reference import Source, source
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines, row_tiles_at_most, scalars, strides

ROW_PIECE, SUM_ROWS, THREADS = 128, 64, 256  # as in gradient_rows.cuh and backward_rows.cu


class Rows(NamedTuple):
    """Scratch memory of the query rows: lse2, delta float32 [B, H, padded rows]; dq_sum float32
    [B, H, padded rows / 64, D / 8, 128, 4].
    """

    lse2: Array
    delta: Array
    dq_sum: Array


def padded_rows(problem: BackwardProblem) -> int:
    """Of one head: S_q up to a multiple of 128; packed sequences each begin at one."""
    p = problem
    padding = p.sequence_count * ROW_PIECE if p.features.ragged else ROW_PIECE - 1
    return (p.seq_q + padding) // ROW_PIECE * ROW_PIECE


def key_tiles(problem: BackwardProblem, keys: int) -> int:
    """Tiles of so many keys in a head: of packed sequences, as many as any lengths could make."""
    tails = problem.sequence_count if problem.features.ragged else 1
    return (problem.seq_k + tails * (keys - 1)) // keys


def prepare(problem: BackwardProblem, executor: Executor) -> Rows:
    """Queue the kernel that makes lse2 and delta of the rows, and zeros of dq_sum."""
    p, rows = problem, padded_rows(problem)
    scratch = Rows(
        executor.empty((p.batch, p.heads, rows), np.float32),
        executor.empty((p.batch, p.heads, rows), np.float32),
        executor.empty((p.batch, p.heads, rows // SUM_ROWS, p.head_dim // 8, 128, 4), np.float32),
    )
    given = (p.out, p.dout, p.lse, p.dlse)
    steps = (*strides(p.out), *strides(p.dout))
    executor.launch(_kernel(p, "prepare"), _grid(p), THREADS, *given, *scratch, *steps, *sizes(p))
    return scratch


def finish(problem: BackwardProblem, dq_sum: Array, dq: Array, executor: Executor) -> None:
    """Queue the kernel that makes dq of its sums."""
    p = problem
    steps, scale = strides(dq), np.float32(p.scale)
    executor.launch(_kernel(p, "finish"), _grid(p), THREADS, dq_sum, dq, *steps, *sizes(p), scale)


def sizes(problem: BackwardProblem) -> tuple:
    """The arguments for `SIZES`, with the scale in units of log2."""
    return scalars(problem.forward, problem.scale * math.log2(math.e))


def _kernel(problem: BackwardProblem, entry: str) -> Source:
    return source("backward_rows", entry, HEAD_DIM=problem.head_dim, **defines(problem.forward))


def _grid(problem: BackwardProblem) -> tuple[int, int, int]:
    pieces = row_tiles_at_most(problem.forward, ROW_PIECE)
    return pieces * ROW_PIECE // SUM_ROWS, problem.heads, problem.batch
