"""Stage 10: one to four K/V tiles in flight. The kernel: `stage10_pipeline.cu`."""

import math

from cuda_reference import source
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

ROWS, KEYS, THREADS = 48, 64, 384  # query rows of a block, keys of a K/V tile
VARIANTS = {
    "1": "one stage: a tile is fetched, then multiplied",
    "2": "two stages: the next tile is fetched while one is multiplied",
    "3": "three stages: two tiles are fetched ahead",
    "4": "four stages: three tiles are fetched ahead",
}


def memory_map(D: int, stages: int) -> dict[str, int]:
    """Bytes of each part of a block's dynamic shared memory, in the order in which they lie."""
    return {
        "q": ROWS * (D + 8) * 2,
        "k": stages * KEYS * (D + 8) * 2,
        "v": stages * KEYS * (D + 8) * 2,
        "s": ROWS * (KEYS + 8) * 4,
        "p": ROWS * (KEYS + 8) * 2,
        "o": ROWS * (D + 8) * 4,
    }


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    stages = int(STAGE.fitting(p.head_dim, variant, executor.shared_limit) or "2")
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    arguments = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    kernel = source("stage10_pipeline", HEAD_DIM=p.head_dim, STAGES=stages)
    shared_bytes = sum(memory_map(p.head_dim, stages).values())
    executor.launch(kernel, grid, THREADS, *arguments, shared_bytes=shared_bytes)


STAGE = Stage(
    number=10,
    name="pipeline",
    title="One to four stages in flight",
    idea="A ring of K/V buffers: each further one gives a copy one more tile of time, until it has enough.",
    launch=launch,
    language="CUDA C",
    compute_capability=(7, 5),
    grouped_queries=True,
    outputs=(OUT, LSE),
    variants=VARIANTS,
    default="2",
    shared_bytes=lambda head_dim, variant: sum(memory_map(head_dim, int(variant or "2")).values()),
)
