"""The chunks of one query row made one: a warp, with a lane for each chunk's weight."""

import functools
import math

from numba import cuda, float32

from flashcore_numba.branches.decode.decode_chunks_attend import LANES, NOTHING, chunk_keys
from flashcore_numba.stages.parts.common import ALL_LANES, warp_max, warp_sum
from flashcore_numba.stages.parts.mask import band


@functools.cache
def merge_kernel(D_V, with_sinks):
    """Without `with_sinks` sinks is not read."""
    PARTS = D_V // LANES

    @cuda.jit
    def merge_chunks(part_out, part_lse, lengths, sinks, out, lse, room, left, right):
        # out: [B, H, S_q, D_v] float16   lse: [B, H, S_q] float32   sinks: [H] float32   room: of a request
        lane, token = cuda.threadIdx.x, cuda.blockIdx.x
        h, b = cuda.blockIdx.y, cuda.blockIdx.z
        length = min(max(lengths[b], 0), room)
        begin, end = band(token, out.shape[2], length, left, right)
        size = chunk_keys(length)
        first, last = begin // size, (end + size - 1) // size if begin < end else 0
        chunk_lse = part_lse[b, h, token, lane] if first <= lane < last else NOTHING
        m = warp_max(chunk_lse)
        if with_sinks:
            m = max(m, sinks[h])
        m = m if m > NOTHING else float32(0)  # without keys -inf - -inf would be NaN
        weight = math.exp(chunk_lse - m)
        l = warp_sum(weight)
        if with_sinks:
            l += math.exp(sinks[h] - m)  # once per row: a chunk knows nothing of it
        o_rmem = cuda.local.array(PARTS, float32)
        for part in range(PARTS):
            o_rmem[part] = float32(0)
        for chunk in range(first, last):
            share = cuda.shfl_sync(ALL_LANES, weight, chunk) / l
            for part in range(PARTS):
                o_rmem[part] += share * part_out[b, h, token, chunk, lane + LANES * part]
        for part in range(PARTS):
            out[b, h, token, lane + LANES * part] = o_rmem[part]
        if lane == 0:
            lse[b, h, token] = m + math.log(l)  # of nothing, 0 + log 0 = -inf

    return merge_chunks
