"""Kernels with one planted bug each, beside their correct twins.

`# first` and `# second` mark the lines that the report must name (`line` and `other_line`).
"""

import math

from numba import cuda, float32

from flashcore_numba.wide import load4

FULL = 0xFFFFFFFF


@cuda.jit
def missing_barrier(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]  # first
    dst[i] = s[63 - i]  # second


@cuda.jit
def with_barrier(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]
    cuda.syncthreads()
    dst[i] = s[63 - i]


@cuda.jit
def missing_syncwarp(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]  # first
    dst[i] = s[i ^ 1]  # second


@cuda.jit
def with_syncwarp(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]
    cuda.syncwarp()
    dst[i] = s[i ^ 1]


@cuda.jit
def syncwarp_for_two_warps(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]  # first
    cuda.syncwarp()
    dst[i] = s[i ^ 32]  # second


@cuda.jit
def all_write_one(src, dst):
    s = cuda.shared.array(1, float32)
    i = cuda.threadIdx.x
    s[0] = src[i]  # first, second
    cuda.syncthreads()
    dst[i] = s[0]


@cuda.jit
def one_writes_one(src, dst):
    s = cuda.shared.array(1, float32)
    i = cuda.threadIdx.x
    if i == 0:
        s[0] = src[i]
    cuda.syncthreads()
    dst[i] = s[0]


@cuda.jit
def race_through_global(src, dst):
    i = cuda.threadIdx.x
    dst[i] = src[i]  # first
    dst[i] += dst[i ^ 32]  # second


@cuda.jit
def global_with_barrier(src, dst):
    i = cuda.threadIdx.x
    dst[i] = src[i]
    cuda.syncthreads()
    other = dst[i ^ 32]
    cuda.syncthreads()
    dst[i] += other


@cuda.jit
def blocks_share_an_element(src, dst):
    i = cuda.grid(1)
    dst[i // 2 % 16] = src[i]  # first, second


@cuda.jit
def blocks_add_atomically(src, dst):
    i = cuda.grid(1)
    cuda.atomic.add(dst, i // 2 % 16, src[i])


@cuda.jit
def atomic_beside_plain_read(src, dst):
    i = cuda.threadIdx.x
    cuda.atomic.add(dst, i // 2, src[i])  # first
    dst[i // 2 + 32] = dst[i // 2 ^ 1]  # second


@cuda.jit
def each_block_reads_its_atomic(src, dst):
    i = cuda.threadIdx.x
    cuda.atomic.add(dst, cuda.blockIdx.x, src[i])
    cuda.syncthreads()
    if i == 0:
        dst[cuda.blockIdx.x + 8] = dst[cuda.blockIdx.x]


@cuda.jit
def blocks_read_an_atomic(src, dst):
    i = cuda.threadIdx.x
    cuda.atomic.add(dst, cuda.blockIdx.x, src[i])  # first
    cuda.syncthreads()
    if i == 0:
        dst[cuda.blockIdx.x + 8] = dst[cuda.blockIdx.x ^ 1]  # second


@cuda.jit
def own_atomic_then_read(src, dst):
    i = cuda.threadIdx.x
    cuda.atomic.add(dst, i, src[i])
    dst[i] = dst[i] + 1


@cuda.jit
def pool_seen_twice(src, dst):
    floats = cuda.shared.array(0, float32)
    words = cuda.shared.array(0, cuda.uint16)
    i = cuda.threadIdx.x
    floats[i] = src[i]  # first
    dst[i] = words[2 * i + 2 if i < 63 else 0]  # second


@cuda.jit
def divergent_barrier(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]
    if i < 40:
        cuda.syncthreads()  # first
        dst[i] = s[i + 1]


@cuda.jit
def two_barriers(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]
    if i < 32:
        cuda.syncthreads()  # first
    else:
        cuda.syncthreads()  # second
    dst[i] = s[63 - i]


@cuda.jit
def blocks_of_different_length(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    acc = float32(0)
    for t in range(cuda.blockIdx.x + 1):
        s[i] = src[i] + t
        cuda.syncthreads()
        acc += s[63 - i]
        cuda.syncthreads()
    dst[cuda.grid(1)] = acc


@cuda.jit
def blocks_of_different_length_broken(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    acc = float32(0)
    for t in range(cuda.blockIdx.x + 1):
        s[i] = src[i] + t  # first
        cuda.syncthreads()
        acc += s[63 - i]  # second
    dst[cuda.grid(1)] = acc


@cuda.jit
def barrier_after_exit(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if i >= 40:
        return
    s[i] = src[i]
    cuda.syncthreads()  # first
    dst[i] = s[39 - i]


@cuda.jit
def whole_block_exits(src, dst):
    s = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    if cuda.blockIdx.x == 1:
        return
    s[i] = src[i]
    cuda.syncthreads()
    dst[cuda.grid(1)] = s[63 - i]


@cuda.jit
def out_of_bounds(src, dst):
    i = cuda.grid(1)
    dst[i] = src[i + 1] - src[i]  # first


@cuda.jit
def negative_index(src, dst):
    i = cuda.grid(1)
    dst[i] = src[i - 1]  # first


@cuda.jit
def guarded_index(src, dst):
    i = cuda.grid(1)
    dst[i] = src[i + 1] if i + 1 < src.size else src[i]


@cuda.jit
def local_out_of_bounds(src, dst):
    window = cuda.local.array(4, float32)
    i = cuda.threadIdx.x
    for k in range(4):
        window[k] = src[i]
    dst[i] = window[i % 5]  # first


@cuda.jit
def unwritten_shared(src, dst):
    s = cuda.shared.array(66, float32)
    i = cuda.threadIdx.x
    s[i + 1] = src[i]
    cuda.syncthreads()
    dst[i] = s[i]  # first


@cuda.jit
def unwritten_local(src, dst):
    acc = cuda.local.array(2, float32)
    i = cuda.threadIdx.x
    acc[0] = src[i]
    acc[i % 2] += 1  # first
    dst[i] = acc[0]


@cuda.jit
def misaligned(src, dst):
    i = cuda.threadIdx.x
    a, _, _, _ = load4(src, 2 * (i % 8))  # first
    dst[i] = a


@cuda.jit
def unaligned_tile(src, dst):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = src[i]
    cuda.syncthreads()
    a, _, _, _ = load4(tile, i // 4 * 4)  # first
    dst[i] = a


@cuda.jit
def aligned_tile(src, dst):
    tile = cuda.shared.array(64, float32, alignment=16)
    i = cuda.threadIdx.x
    tile[i] = src[i]
    cuda.syncthreads()
    a, _, _, _ = load4(tile, i // 4 * 4)
    dst[i] = a


@cuda.jit
def running_max_from_tiny(src, dst):
    i = cuda.threadIdx.x
    m = float32(1e-30)
    for k in range(4):
        m = max(m, src[(i + k) % 64] - float32(200))
    total = float32(0)
    for k in range(4):
        total += math.exp(src[(i + k) % 64] - float32(200) - m)
    mean = total * m / total  # first
    dst[i] = mean  # second


@cuda.jit
def running_max_from_minus_infinity(src, dst):
    i = cuda.threadIdx.x
    m = float32(-math.inf)
    for k in range(4):
        m = max(m, src[(i + k) % 64] - float32(200))
    total = float32(0)
    for k in range(4):
        total += math.exp(src[(i + k) % 64] - float32(200) - m)
    dst[i] = total * m / total


@cuda.jit
def not_a_number_discarded(src, dst):
    i = cuda.threadIdx.x
    nothing = float32(-math.inf) * abs(src[i])
    difference = nothing - nothing
    dst[i] = difference if src[i] > 1e30 else src[i]


@cuda.jit
def not_a_number_read(src, dst):
    i = cuda.threadIdx.x
    src[i] = math.nan
    dst[i] = src[i] * 2


@cuda.jit
def shuffle_in_branch(src, dst):
    i = cuda.threadIdx.x
    value = src[i]
    if i < 20:
        value += cuda.shfl_down_sync(FULL, value, 1)  # first
    dst[i] = value


@cuda.jit
def shuffle_with_its_lanes(src, dst):
    i = cuda.threadIdx.x
    value = src[i]
    if i % 32 < 16:
        value += cuda.shfl_xor_sync(0xFFFF, value, 1)
    dst[i] = value


@cuda.jit
def endless(src, dst):
    i = cuda.threadIdx.x
    turns = 0
    while turns < 10:  # first
        if i % 2 == 0:
            turns += 1
    dst[i] = src[i] + turns


@cuda.jit
def divides_by_zero(src, dst):
    i = cuda.threadIdx.x
    dst[i] = src[i] + 5 // (cuda.gridDim.x - 1)  # first
