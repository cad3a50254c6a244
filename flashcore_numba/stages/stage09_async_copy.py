"""Stage 09: the next K/V tile comes while this one is multiplied. The kernel: `stage09_async_copy.cu`."""

import math

from cuda_reference import source
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

ROWS, KEYS, THREADS, BUFFERS = 48, 32, 384, 2  # query rows of a block, keys of a K/V tile


def memory_map(D: int) -> dict[str, int]:
    """Bytes of each part of a block's dynamic shared memory, in the order in which they lie."""
    return {
        "q": ROWS * D * 2,
        "k": BUFFERS * KEYS * (D + 8) * 2,
        "v": BUFFERS * KEYS * (D + 8) * 2,
        "s": ROWS * (KEYS + 16) * 4,
        "p": ROWS * KEYS * 2,
        "m": ROWS * 4,
        "l": ROWS * 4,
        "o": ROWS * D * 4,
    }


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    arguments = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    kernel = source("stage09_async_copy", HEAD_DIM=p.head_dim)
    executor.launch(kernel, grid, THREADS, *arguments, shared_bytes=sum(memory_map(p.head_dim).values()))


STAGE = Stage(
    number=9,
    name="async_copy",
    title="Asynchronous copies",
    idea="cp.async fills one pair of K/V buffers while the other is multiplied; one memory map holds it all.",
    launch=launch,
    language="CUDA C",
    compute_capability=(7, 5),
    grouped_queries=True,
    outputs=(OUT, LSE),
    shared_bytes=lambda head_dim, variant: sum(memory_map(head_dim).values()),
)
