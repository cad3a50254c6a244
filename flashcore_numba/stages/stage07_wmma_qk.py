"""Stage 07: the tensor core multiplies Q by K; the rest stays scalar. The kernel: `stage07_wmma_qk.cu`."""

import math

from cuda_reference import source
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

ROWS, KEYS, THREADS = 32, 32, 256  # query rows of a block, keys of a K/V tile


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    arguments = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    executor.launch(source("stage07_wmma_qk"), grid, THREADS, *arguments)


STAGE = Stage(
    number=7,
    name="wmma_qk",
    title="Half on the tensor core",
    idea="The tensor core computes Q K^T; storing and loading S and a scalar P V set the time.",
    launch=launch,
    language="CUDA C",
    head_dims=(64,),
    compute_capability=(7, 5),
    grouped_queries=True,
    outputs=(OUT, LSE),
)
