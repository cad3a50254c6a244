"""Stage 11: multiplying, softmax and loading have warps of their own. `stage11_warp_specialized.cu`."""

import math

from cuda_reference import source
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

ROWS, THREADS = 32, 512  # query rows of a block
KEYS = {64: 64, 128: 32}  # of a K/V tile, by head dimension
VARIANTS = {
    "0": "all warps load, then multiply, exponentiate and multiply in turn: four barriers per tile",
    "1": "one barrier per tile: the roles work on three tiles at once, and what they exchange exists twice",
    "2": "the load warps alone load, 2 bytes at a time",
    "3": "they load 16 bytes at a time",
    "4": "they load by cp.async, two tiles ahead",
    "5": "the multiplying warps keep Q in registers",
}


def memory_map(D: int, phase: int) -> dict[str, int]:
    """Bytes of each part of a block's dynamic shared memory, in the order in which they lie."""
    keys = KEYS[D]
    buffers = 2 if phase >= 1 else 1
    slots = 3 if phase >= 4 else buffers
    return {
        "q": ROWS * (D + 8) * 2,
        "k": slots * keys * (D + 8) * 2,
        "v": slots * keys * (D + 8) * 2,
        "p": buffers * ROWS * (keys + 8) * 2,
        "s": buffers * ROWS * (keys + 8) * 4,
        "factor": buffers * ROWS * 24 * 4,
        "inv_l": ROWS * 4,
    }


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    phase = int(STAGE.fitting(p.head_dim, variant, executor.shared_limit) or "5")
    grid = (-(-p.seq_q // ROWS), p.heads, p.batch)
    arguments = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    kernel = source("stage11_warp_specialized", HEAD_DIM=p.head_dim, PHASE=phase)
    executor.launch(
        kernel, grid, THREADS, *arguments, shared_bytes=sum(memory_map(p.head_dim, phase).values())
    )


STAGE = Stage(
    number=11,
    name="warp_specialized",
    title="Warp specialization",
    idea="Warps of their own multiply, exponentiate and load, on three tiles at once: one barrier per tile.",
    launch=launch,
    language="CUDA C",
    compute_capability=(7, 5),
    grouped_queries=True,
    outputs=(OUT, LSE),
    variants=VARIANTS,
    default="5",
    shared_bytes=lambda head_dim, variant: sum(memory_map(head_dim, int(variant or "5")).values()),
)
