"""What a launcher passes to a CUDA C kernel: pointers, then what `params.cuh` declares, in its order."""

from typing import Any

import numpy as np

from cuda_reference import TensorMap
from flashcore_numba.core.problem import Problem

PANEL = 64  # columns of a box of halves: the 128 bytes of its swizzle


def cuda_arguments(problem: Problem, out: Any, lse: Any, scale: float) -> tuple:
    """The arguments of a kernel with these parameters:

        const element* q, const element* k, const element* v, element* out, float* lse, PARAMS

    `lse` is C-contiguous [B, H, S_q]; None becomes a null pointer.
    """
    p = problem
    return (
        *(p.q, p.k, p.v, out, lse),
        *(step for x in (p.q, p.k, p.v, out) for step in strides(x)),
        *scalars(p, scale),
    )


def scalars(problem: Problem, scale: float) -> tuple:
    """The arguments for `SIZES`."""
    p = problem
    sizes = (np.int32(n) for n in (p.seq_q, p.seq_k, p.heads, p.group))
    return *sizes, np.float32(scale), np.int32(p.causal)


def strides(array: Any) -> tuple[np.int64, np.int64, np.int64]:
    """The arguments for `STRIDES`: elements from one batch, head and row of a [B, H, S, D] array to the next."""
    batch, head, row = (np.int64(step // array.dtype.itemsize) for step in array.strides[:3])
    return batch, head, row


def tile_map(array: Any, rows: int) -> TensorMap:
    """How TMA sees a [B, H, S, D] array: boxes of `rows` rows of one head, 64 columns wide."""
    return TensorMap(array, (1, 1, rows, PANEL))
