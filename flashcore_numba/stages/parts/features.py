"""What the features of attention do in a kernel in Numba: device functions, chosen when the kernel is made.

`core.features` says what each feature means. One that is off leaves nothing in the kernel. One that is on has
its value among the kernel's `options`, in the order of `Features.names`.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32

from flashcore_numba.core.features import OF_MODELS
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.mask import before_window, interval, window_end

ABSENT = -1  # in place of an option's index


def options_of(problem: Problem) -> tuple:
    """The values of what is on, as a kernel takes them: `softcap` in float32, `alibi_slopes` [1 or B, H]."""
    values = {name: getattr(problem.features, name) for name in problem.features.names}
    if "softcap" in values:
        values["softcap"] = np.float32(values["softcap"])
    if "alibi_slopes" in values:
        values["alibi_slopes"] = values["alibi_slopes"].reshape(-1, problem.heads)
    return tuple(values.values())


class FeatureParts(NamedTuple):
    """Device functions for a kernel whose block has a tile of query rows of head `blockIdx.y`.

    sequence(q, k, v, out, lse, options) -> (tile, slope, q, k, v, out, lse): which tile of its sequence the
    block has, the slope of ALiBi, and the arrays without other sequences and without keys that do not count.
    end(row, seq_q, seq_k, causal, options): the end of the keys that a row sees; 0 where it sees none.
    start(m, l, lane, options) -> (m, l): the running max and a lane's share of the sum, before the first key.
    logit(score, distance, slope, options): what becomes of a scaled score, its key being `distance` before
    the row's place on the diagonal; minus infinity before the window.
    """

    sequence: Any
    end: Any
    start: Any
    logit: Any


@functools.cache
def feature_parts(on: tuple[str, ...], rows: int) -> FeatureParts:
    """For what is on, as `Features.names`, and tiles of so many query rows."""
    WINDOW, SOFTCAP, SINKS, ALIBI, USED, PACKED_Q, PACKED_K = (
        on.index(name) if name in on else ABSENT for name in OF_MODELS
    )

    @cuda.jit(device=True)
    def sequence(q, k, v, out, lse, options):
        number, tile = cuda.blockIdx.z, cuda.blockIdx.x
        if PACKED_Q != ABSENT:
            number, tile, row, end_row = find_tile(options[PACKED_Q], tile)
            q, out, lse = q[:, :, row:end_row], out[:, :, row:end_row], lse[:, :, row:end_row]
            key, end_key = options[PACKED_K][number], options[PACKED_K][number + 1]
            end_key = end_key if row < end_row else key  # without rows no keys
            k, v = k[:, :, key:end_key], v[:, :, key:end_key]
        if USED != ABSENT:
            used = max(0, options[USED][number])
            k, v = k[:, :, :used], v[:, :, :used]
        slope = float32(0)
        if ALIBI != ABSENT:
            slopes = options[ALIBI]
            slope = slopes[number % slopes.shape[0], cuda.blockIdx.y]
        return tile, slope, q, k, v, out, lse

    @cuda.jit(device=True)
    def find_tile(bounds, tile):
        """(sequence, tile in it, first row, end of its rows): `tile` counts through all sequences.

        The grid has as many tiles as any lengths could make. Those past the last get no rows.
        """
        end = bounds[0]
        for number in range(bounds.shape[0] - 1):
            row, end = end, bounds[number + 1]
            tiles = (end - row + rows - 1) // rows
            if tile < tiles:
                return number, tile, row, end
            tile -= tiles
        return 0, 0, end, end

    @cuda.jit(device=True)
    def end(row, seq_q, seq_k, causal, options):
        if WINDOW != ABSENT:
            return window_end(row, seq_q, seq_k, 0 if causal else options[WINDOW][1])
        return interval(row, seq_q, seq_k, causal)[1]

    @cuda.jit(device=True)
    def start(m, l, lane, options):
        if SINKS != ABSENT:
            # A key without a value, that every row has seen: its weight is 1, in the share of one lane.
            m, l = options[SINKS][cuda.blockIdx.y], float32(1 if lane == 0 else 0)
        return m, l

    @cuda.jit(device=True)
    def logit(score, distance, slope, options):
        if SOFTCAP != ABSENT:
            score = options[SOFTCAP] * math.tanh(score / options[SOFTCAP])
        if ALIBI != ABSENT:
            score -= slope * float32(abs(distance))
        if WINDOW != ABSENT:
            score = float32(-math.inf) if before_window(distance, options[WINDOW][0]) else score
        return score

    return FeatureParts(sequence, end, start, logit)
