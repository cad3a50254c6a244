"""Stage 12: FlashAttention-2 on mma.sync, P and O in registers. The kernel: `stage12_mma_sync.cu`."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import GRID_LIMIT
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments
from flashcore_numba.stages.stage import Stage

# By head dimension, largest tile first: 16-row tiles a warp, warps, keys a K/V tile, blocks an SM, lazy max.
TILES = {
    64: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 128, 1, True), "small": (1, 2, 128, 1, False)},
    128: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 64, 2, True), "small": (1, 2, 64, 2, False)},
}
STAGES = 2  # K/V tiles in shared memory; a third was measured and gains nothing


def choose(problem, sm_count):
    """The largest tile that fills three quarters of the GPU; twice as much where a mask makes work uneven."""
    p = problem
    for name, (row_tiles, warps, _, blocks_an_sm, _) in TILES[p.head_dim].items():
        blocks = p.batch * p.heads * -(-p.seq_q // (16 * row_tiles * warps))
        if blocks >= 0.75 * blocks_an_sm * sm_count * (2 if p.causal else 1):
            return name
    return "small"


def launch(problem, out, executor, lse=None, variant=None):
    p = problem
    name = variant if variant in TILES[p.head_dim] else choose(p, executor.sm_count)
    row_tiles, warps, keys, blocks_an_sm, lazy = TILES[p.head_dim][name]
    rows = 16 * row_tiles * warps
    kernel = source(
        "stage12_mma_sync",
        HEAD_DIM=p.head_dim,
        ROW_TILES=row_tiles,
        WARPS=warps,
        BLOCK_N=keys,
        STAGES=STAGES,
        BLOCKS_PER_SM=blocks_an_sm,
        LAZY_MAX=lazy,
    )
    tiles = -(-p.seq_q // rows)
    # An order matters to blocks that wait for a place. The x of a grid runs fastest.
    waiting = tiles * p.heads * p.batch > blocks_an_sm * executor.sm_count
    longest_first = p.causal and waiting and variant != "in_order" and tiles <= GRID_LIMIT
    grid = (p.heads, p.batch, tiles) if longest_first else (tiles, p.heads, p.batch)
    shared_bytes = 2 * p.head_dim * (rows + 2 * STAGES * keys)
    arguments = (*cuda_arguments(p, out, lse, p.scale * math.log2(math.e)), np.int32(longest_first))
    executor.launch(kernel, grid, 32 * warps, *arguments, shared_bytes=shared_bytes)


STAGE = Stage(
    number=12,
    name="mma_sync",
    title="Q, P and O in registers",
    idea="A warp keeps its rows in registers from Q to O: what one mma.sync gives, the next one takes.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    grouped_queries=True,
    outputs=(OUT, LSE),
    variants={
        "large": "128 query rows a block, 32 a warp: for problems that fill the GPU so",
        "medium": "64 query rows a block, 16 a warp",
        "small": "32 query rows a block, 16 a warp: for short problems",
        "in_order": "causal blocks in the order of their rows, not longest first",
        "mma_sync": "the largest of these tiles that fills the GPU",
    },
)
