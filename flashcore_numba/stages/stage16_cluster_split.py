"""Stage 16: a cluster shares the keys of 64 rows. The kernel: `stage16_cluster_split.cu`."""

import math
from typing import NamedTuple

from cuda_reference import source

from .cuda_arguments import scalars, strides, tile_map
from .stage import Stage

ROWS = 64


class Split(NamedTuple):
    """How the keys of 64 rows are divided: blocks of a cluster, warpgroups a block, keys a tile, slots."""

    cluster: int
    warpgroups: int
    keys: int
    stages: int


SPLITS = {  # by head dimension
    64: {
        "four_blocks": Split(4, 2, 64, 2),
        "two_blocks": Split(2, 2, 128, 1),
        "one_block": Split(1, 2, 128, 2),
        "two_warpgroups": Split(2, 1, 64, 2),
        "one_warpgroup": Split(1, 1, 64, 2),
    },
    128: {
        "four_blocks": Split(4, 2, 64, 2),
        "two_blocks": Split(2, 2, 64, 2),
        "one_block": Split(1, 2, 64, 2),
        "two_warpgroups": Split(2, 1, 64, 2),
        "one_warpgroup": Split(1, 1, 64, 2),
    },
}


def choose(problem, sm_count):
    """The name of the split: as many blocks a row tile as the GPU has places for and the keys feed."""
    p = problem
    row_tiles = p.batch * p.heads * -(-p.seq_q // ROWS)
    if p.seq_k <= 64:
        return "one_warpgroup"
    if p.seq_k <= 128 and row_tiles * 2 <= sm_count:
        return "two_warpgroups"  # of two blocks
    if p.seq_k <= 256 or row_tiles * 2 > sm_count:
        return "one_block"
    if row_tiles * 4 <= sm_count and p.seq_k > 1024:
        return "four_blocks"
    return "two_blocks"


def shared_bytes(head_dim, split):
    """Q, the rings, the messages of the merge, the mbarriers."""
    warps, others = 4 * split.warpgroups, split.cluster - 1
    tiles = 2 * split.warpgroups * split.stages
    left = head_dim // 2 // split.warpgroups  # floats a lane
    sums = 128 * warps * ((split.warpgroups - 1) * left + others * left // split.cluster)
    states = 128 * warps * (1 + others)
    return 2 * head_dim * (ROWS + tiles * split.keys) + sums + states + 8 * (1 + tiles + 2 * warps)


def launch(problem, out, executor, lse=None, variant=None):
    p, splits = problem, SPLITS[problem.head_dim]
    split = splits[variant if variant in splits else choose(p, executor.sm_count)]
    launch_split(p, out, executor, lse, split, early=variant != "not_early")


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
    returns_lse=True,
    variants={
        "one_block": "the keys divided among two warpgroups of one block",
        "two_blocks": "the keys divided among the warpgroups of two blocks",
        "not_early": "begins when the kernel before has ended, not under its end",
        "cluster_split": "one, two or four blocks of one or two warpgroups, by the numbers of rows and keys",
    },
)
