"""Stage 15: loading, multiplying and softmax at the same time. The kernel: `stage15_ping_pong.cu`."""

import math
from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.features import ALL
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, row_tiles_at_most, scalars, strides
from flashcore_numba.stages.parts.tile_maps import (
    PANEL,
    batches,
    batches_limit,
    bounded_kv,
    input_maps,
    query_map,
)
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning.stage15_tiles import ROWS, Tile, tile_for

FILE = "stage15_ping_pong"
STORED_ROWS = 16  # of what one warp stores
L2_BYTES = 32 << 20  # of K and V that blocks which run at the same time should share
# By warpgroups that multiply and blocks of an SM: registers of their threads and of the producer's. All
# together are no more than the block starts with, or setmaxnreg would never return.
REGISTERS = {(1, 1): (240, 40), (2, 1): (232, 40), (3, 1): (160, 32), (4, 1): (112, 32), (1, 3): (136, 24)}


def block_bytes(p: Problem, tile: Tile) -> int:
    """Of shared memory: Q and O, or two of Q, the rings of K and V, the mbarriers, the work tile."""
    pitch = PANEL * -(-p.columns // PANEL)
    slots, rows = 1 + tile.two_q, ROWS * tile.consumers
    words = slots * (6 if bounded_kv(p) or tile.two_q else 1) + 1  # a multiple of 8 bytes in all
    return 4 * pitch * (rows + tile.stages * tile.keys) + 8 * (4 * tile.stages + 2 * slots) + 8 * (words // 2)


def run(
    problem: Problem, out: Array, executor: Executor, lse: Array, tile: Tile, longest_first: bool
) -> None:
    """Launch any configuration, measured ones and those that a sweep tries."""
    p, rows = problem, ROWS * tile.consumers
    registers, producer_registers = REGISTERS[tile.consumers, tile.blocks]
    macros: dict[str, Any] = {
        "HEAD_DIM": p.head_dim,
        "CONSUMERS": tile.consumers,
        "BLOCK_N": tile.keys,
        "BLOCKS_PER_SM": tile.blocks,
        "STAGES": tile.stages,
        "OVERLAP": tile.overlap,
        "PING_PONG": tile.turns and tile.consumers > 1,
        "LAZY_MAX": tile.lazy and not p.features.adjusting,
        "POLYNOMIALS": tile.polynomials,
        "Q_CHUNKS": tile.queries,
        "CONSUMER_REGISTERS": registers,
        "PRODUCER_REGISTERS": producer_registers,
        **({"TWO_Q": 1} if tile.two_q else {}),
        **defines(p),
    }
    works = p.batch * p.heads * row_tiles_at_most(p, rows)
    # Longest first, over as many heads at a time as the L2 holds K and V of.
    together = (
        p.group * max(1, L2_BYTES // (2 * (p.head_dim + p.value_dim) * p.seq_k)) if longest_first else 1
    )
    blocks = min(works, executor.sm_count * tile.blocks)
    # Pieces of different length: a block that is done takes the next.
    uneven = longest_first or bounded_kv(p)
    next_work = executor.counter() if uneven and blocks < works else None
    # TMA stores elements; float32 goes straight from the registers.
    stored = (out, *strides(out)) if p.features.float32_out else (query_map(p, out, STORED_ROWS),)
    executor.launch(
        source(FILE, **macros),
        blocks,
        128 * (tile.consumers + 1),
        *(*input_maps(p, ROWS, tile.keys), *stored, lse),
        *scalars(p, p.scale * math.log2(math.e)),
        *batches(p),
        *(np.int32(p.batch * p.heads), np.int32(min(together, p.batch * p.heads)), next_work),
        shared_bytes=block_bytes(p, tile),
    )


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    run(problem, out, executor, lse, *tile_for(problem, variant, executor.sm_count))


STAGE = Stage(
    number=15,
    name="ping_pong",
    title="Softmax under the products",
    idea="A warp loads, and warpgroups take turns: while one multiplies, the others exponentiate.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    head_dims=(64, 128, 32, 80, 96, 192, 256),
    value_dims=True,
    grouped_queries=True,
    features=ALL,
    limit=batches_limit,
    outputs=(OUT, LSE),
    variants={
        "in_sequence": "a warpgroup's products and then its softmax, nothing of what the others add",
        "ping_pong": "turns at the tensor cores, the lazy maximum; at D = 128 also softmax under P V",
    },
)
