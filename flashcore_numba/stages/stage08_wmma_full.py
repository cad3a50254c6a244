"""Stage 08: both products on the tensor core. The kernel: `stage08_wmma_full.cu`."""

import math

from cuda_reference import source
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

ROWS, KEYS, THREADS = 32, 32, 256  # query rows of a block, keys of a K/V tile


def launch(problem, out, executor, lse=None, variant=None):
    p = problem
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    arguments = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    executor.launch(source("stage08_wmma_full"), grid, THREADS, *arguments)


STAGE = Stage(
    number=8,
    name="wmma_full",
    title="Both products on the tensor core",
    idea="P V joins Q K^T on the tensor core; O must lie where a row of it can be found, in shared memory.",
    launch=launch,
    language="CUDA C",
    head_dims=(64,),
    compute_capability=(8, 0),
    grouped_queries=True,
    outputs=(OUT, LSE),
)
