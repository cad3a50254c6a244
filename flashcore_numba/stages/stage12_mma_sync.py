"""Stage 12: FlashAttention-2 on mma.sync, P and O in registers. The kernel: `stage12_mma_sync.cu`."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import ALL
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import GRID_LIMIT, Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments, defines, row_tiles_at_most
from flashcore_numba.stages.stage import Stage

# By the most columns, largest first: 16-row tiles per warp, warps, keys per K/V tile, blocks per SM, lazy.
TILES: dict[int, dict[str, tuple[int, int, int, int, bool]]] = {
    64: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 128, 1, True), "small": (1, 2, 128, 1, False)},
    128: {"large": (2, 4, 64, 2, True), "medium": (1, 4, 64, 2, True), "small": (1, 2, 64, 2, False)},
    192: {"large": (1, 8, 64, 1, True), "medium": (1, 4, 64, 1, True), "small": (1, 2, 32, 2, False)},
    256: {"large": (1, 8, 64, 1, True), "medium": (1, 4, 64, 1, True), "small": (1, 2, 32, 2, False)},
}
STAGES = 2  # K/V tiles in shared memory; a third was measured and gains nothing


def tiles_for(columns: int) -> dict[str, tuple[int, int, int, int, bool]]:
    """Those of `TILES` for rows of so many columns."""
    return next(tiles for most, tiles in TILES.items() if columns <= most)


def choose(problem: Problem, sm_count: int, room: float = math.inf) -> str:
    """The largest tile that fits `room` bytes of shared memory and fills three quarters of the GPU; twice as
    much where a mask makes work uneven.
    """
    p = problem
    for name, (row_tiles, warps, _, blocks_an_sm, _) in tiles_for(p.columns).items():
        if block_bytes(p.columns, 16 * row_tiles * warps, fitting_keys(p.columns, name, room)) > room:
            continue
        blocks = p.batch * p.heads * -(-p.seq_q // (16 * row_tiles * warps))
        if blocks >= 0.75 * blocks_an_sm * sm_count * (2 if p.causal else 1):
            return name
    return "small"


def block_bytes(columns: int, rows: int, keys: int) -> int:
    """Of shared memory: Q and the K/V tiles, whose rows are `columns` rounded up to a multiple of 64."""
    pitch = -(-columns // 64) * 64
    return 2 * pitch * (rows + 2 * STAGES * keys)


def fitting_keys(columns: int, name: str, room: float) -> int:
    """The keys of a tile, halved until a block fits `room` bytes of shared memory; its threads
    copy up to 4 rows per warp at once.
    """
    row_tiles, warps, keys, *_ = tiles_for(columns)[name]
    while keys > max(16, 4 * warps) and block_bytes(columns, 16 * row_tiles * warps, keys) > room:
        keys //= 2
    return keys


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    name = variant if variant in TILES[64] else choose(p, executor.sm_count, executor.shared_limit)
    row_tiles, warps, _, blocks_an_sm, lazy = tiles_for(p.columns)[name]
    rows, keys = 16 * row_tiles * warps, fitting_keys(p.columns, name, executor.shared_limit)
    kernel = source(
        "stage12_mma_sync",
        HEAD_DIM=p.head_dim,
        ROW_TILES=row_tiles,
        WARPS=warps,
        BLOCK_N=keys,
        STAGES=STAGES,
        BLOCKS_PER_SM=blocks_an_sm,
        LAZY_MAX=lazy,
        **defines(p),
    )
    tiles = row_tiles_at_most(p, rows)
    # An order matters to blocks that wait for a place. The x of a grid runs fastest.
    waiting = tiles * p.heads * p.batch > blocks_an_sm * executor.sm_count
    longest_first = (
        p.causal and not p.features.ragged and waiting and variant != "in_order" and tiles <= GRID_LIMIT
    )
    grid = (p.heads, p.batch, tiles) if longest_first else (tiles, p.heads, p.batch)
    shared_bytes = block_bytes(p.columns, rows, keys)
    arguments = (*cuda_arguments(p, out, lse, p.scale * math.log2(math.e)), np.int32(longest_first))
    executor.launch(kernel, grid, 32 * warps, *arguments, shared_bytes=shared_bytes)


STAGE = Stage(
    number=12,
    name="mma_sync",
    title="Q, P and O in registers",
    idea="A warp keeps its rows in registers from Q to O: what one mma.sync gives, the next one takes.",
    launch=launch,
    language="CUDA C",
    compute_capability=(7, 5),
    elements=ACCEPTED,
    grouped_queries=True,
    head_dims=(64, 128, 32, 80, 96, 192, 256),
    value_dims=True,
    features=ALL,
    outputs=(OUT, LSE),
    variants={
        "large": "128 query rows per block, 32 per warp: for problems whose blocks of this size fill the GPU",
        "medium": "64 query rows per block, 16 per warp",
        "small": "32 query rows per block, 16 per warp: for short problems",
        "in_order": "causal blocks in the order of their rows, not longest first",
        "mma_sync": "the largest of these tiles that fills the GPU",
    },
)
