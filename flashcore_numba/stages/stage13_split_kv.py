"""Stage 13: the keys too are divided, among warps and among blocks. The kernels: `stage13_split_kv.cu`."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import ALL
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import GRID_LIMIT, Problem
from flashcore_numba.stages.parts.cuda_arguments import (
    cuda_arguments,
    defines,
    feature_arguments,
    row_tiles_at_most,
    strides,
)
from flashcore_numba.stages.stage import Stage

DEFINES = ("ROW_TILES", "ROW_WARPS", "KEY_WARPS", "BLOCK_N", "BLOCKS_PER_SM", "LAZY_MAX")
# 16-row tiles per warp, warps along rows and along keys, keys per warp and step, blocks per SM, lazy maximum.
LARGE = (2, 4, 1, 64, 2, True)
TILES = {  # by head dimension
    64: {"large": LARGE, "medium": (1, 4, 2, 64, 1, True), "small": (1, 2, 2, 64, 1, False)},
    128: {"large": LARGE, "medium": (1, 4, 2, 32, 1, True), "small": (1, 2, 2, 32, 1, False)},
}
STAGES = 2
KEYS_WORTH_A_SPLIT = 512  # a large tile with fewer keys spends too much of its time starting and merging
MERGE_THREADS = 128


def choose(problem: Problem, sm_count: int) -> tuple[str, int]:
    """(tile, splits): many keys of few rows are divided among blocks, few keys among smaller tiles."""
    p = problem
    packed = p.sequence_count // p.batch
    rows, keys = p.seq_q // packed, p.seq_k // packed  # of a sequence, on average
    if p.mask.left >= 0 and p.mask.right >= 0:
        keys = min(keys, p.mask.left + 1 + p.mask.right)

    def blocks(name: str) -> int:
        row_tiles, row_warps, *_ = TILES[p.head_dim][name]
        return p.batch * p.heads * row_tiles_at_most(p, 16 * row_tiles * row_warps)

    places = TILES[p.head_dim]["large"][4] * sm_count
    if blocks("large") >= 0.75 * places:
        return "large", 1
    splits = places // blocks("large")
    if rows >= 128 and splits > 1 and keys >= splits * KEYS_WORTH_A_SPLIT:
        return "large", splits
    if blocks("medium") >= 0.75 * sm_count * (2 if p.causal else 1):
        return "medium", 1
    splits = min(sm_count // blocks("small"), keys // KEYS_WORTH_A_SPLIT)
    return "small", max(1, splits)


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p, D = problem, problem.head_dim
    tile, splits = choose(p, executor.sm_count)
    splits = {"unsplit": 1, "two_splits": 2}.get(variant or "", splits)
    persistent = variant == "persistent"
    row_tiles, row_warps, key_warps, keys, blocks_an_sm, _ = TILES[D][tile]
    rows, step, threads = 16 * row_tiles * row_warps, key_warps * keys, 32 * row_warps * key_warps
    macros = dict(zip(DEFINES, TILES[D][tile], strict=True)) | defines(p)
    macros |= {"HEAD_DIM": D, "STAGES": STAGES, "PERSISTENT": persistent}
    tiles = row_tiles_at_most(p, rows) * splits
    # An order matters to blocks that wait for a place. The x of a grid runs fastest.
    places, work = blocks_an_sm * executor.sm_count, tiles * p.heads * p.batch
    ordered = p.causal and not p.features.ragged and variant != "in_order"
    longest_first = ordered and work > places and tiles <= GRID_LIMIT
    grid = (p.heads, p.batch, tiles) if longest_first else (tiles, p.heads, p.batch)
    if persistent:
        grid = (min(places, -(-work // 2)), 1, 1)
    parts, part_lse = None, None
    if splits > 1:
        parts = executor.empty((splits, p.batch, p.heads, p.seq_q, D), np.float32)
        part_lse = executor.empty((splits, p.batch, p.heads, p.seq_q), np.float32)
    executor.launch(
        source("stage13_split_kv", **macros),
        grid,
        threads,
        *cuda_arguments(p, out, lse, p.scale * math.log2(math.e)),
        *(np.int32(longest_first), np.int32(p.batch), np.int32(splits), parts, part_lse),
        shared_bytes=max(2 * D * (rows + 2 * STAGES * step), 4 * key_warps * rows * (D + 8)),
    )
    if splits > 1:
        merge_grid = (-(-p.seq_q // (MERGE_THREADS * 8 // D)), p.heads, p.batch)
        executor.launch(
            source("stage13_split_kv", "merge_splits", **macros),
            merge_grid,
            MERGE_THREADS,
            *(parts, part_lse, out, lse),
            *(*strides(out), np.int32(p.seq_q), np.int32(splits), *feature_arguments(p)),
        )


STAGE = Stage(
    number=13,
    name="split_kv",
    title="The keys are divided too",
    idea="A short problem has too few rows for a GPU: warps and blocks also share the keys, and merge.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    elements=ACCEPTED,
    grouped_queries=True,
    features=ALL,
    outputs=(OUT, LSE),
    variants={
        "unsplit": "the same tiles, without splits over blocks",
        "two_splits": "two splits over blocks, however few the keys",
        "in_order": "causal blocks in the order of their rows, not longest first",
        "split_kv": "the keys divided among warps and blocks, as the shape asks for",
        "persistent": "at most as many blocks as the GPU holds, each taking two or more work tiles",
    },
)
