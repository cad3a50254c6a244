"""Stage 08: both products on the tensor core. The kernel: `stage08_wmma_full.cu`."""

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
    executor.launch(source("stage08_wmma_full"), grid, THREADS, *arguments)


STAGE = Stage(
    number=8,
    name="wmma_full",
    title="Both products on the tensor core",
    idea="P V joins Q K^T on the tensor core; O is kept where its rows can be found, in shared memory.",
    launch=launch,
    language="CUDA C",
    head_dims=(64,),
    compute_capability=(7, 5),
    grouped_queries=True,
    outputs=(OUT, LSE),
)
