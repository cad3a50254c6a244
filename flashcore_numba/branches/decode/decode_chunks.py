"""Decoding by chunks: a warp for each query row and chunk of its keys, and another that merges the chunks.

One query token has one row per head, far too few for a GPU, so the keys of a request are divided: into chunks
of 64, or of as many as make 32 chunks. The warp of a chunk reads its keys and values where the block table
says that they are: lane j looks up the page of the j-th key of a tile and hands it out by shuffles. As in
stage 03, lane i owns the components 2 i and 2 i + 1 of every 64. The running maximum and sum are those of
stage 05. A chunk leaves its own output and LSE, of which the second kernel makes the whole: a lane for each
chunk,

    LSE = log sum_c exp(LSE_c),  O = sum_c exp(LSE_c - LSE) O_c

How a row is divided follows from its own length alone, so no other request changes a bit of it.
"""

import numpy as np

from flashcore_numba.branches.decode.decode_chunks_attend import (
    FEWEST_KEYS,
    LANES,
    MOST_CHUNKS,
    WARPS,
    chunk_kernel,
)
from flashcore_numba.branches.decode.decode_chunks_merge import merge_kernel
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import FEATURES, LENGTHS, DecodeProblem, own_type_alone
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.stage import Stage


def launch(
    problem: DecodeProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p, sinks = problem, problem.sinks
    rows = (p.batch, p.heads, p.seq_q)
    chunks = min(MOST_CHUNKS, -(-p.capacity // FEWEST_KEYS))
    part_out = executor.empty((*rows, chunks, p.value_dim), np.float32)
    part_lse = executor.empty((*rows, chunks), np.float32)
    lse = executor.empty(rows, np.float32) if lse is None else lse
    given, bounds = (p.q, p.k_pool, p.v_pool, p.block_table, p.lengths), (p.mask.left, p.mask.right)
    numbers = np.float32(p.scale), np.float32(p.softcap)
    kernel = chunk_kernel(p.head_dim, p.value_dim, p.softcap != 0)
    blocks = (p.seq_q * -(-chunks // WARPS), p.heads, p.batch)
    executor.launch(kernel, blocks, (LANES, WARPS), *given, part_out, part_lse, *numbers, *bounds)
    merge = merge_kernel(p.value_dim, sinks is not None)
    sinks = executor.empty((1,), np.float32) if sinks is None else sinks
    blocks = (p.seq_q, p.heads, p.batch)
    room = np.int32(p.capacity)
    executor.launch(merge, blocks, LANES, part_out, part_lse, p.lengths, sinks, out, lse, room, *bounds)


STAGE = Stage(
    number=None,
    name="chunks",
    title="A warp for each chunk of the keys",
    idea="The keys of a row are divided among warps, read through the block table, and merged by their LSE.",
    launch=launch,
    head_dims=(64, 128, 256),
    value_dims=True,
    grouped_queries=True,
    features=(*FEATURES, *LENGTHS),
    outputs=(OUT, LSE),
    limit=own_type_alone,
    operation=DECODE,
)
