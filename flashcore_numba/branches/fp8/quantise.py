"""Q, K and V in e4m3, by the kernels of `fp8_quantise.cu`, before attention."""

from typing import Any, NamedTuple

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import FLOAT32
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import defines, strides

FILE = "fp8_quantise"
TILE, THREADS = 128, 256  # rows or keys that have one scale in K and V; of a block
COLUMNS = 16  # of a row, that a thread has


class Quantised(NamedTuple):
    """q: bytes [B, H, S_q, D]; k: [B, H_kv, S_k, D]; v: [B, H_kv, D, keys], keys a multiple of 128, in the
    order of the kernel's header. q_scales: float32 [B, H, S_q]; k_scales, v_exponents: [B, H_kv, keys / 128].
    """

    q: Array
    k: Array
    v: Array
    q_scales: Array
    k_scales: Array
    v_exponents: Array


def tiles_of(rows: int) -> int:
    """Tiles that so many rows or keys fill, the last perhaps in part."""
    return -(-rows // TILE)


def rows_at_once(head_dim: int) -> int:
    """Rows of Q that a block has: as many as its threads hold."""
    return THREADS * COLUMNS // head_dim


def quantise(problem: Problem, executor: Executor) -> Quantised:
    """Queue the kernels, which write scratch memory of this call."""
    p, d = problem, problem.head_dim
    tiles = tiles_of(p.seq_k)
    of_kv = (p.batch, p.kv_heads)
    made = Quantised(
        executor.empty((p.batch, p.heads, p.seq_q, d), np.uint8),
        executor.empty((*of_kv, p.seq_k, d), np.uint8),
        executor.empty((*of_kv, d, tiles * TILE), np.uint8),
        executor.empty((p.batch, p.heads, p.seq_q), FLOAT32.dtype),
        executor.empty((*of_kv, tiles), FLOAT32.dtype),
        executor.empty((*of_kv, tiles), FLOAT32.dtype),
    )
    macros: dict[str, Any] = {"HEAD_DIM": d, **defines(p)}
    for x, written, scales, sign, each_row in (
        (p.q, made.q, made.q_scales, np.sign(p.scale), True),
        (p.k, made.k, made.k_scales, 1, False),
    ):
        batch, heads, length = x.shape[:3]
        rows = rows_at_once(d) if each_row else TILE
        executor.launch(
            source(FILE, "quantise_rows", EACH_ROW=each_row, **macros),
            (-(-length // rows), heads, batch),
            THREADS,
            *(x, *strides(x), written, scales, np.int32(length), np.int32(heads), np.float32(sign)),
        )
    executor.launch(
        source(FILE, "quantise_v", EACH_ROW=False, **macros),
        (tiles, p.kv_heads, p.batch),
        THREADS,
        *(p.v, *strides(p.v), made.v, made.v_exponents, np.int32(p.seq_k), np.int32(p.kv_heads)),
    )
    return made
