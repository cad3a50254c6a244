"""Stage 13: the keys too are divided, among warps and among blocks. The kernels: `stage13_split_kv.cu`."""

import math

import numpy as np

from cuda_reference import source

from .cuda_arguments import cuda_arguments, strides
from .stage import Stage

# By head dimension: 16-row tiles a warp, warps along rows and along keys, keys a warp and step, blocks an SM.
TILES = {
    64: {"large": (2, 4, 1, 64, 2), "medium": (1, 4, 2, 64, 1), "small": (1, 2, 4, 32, 1)},
    128: {"large": (2, 4, 1, 64, 2), "medium": (1, 4, 2, 32, 1), "small": (1, 2, 2, 32, 1)},
}
STAGES = 2
KEYS_WORTH_A_SPLIT = 512  # a large tile with fewer keys spends too much of its time starting and merging
MERGE_THREADS = 128


def choose(problem, sm_count):
    """(tile, splits): few rows are divided among warps first, and many keys among blocks, to fill the GPU."""
    p = problem

    def blocks(name):
        row_tiles, row_warps, *_ = TILES[p.head_dim][name]
        return p.batch * p.heads * -(-p.seq_q // (16 * row_tiles * row_warps))

    wanted = max(1, 2 * sm_count // blocks("large"))
    if p.seq_q >= 128 and wanted <= max(1, p.seq_k // KEYS_WORTH_A_SPLIT):
        return "large", wanted
    if blocks("medium") >= 0.75 * sm_count:
        return "medium", 1
    _, _, key_warps, keys, _ = TILES[p.head_dim]["small"]
    steps = -(-p.seq_k // (key_warps * keys))
    return "small", max(1, min(sm_count // blocks("small"), steps // 4))


def launch(problem, out, executor, lse=None, variant=None):
    p, D = problem, problem.head_dim
    tile, splits = choose(p, executor.sm_count)
    if variant == "unsplit":
        splits = 1
    persistent = variant == "persistent"
    row_tiles, row_warps, key_warps, keys, blocks_an_sm = TILES[D][tile]
    rows, step, threads = 16 * row_tiles * row_warps, key_warps * keys, 32 * row_warps * key_warps
    defines = {
        "HEAD_DIM": D,
        "ROW_TILES": row_tiles,
        "ROW_WARPS": row_warps,
        "KEY_WARPS": key_warps,
        "BLOCK_N": keys,
        "STAGES": STAGES,
        "BLOCKS_PER_SM": blocks_an_sm,
        "PERSISTENT": persistent,
    }
    tiles = -(-p.seq_q // rows) * splits
    grid = (p.heads, p.batch, tiles) if p.causal else (tiles, p.heads, p.batch)
    if persistent:
        grid = (min(blocks_an_sm * executor.sm_count, tiles * p.heads * p.batch), 1, 1)
    shared_bytes = max(2 * D * (rows + 2 * STAGES * step), 4 * key_warps * rows * (D + 8))
    parts, part_lse = np.uint64(0), np.uint64(0)  # null pointers
    if splits > 1:
        parts = executor.empty((splits, p.batch, p.heads, p.seq_q, D), np.float32)
        part_lse = executor.empty((splits, p.batch, p.heads, p.seq_q), np.float32)
    executor.launch(
        source("stage13_split_kv", **defines),
        grid,
        threads,
        *cuda_arguments(p, out, lse, p.scale * math.log2(math.e)),
        np.int32(p.batch),
        np.int32(splits),
        parts,
        part_lse,
        shared_bytes=shared_bytes,
    )
    if splits > 1:
        merge_grid = (-(-p.seq_q // (MERGE_THREADS * 8 // D)), p.heads, p.batch)
        executor.launch(
            source("stage13_split_kv", "merge_splits", **defines),
            merge_grid,
            MERGE_THREADS,
            *(parts, part_lse, out, np.uint64(0) if lse is None else lse),
            *strides(out),
            np.int32(p.seq_q),
            np.int32(splits),
        )


STAGE = Stage(
    number=13,
    name="split_kv",
    title="The keys are divided too",
    idea="A short problem has too few rows for a GPU: warps and blocks also share the keys, and merge.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    grouped_queries=True,
    returns_lse=True,
    variants={
        "unsplit": "the same tiles, without splits over blocks",
        "persistent": "as many blocks as the GPU holds at once, each taking several pieces of the work",
    },
)
