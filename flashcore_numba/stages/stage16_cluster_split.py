"""Stage 16: a cluster shares the keys of 64 rows. The kernel: `stage16_cluster_split.cu`."""

import math
from math import inf
from typing import Any, NamedTuple

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import EPILOGUE, OF_MODELS
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, row_tiles_at_most, scalars, strides
from flashcore_numba.stages.parts.tile_maps import batches, batches_limit, input_maps
from flashcore_numba.stages.stage import Stage

ROWS = 64


class Split(NamedTuple):
    """How keys are divided: blocks of a cluster, warpgroups of a block, keys of a tile, slots of a ring."""

    cluster: int
    warpgroups: int
    keys: int
    stages: int


ONE_BLOCK = {64: Split(1, 2, 128, 2), 128: Split(1, 2, 64, 2)}  # by head dimension
TWO_BLOCKS = {64: Split(2, 2, 128, 2), 128: Split(2, 2, 128, 1)}
FORCED = {"one_block": ONE_BLOCK, "two_blocks": TWO_BLOCKS}

# The fastest on an H200, by head dimension, for up to so many keys. FEW_ROWS: there are SMs for two blocks
# per row tile. MANY_ROWS: with more keys than hide it, two blocks of one warpgroup share an SM out of step.
# MORE_ROWS, one to three row tiles per SM: smaller blocks are all on the GPU at once, or in fewer rounds.
FEW_ROWS = {
    64: {64: Split(1, 1, 64, 1), 128: Split(2, 1, 64, 1), 256: ONE_BLOCK[64], inf: TWO_BLOCKS[64]},
    128: {64: Split(1, 1, 64, 1), 128: Split(2, 1, 64, 1), 256: Split(2, 2, 64, 1), inf: TWO_BLOCKS[128]},
}
MANY_ROWS = {
    64: {128: Split(1, 1, 64, 2), 1023: ONE_BLOCK[64], inf: Split(2, 1, 128, 2)},
    128: {64: Split(1, 1, 64, 1), 256: Split(1, 2, 128, 1), 1023: ONE_BLOCK[128], inf: Split(2, 1, 64, 2)},
}
MORE_ROWS = {
    64: {
        128: Split(1, 1, 64, 2),
        512: ONE_BLOCK[64],
        640: Split(2, 1, 160, 1),
        1024: Split(2, 1, 64, 2),
        inf: Split(2, 1, 128, 2),
    },
    128: MANY_ROWS[128],
}
TABLES = {0.5: FEW_ROWS, 1: MANY_ROWS, 3: MORE_ROWS, inf: MANY_ROWS}  # for so many row tiles per SM at most


def choose(problem: Problem, variant: str | None, sm_count: int) -> Split:
    """The split that a variant names or the table has, with no more slots than there are iterations."""
    row_tiles = problem.batch * problem.heads * -(-problem.seq_q // ROWS)
    table = next(table for most, table in TABLES.items() if row_tiles <= most * sm_count)
    fitting = next(split for most, split in table[problem.head_dim].items() if problem.seq_k <= most)
    split = FORCED[variant][problem.head_dim] if variant in FORCED else fitting
    iterations = -(-problem.seq_k // (split.keys * split.cluster * split.warpgroups))
    return split._replace(stages=min(split.stages, iterations))


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
    split = choose(problem, variant, executor.sm_count)
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
