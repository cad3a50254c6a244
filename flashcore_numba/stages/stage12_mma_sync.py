"""Stage 12: FlashAttention-2 on mma.sync, P and O in registers. The kernel: `stage12_mma_sync.cu`."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import MERGING, OF_MODELS
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import GRID_LIMIT, Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments, defines, row_tiles_at_most
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning.stage12_tiles import (
    STAGES,
    Tile,
    block_bytes,
    tile_for,
)


def launch(
    problem: Problem,
    out: Array,
    executor: Executor,
    lse: Array = None,
    variant: str | None = None,
    macros: Mapping[str, Any] = MappingProxyType({}),
    added: Sequence[Any] = (),
) -> None:
    """macros, added: what a branch defines for the kernel, and the arguments which that adds."""
    p = problem
    tile = tile_for(p, variant, executor.sm_count, executor.shared_limit, searched=not macros)
    run(p, out, executor, lse, tile, variant != "in_order", macros, added)


def run(
    problem: Problem,
    out: Array,
    executor: Executor,
    lse: Array,
    tile: Tile,
    ordered: bool = True,
    macros: Mapping[str, Any] = MappingProxyType({}),
    added: Sequence[Any] = (),
) -> None:
    """Launch any configuration, one of `TILES` or one that a search tries. macros, added: see `launch`."""
    p = problem
    row_tiles, warps, keys, blocks_an_sm, lazy = tile
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
        **defines(p),
        **macros,
    )
    tiles = row_tiles_at_most(p, rows)
    # An order matters to blocks that wait for a place. The x of a grid runs fastest.
    waiting = tiles * p.heads * p.batch > blocks_an_sm * executor.sm_count
    longest_first = p.causal and not p.features.ragged and waiting and ordered and tiles <= GRID_LIMIT
    grid = (p.heads, p.batch, tiles) if longest_first else (tiles, p.heads, p.batch)
    shared_bytes = block_bytes(p.columns, rows, keys)
    given = cuda_arguments(p, out, lse, p.scale * math.log2(math.e))
    arguments = (*given, *added, np.int32(longest_first))
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
    features=(*OF_MODELS, *MERGING),
    outputs=(OUT, LSE),
    variants={
        "large": "128 query rows per block, 32 per warp: for problems whose blocks of this size fill the GPU",
        "medium": "64 query rows per block, 16 per warp",
        "small": "32 query rows per block, 16 per warp: for short problems",
        "in_order": "causal blocks in the order of their rows, not longest first",
        "mma_sync": "the largest of these tiles that fills the GPU",
    },
)
