"""Attention, the residual and the norm over all heads in one launch. The kernel: `epilogue_norm.cu`."""

import math
from typing import Any, NamedTuple

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.outputs import WRITTEN
from flashcore_numba.branches.epilogue.problem import EpilogueProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines, row_tiles_at_most, scalars
from flashcore_numba.stages.parts.tile_maps import input_maps
from flashcore_numba.stages.stage import Stage

ROWS, WARPGROUPS, WARPS = 64, 2, 8  # of a cluster; of a block
MOST_BLOCKS = 16  # of a cluster; more than 8 is more than CUDA promises of every GPU


class Split(NamedTuple):
    """How the keys of a head are divided: blocks of a head, keys of a tile, slots of a ring."""

    cluster: int
    keys: int
    stages: int


SPLITS = {64: {1: Split(1, 128, 2), 2: Split(2, 128, 2)}, 128: {1: Split(1, 64, 2), 2: Split(2, 128, 1)}}


def choose(problem: EpilogueProblem, variant: str | None) -> Split:
    """The split of a variant: one block per head, or two where the cluster has room for them."""
    p = problem
    blocks = 2 if variant == "two_blocks" and 2 * p.heads <= MOST_BLOCKS else 1
    split = SPLITS[p.head_dim][blocks]
    iterations = -(-p.seq_k // (split.keys * split.cluster * WARPGROUPS))
    return split._replace(stages=min(split.stages, iterations))


def shared_bytes(heads: int, head_dim: int, split: Split) -> int:
    """Q, the rings, the messages of the merge and of the norm, the mbarriers."""
    others, tiles, left = split.cluster - 1, 2 * WARPGROUPS * split.stages, head_dim // 2 // WARPGROUPS
    sums = 128 * WARPS * (left + others * left // split.cluster)
    states, moments = 128 * WARPS * (1 + others), 512 * heads * split.cluster * WARPGROUPS
    barriers = 8 * (1 + tiles + 4 + 2 * WARPS)
    return 2 * head_dim * (ROWS + tiles * split.keys) + sums + states + moments + barriers


def launch(
    problem: EpilogueProblem,
    out: Array,
    executor: Executor,
    summed: Array = None,
    variant: str | None = None,
) -> None:
    """Queue the one kernel: out and summed, [B, 1, S_q, H * D]."""
    p, split = problem, choose(problem, variant)
    macros: dict[str, Any] = {"CLUSTER": split.cluster, "BLOCK_N": split.keys, "STAGES": split.stages}
    macros |= {"HEADS": p.heads, "HEAD_DIM": p.head_dim, "RMS": p.norm == "rms"}
    macros |= {"EARLY": variant == "overlapped", **defines(p)}
    executor.launch(
        source("epilogue_norm", **macros),
        (split.cluster * row_tiles_at_most(p, ROWS), p.heads, p.batch),
        32 * WARPS,
        *(*input_maps(p, ROWS, split.keys), p.residual, p.weight, p.bias, out, summed),
        *(step for x in (p.residual, out, summed) for step in _steps(x)),
        *(*scalars(p, p.scale * math.log2(math.e)), np.float32(p.eps)),
        shared_bytes=shared_bytes(p.heads, p.head_dim, split),
    )


def _steps(array: Array) -> tuple[np.int64, ...]:
    """Elements from one batch and row of [B, 1, S, N] to the next; 0 where there is no array."""
    if array is None:
        return np.int64(0), np.int64(0)
    return tuple(np.int64(array.strides[axis] // array.dtype.itemsize) for axis in (0, 2))


def _limit(problem: EpilogueProblem) -> str | None:
    """The heads of a row are blocks of one cluster."""
    if problem.heads <= MOST_BLOCKS:
        return None
    return f"does not serve {problem.heads} heads, only up to {MOST_BLOCKS}, which a cluster has room for"


STAGE = Stage(
    number=None,
    name="norm",
    title="The norm over all heads in a cluster",
    idea="The heads of a row are blocks of one cluster, which tell each other its moments.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    grouped_queries=True,
    outputs=WRITTEN,
    operation=EPILOGUE,
    limit=_limit,
    variants={
        "two_blocks": "a head has two blocks, where the cluster has room for them",
        "overlapped": "a block per head, and begins under the end of the kernel before it",
        "norm": "a head has one block, whose two warpgroups divide its keys",
    },
    called="overlapped",
)
