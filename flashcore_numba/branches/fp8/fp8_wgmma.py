"""Both products in e4m3 on Hopper, and their sums in float32. The kernel: `fp8_wgmma.cu`."""

import math
from typing import Any

import numpy as np

from cuda_reference import TensorMap, source
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.fp8.quantise import TILE, quantise
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, scalars
from flashcore_numba.stages.parts.tile_maps import tile_map
from flashcore_numba.stages.stage import Stage

FILE = "fp8_wgmma"
KEYS, ROWS, STORED_ROWS = TILE, 64, 16  # of a tile, of a warpgroup, of what one warp stores
CONSUMERS, STAGES = 3, 4  # warpgroups that multiply, slots of each ring
L2_BYTES = 32 << 20  # of K and V that blocks which run at the same time should share
# Of a thread that multiplies and of the producer's: all together no more than the block starts with.
REGISTERS = (160, 32)


def block_bytes(head_dim: int) -> int:
    """Of shared memory: Q in bytes, O in two-byte elements, the rings of K and V, mbarriers, the number."""
    rows = 3 * CONSUMERS * ROWS + 2 * STAGES * KEYS
    return rows * head_dim + 8 * (4 * STAGES + 2) + 8


def longest_first(problem: Problem, sm_count: int) -> bool:
    """Whether work tiles differ in length and a block that has finished draws the next one."""
    return problem.causal and works(problem) > sm_count


def works(problem: Problem) -> int:
    """Work tiles: the query rows of a block, of every head."""
    return problem.batch * problem.heads * -(-problem.seq_q // (CONSUMERS * ROWS))


def launch(
    problem: Problem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the kernels that quantise, and the one that attends to what they wrote."""
    p, d = problem, problem.head_dim
    given = quantise(p, executor)
    macros: dict[str, Any] = {
        "HEAD_DIM": d,
        "BLOCK_N": KEYS,
        "CONSUMERS": CONSUMERS,
        "STAGES": STAGES,
        "TURNS": variant != "free",
        "LAZY_MAX": variant != "every_max",
        "CONSUMER_REGISTERS": REGISTERS[0],
        "PRODUCER_REGISTERS": REGISTERS[1],
        **defines(p),
    }
    drawn, heads = longest_first(p, executor.sm_count), p.batch * p.heads
    together = p.group * max(1, L2_BYTES // (2 * d * p.seq_k)) if drawn else p.group
    executor.launch(
        source(FILE, **macros),
        min(works(p), executor.sm_count),
        128 * (CONSUMERS + 1),
        *(byte_map(given.q, ROWS, d), byte_map(given.k, KEYS, d), byte_map(given.v, d, KEYS)),
        *(tile_map(out, STORED_ROWS), given.q_scales, given.k_scales, given.v_exponents, lse),
        *scalars(p, p.scale * math.log2(math.e)),
        *(np.int32(heads), np.int32(min(together, heads)), executor.counter() if drawn else None),
        shared_bytes=block_bytes(d),
    )


def byte_map(array: Array, rows: int, columns: int) -> TensorMap:
    """How TMA sees bytes [B, H, rows, columns]: boxes swizzled over their whole rows."""
    return TensorMap(array, (1, 1, rows, columns), swizzle=columns)


STAGE = Stage(
    number=None,
    name="wgmma",
    title="Both products in 8 bits",
    idea="Each tile's P V takes the registers of its scores, and joins float32 sums when it is whole.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    head_dims=(128, 64),
    grouped_queries=True,
    outputs=(OUT, LSE),
    operation=FP8,
    variants={
        "every_max": "the maximum of every tile",
        "free": "the lazy maximum; warpgroups issue their products when they have them",
        "wgmma": "the lazy maximum; from P V of a tile to Q K^T of the next a warpgroup has the tensor cores",
    },
)
