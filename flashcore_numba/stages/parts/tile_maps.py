"""How TMA sees the arrays of a problem: what stages 14 to 16 pass in place of pointers."""

from typing import Any

import numpy as np

from cuda_reference import TensorMap
from flashcore_numba.core.problem import Problem

PANEL = 64  # columns of a box of halves: the 128 bytes of its swizzle
BOUND = 1 << 30  # as in warpgroup_rows.cuh


def tile_map(array: Any, rows: int) -> TensorMap:
    """How TMA sees a [B, H, S, D] array: boxes of `rows` rows of one head, 64 columns wide."""
    return TensorMap(array, (1, 1, rows, PANEL))


def bounded_map(array: Any, rows: int) -> TensorMap:
    """The same where only the GPU knows where sequences end: see `Place` in warpgroup_rows.cuh."""
    _, head, _, element = array.strides
    row, far = _row_bytes(array), 1 << 31
    return TensorMap(
        array,
        (1, 1, rows, 1, PANEL),
        shape=(far, far, BOUND, *array.shape[1::2]),
        strides=((1 << 35) - row, row, row, head, element),
    )


def batch_rows(array: Any) -> int | None:
    """Rows from one batch of a [B, H, S, D] array to the next; None if they are no whole number of rows, or
    so many that no coordinate of TMA reaches the last.
    """
    batches, batch, row = array.shape[0], array.strides[0], _row_bytes(array)
    if batches == 1 or batch == 0:
        return 0
    rows = batch // row if row and batch % row == 0 else None
    return None if rows is None or rows * (batches - 1) + array.shape[2] >= 1 << 31 else rows


def batches_limit(problem: Problem) -> str | None:
    """A `Stage.limit`: what `bounded_map` does not serve."""
    if problem.features.seqused_k is None:
        return None
    for name in ("k", "v"):
        array = getattr(problem, name)
        if batch_rows(array) is None:
            return (
                f"does not serve seqused_k where {name} has strides {array.strides} bytes: its batches are "
                "no whole number of rows apart"
            )
    return None


def input_maps(problem: Problem, rows: int, keys: int) -> tuple[TensorMap, ...]:
    """Of q, k and v, in boxes of `rows` query rows and of `keys` keys."""
    of_kv = bounded_map if bounded_kv(problem) else tile_map
    return query_map(problem, problem.q, rows), *(of_kv(x, keys) for x in (problem.k, problem.v))


def query_map(problem: Problem, array: Any, rows: int) -> TensorMap:
    """Of q or the output, in boxes of `rows` query rows."""
    return bounded_map(array, rows) if problem.features.ragged else tile_map(array, rows)


def batches(problem: Problem) -> tuple[np.int32, ...]:
    """The arguments for `BATCHES_PARAMS` of warpgroup_rows.cuh."""
    if not bounded_kv(problem):
        return ()
    return tuple(np.int32(batch_rows(x) or 0) for x in (problem.k, problem.v))


def bounded_kv(problem: Problem) -> bool:
    """Whether only the GPU knows where the keys of a sequence end: BOUNDED_KV of warpgroup_rows.cuh."""
    return problem.features.ragged or problem.features.seqused_k is not None


def _row_bytes(array: Any) -> int:
    """From one row to the next; of a single row, from one batch to the next."""
    batch, _, row, element = array.strides
    if array.shape[2] > 1:
        return row
    return batch if array.shape[0] > 1 else element * array.shape[3]
