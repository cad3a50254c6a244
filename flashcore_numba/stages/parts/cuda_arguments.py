"""What a launcher passes to a CUDA C kernel: pointers, then what `params.cuh` declares, in its order."""

import math
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16, FLOAT32
from flashcore_numba.core.problem import Problem


def cuda_arguments(problem: Problem, out: Any, lse: Any, scale: float) -> tuple:
    """The arguments of a kernel with the parameters below.

        const element* q, const element* k, const element* v, OUT_ELEMENT* out, float* lse, PARAMS

    `lse` is C-contiguous [B, H, S_q]; None becomes a null pointer.
    """
    p = problem
    return (
        *(p.q, p.k, p.v, out, lse),
        *(step for x in (p.q, p.k, p.v, out) for step in strides(x)),
        *scalars(p, scale),
    )


def defines(problem: Any) -> dict[str, Any]:
    """What of a problem a kernel is compiled for, as macros: none for what kernels assume, float16, D_v = D
    and no features.
    """
    features = problem.features
    on = {
        "WINDOW": problem.windowed,
        "SOFTCAP": features.softcap != 0,
        "ALIBI": features.alibi_slopes is not None,
        "SINKS": features.sinks is not None,
        "USED": features.seqused_k is not None,
        "RAGGED": features.ragged,
        "KEYS_FROM": features.keys_from is not None,
        "PRIOR": features.prior_out is not None,
        "FLOAT_OUT": features.float32_out,
        "HEAD_NORM": features.norm_weight is not None,
        "FLOAT_NORM": features.norm_weight is not None and features.norm_weight.dtype == FLOAT32.dtype,
        "GATE": features.gate is not None,
    }
    found: dict[str, Any] = {name: True for name, given in on.items() if given}
    if problem.element is not FLOAT16:
        found["ELEMENT"] = problem.element.name
    if problem.value_dim != problem.head_dim:
        found["VALUE_DIM"] = problem.value_dim
    return found


def scalars(problem: Problem, scale: float) -> tuple:
    """The arguments for `SIZES`, those of its features among them."""
    p = problem
    sizes = (np.int32(n) for n in (p.seq_q, p.seq_k, p.heads, p.group))
    return *sizes, np.float32(scale), np.int32(p.causal), *feature_arguments(p)


def row_tiles_at_most(problem: Problem, rows: int) -> int:
    """Tiles of `rows` query rows in a head: of packed sequences, as many as any lengths could make."""
    last_rows = problem.sequence_count * (rows - 1) if problem.features.ragged else rows - 1
    return (problem.seq_q + last_rows) // rows


def feature_arguments(problem: Any) -> list:
    """The arguments for `FEATURES`, of those that are on."""
    p, features, found = problem, problem.features, list[Any]()
    if p.windowed:
        found += [np.int32(side) for side in p.features.window]
    if features.softcap:
        found += [np.float32(p.scale / features.softcap), np.float32(features.softcap * math.log2(math.e))]
    if features.alibi_slopes is not None:
        found += [features.alibi_slopes, np.int32(p.heads * (features.alibi_slopes.ndim - 1))]
    found += [each for each in (features.sinks, features.seqused_k) if each is not None]
    if features.ragged:
        found += [features.cu_seqlens_q, features.cu_seqlens_k, np.int32(p.sequence_count)]
    if features.keys_from is not None:
        found += [features.keys_from, np.int32(features.keys_from.shape[0] > 1)]
    if features.prior_out is not None:
        found += [features.prior_out, features.prior_lse]
        found += [*strides(features.prior_out), *strides(features.prior_lse)]
    if features.norm_weight is not None:
        head = p.value_dim * (features.norm_weight.ndim - 1)
        found += [features.norm_weight, np.int32(head), np.float32(features.norm_eps)]
    if features.gate is not None:
        found += [features.gate, *strides(features.gate)]
    return found


def strides(array: Any) -> tuple[np.int64, np.int64, np.int64]:
    """The arguments for `STRIDES`: elements from one batch, head and row of [B, H, S, D] or [B, H, S] to the
    next.
    """
    batch, head, row = (np.int64(step // array.dtype.itemsize) for step in array.strides[:3])
    return batch, head, row
