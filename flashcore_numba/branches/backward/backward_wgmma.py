"""Backward on Hopper: one tile's products under the next one's. The kernel: `backward_wgmma.cu`."""

from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.parts import finish, key_tiles, padded_rows, prepare, sizes
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.backward.wgmma_tiles import KEYS, Tile, tile_for
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines
from flashcore_numba.stages.parts.tile_maps import (
    batches,
    batches_limit,
    bounded_map,
    input_maps,
    query_map,
    tile_map,
)
from flashcore_numba.stages.stage import Stage

FILE = "backward_wgmma"
ROWS, STORED_KEYS = 64, 16  # of a warpgroup, of what one warp stores
THREADS, WARPS = 384, 8
# Of a thread that multiplies, and of one of warpgroup 0: all together no more than the block starts with.
REGISTERS = (240, 24)
REGISTER_MACROS = "CONSUMER_REGISTERS", "PRODUCER_REGISTERS"
MACROS = ("BLOCK_N", *map(str.upper, Tile._fields[1:-1]), *REGISTER_MACROS)


def run(problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, tile: Tile) -> None:
    """Launch any configuration."""
    p, scratch = problem, prepare(problem, executor)
    macros: dict[str, Any] = dict(zip(MACROS, (*tile[:-1], *REGISTERS), strict=True))
    macros |= {"HEAD_DIM": p.head_dim, **defines(p.forward)}
    turns = None
    if tile.deterministic:
        count = p.batch * p.heads * padded_rows(p) // tile.rows
        turns, clear = executor.empty((count,), np.uint32), source(FILE, "clear_turns", **macros)
        executor.launch(clear, -(-count // THREADS), THREADS, turns, np.int32(count))
    q_map, k_map, v_map = input_maps(p.forward, tile.rows, ROWS)
    stored = bounded_map if p.features.ragged else tile_map
    executor.launch(
        source(FILE, **macros),
        (key_tiles(p, KEYS) * tile.heads_together, -(-p.kv_heads // tile.heads_together), p.batch),
        THREADS,
        *(q_map, query_map(p.forward, p.dout, tile.rows), k_map, v_map),
        *(stored(x, STORED_KEYS) for x in (dk, dv)),
        *(*scratch, *sizes(p), *batches(p.forward), np.int32(tile.heads_together), turns),
        shared_bytes=block_bytes(p.head_dim, tile),
    )
    finish(p, scratch.dq_sum, dq, executor)


def block_bytes(head_dim: int, tile: Tile) -> int:
    """Of K, V and dS of two tiles; of Q, dO, lse2 and delta; of mbarriers and four words."""
    return 4 * KEYS * (head_dim + tile.rows) + tile.stages * (tile.rows * (4 * head_dim + 8) + 24) + 48


def launch(
    problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, variant: str | None = None
) -> None:
    """Queue the kernels that write dq, dk and dv."""
    run(problem, dq, dk, dv, executor, tile_for(problem, variant, executor.sm_count))


STAGE = Stage(
    number=None,
    name="wgmma",
    title="dQ one tile late",
    idea="Two warpgroups own keys and meet for dQ alone, multiplied under the next tile's exponentials.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    grouped_queries=True,
    features=("window", "sinks", "seqused_k", "cu_seqlens_q", "cu_seqlens_k"),
    limit=batches_limit,
    outputs=GRADIENTS,
    operation=BACKWARD,
    variants={
        "wgmma": "blocks add to dQ when they have some of it, in any order",
        "deterministic": "blocks add to a tile of dQ in turn, and every run gives the same bits",
    },
)
