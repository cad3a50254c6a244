"""Stage 16: a cluster shares the keys of 64 rows. The kernel: `stage16_cluster_split.cu`."""

import math
from typing import NamedTuple

from cuda_reference import source
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.parts.cuda_arguments import scalars, strides, tile_map
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

# The fastest on an H200, by head dimension, for up to so many keys. FEW_ROWS: there are SMs for two blocks a
# row tile. MANY_ROWS: with more keys than hide it, two blocks of one warpgroup share an SM out of step.
FEW_ROWS = {
    64: {64: Split(1, 1, 64, 1), 128: Split(2, 1, 64, 1), 256: ONE_BLOCK[64], math.inf: TWO_BLOCKS[64]},
    128: {
        64: Split(1, 1, 64, 1),
        128: Split(2, 1, 64, 1),
        256: Split(2, 2, 64, 1),
        math.inf: TWO_BLOCKS[128],
    },
}
MANY_ROWS = {
    64: {128: Split(1, 1, 64, 2), 1023: ONE_BLOCK[64], math.inf: Split(2, 1, 128, 2)},
    128: {
        64: Split(1, 1, 64, 1),
        256: Split(1, 2, 128, 1),
        1023: ONE_BLOCK[128],
        math.inf: Split(2, 1, 64, 2),
    },
}


def choose(problem, variant, sm_count):
    """The split that a variant names or the table has, with no more slots than there are turns."""
    p = problem
    few = 2 * p.batch * p.heads * -(-p.seq_q // ROWS) <= sm_count
    rows = (FEW_ROWS if few else MANY_ROWS)[p.head_dim]
    split = next(split for most, split in rows.items() if p.seq_k <= most)
    split = FORCED[variant][p.head_dim] if variant in FORCED else split
    turns = -(-p.seq_k // (split.keys * split.cluster * split.warpgroups))
    return split._replace(stages=min(split.stages, turns))


def shared_bytes(head_dim, split):
    """Q, the rings, the messages of the merge, the mbarriers."""
    warps, others = 4 * split.warpgroups, split.cluster - 1
    tiles = 2 * split.warpgroups * split.stages
    left = head_dim // 2 // split.warpgroups  # floats a lane
    sums = 128 * warps * ((split.warpgroups - 1) * left + others * left // split.cluster)
    states = 128 * warps * (1 + others)
    return 2 * head_dim * (ROWS + tiles * split.keys) + sums + states + 8 * (1 + tiles + 2 * warps)


def launch(problem, out, executor, lse=None, variant=None):
    split = choose(problem, variant, executor.sm_count)
    launch_split(problem, out, executor, lse, split, early=variant != "not_early")


def launch_split(problem, out, executor, lse, split, early=True):
    p = problem
    kernel = source(
        "stage16_cluster_split",
        HEAD_DIM=p.head_dim,
        CLUSTER=split.cluster,
        WARPGROUPS=split.warpgroups,
        BLOCK_N=split.keys,
        STAGES=split.stages,
        EARLY=early,
    )
    executor.launch(
        kernel,
        (split.cluster * -(-p.seq_q // ROWS), p.heads, p.batch),
        128 * split.warpgroups,
        *(tile_map(p.q, ROWS), tile_map(p.k, split.keys), tile_map(p.v, split.keys), out, lse),
        *strides(out),
        *scalars(p, p.scale * math.log2(math.e)),
        shared_bytes=shared_bytes(p.head_dim, split),
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
    grouped_queries=True,
    outputs=(OUT, LSE),
    variants={
        "one_block": "the keys divided among two warpgroups of one block",
        "two_blocks": "the keys divided among the warpgroups of two blocks",
        "not_early": "begins when the kernel before has ended, not under its end",
        "cluster_split": "one or two blocks of one or two warpgroups, by the numbers of rows and keys",
    },
)
