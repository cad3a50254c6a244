"""Stage 16: a cluster shares the keys of 64 rows. The kernel: `stage16_cluster_split.cu`."""

import math
from typing import Any

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import EPILOGUE, OF_MODELS
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, row_tiles_at_most, scalars, strides
from flashcore_numba.stages.parts.tile_maps import batches, batches_limit, input_maps
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning.stage16_tiles import ROWS, Split, split_for


def shared_bytes(head_dim: int, split: Split, norm: bool = False) -> int:
    """Q, the rings, the messages of the merge and of a norm, the mbarriers."""
    warps, others, tiles = 4 * split.warpgroups, split.cluster - 1, 2 * split.warpgroups * split.stages
    left = head_dim // 2 // split.warpgroups  # floats per lane
    sums = 128 * warps * ((split.warpgroups - 1) * left + others * left // split.cluster)
    states, barriers = 128 * warps * (1 + others * (1 + norm)), 8 * (1 + tiles + (2 + norm) * warps)
    return 2 * head_dim * (ROWS + tiles * split.keys) + sums + states + barriers


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    split = split_for(problem, variant, executor.sm_count)
    launch_split(problem, out, executor, lse, split, variant == "overlapped")


def launch_split(
    problem: Problem, out: Array, executor: Executor, lse: Array, split: Split, early: bool = False
) -> None:
    p = problem
    macros: dict[str, Any] = dict(zip(("CLUSTER", "WARPGROUPS", "BLOCK_N", "STAGES"), split, strict=True))
    kernel = source("stage16_cluster_split", HEAD_DIM=p.head_dim, EARLY=early, **macros, **defines(p))
    executor.launch(
        kernel,
        (split.cluster * row_tiles_at_most(p, ROWS), p.heads, p.batch),
        128 * split.warpgroups,
        *(*input_maps(p, ROWS, split.keys), out, lse, *strides(out)),
        *(*scalars(p, p.scale * math.log2(math.e)), *batches(p)),
        shared_bytes=shared_bytes(p.head_dim, split, p.features.norm_weight is not None),
    )


STAGE = Stage(
    number=16,
    name="cluster_split",
    title="A cluster shares the keys of a few rows",
    idea="Blocks that reach each other's shared memory divide the keys of a short problem, and merge there.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    grouped_queries=True,
    features=(*OF_MODELS, *EPILOGUE),
    limit=batches_limit,
    outputs=(OUT, LSE),
    variants={
        "one_block": "the keys divided among two warpgroups of one block",
        "two_blocks": "the keys divided among the warpgroups of two blocks",
        "overlapped": "the same, and begins under the end of the kernel before it",
        "cluster_split": "one or two blocks of one or two warpgroups, by the numbers of rows and keys",
    },
    called="overlapped",
)
