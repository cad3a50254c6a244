"""Stage 13: the keys too are divided, among warps and among blocks. The kernels: `stage13_split_kv.cu`."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import OF_MODELS
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
from flashcore_numba.stages.tuning.stage13_tiles import STAGES, Tile, block_bytes, tile_for

DEFINES = ("ROW_TILES", "ROW_WARPS", "KEY_WARPS", "BLOCK_N", "BLOCKS_PER_SM", "LAZY_MAX")
MERGE_THREADS = 128


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    run(problem, out, executor, lse, *tile_for(problem, variant, executor.sm_count), variant)


def run(
    problem: Problem,
    out: Array,
    executor: Executor,
    lse: Array,
    tile: Tile,
    splits: int,
    variant: str | None = None,
) -> None:
    """Launch any configuration, those of `TILES` and those that a search tries."""
    p, D = problem, problem.head_dim
    persistent = variant == "persistent"
    row_tiles, row_warps, key_warps, keys, blocks_an_sm, _ = tile
    rows, threads = 16 * row_tiles * row_warps, 32 * row_warps * key_warps
    macros = dict(zip(DEFINES, tile, strict=True)) | defines(p)
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
        shared_bytes=block_bytes(D, rows, key_warps, keys),
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
    features=OF_MODELS,
    outputs=(OUT, LSE),
    variants={
        "unsplit": "the same tiles, without splits over blocks",
        "two_splits": "two splits over blocks, however few the keys",
        "in_order": "causal blocks in the order of their rows, not longest first",
        "split_kv": "the keys divided among warps and blocks, as the shape asks for",
        "persistent": "at most as many blocks as the GPU holds, each taking two or more work tiles",
    },
)
