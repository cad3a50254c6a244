"""Kernels of other people with known bugs: `# first`, `# second` mark the lines a report must name."""

import math

import numba
import numpy as np
from numba import cuda, float32

TPB = 16


@cuda.jit
def matmul_no_trailing(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tmp = 0.0
    for i in range(A.shape[1] // TPB):
        sA[ty, tx] = A[y, tx + i * TPB]  # first
        sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]  # second
    C[y, x] = tmp


def case_matmul_no_trailing(rng):
    a, b = rng.random((2, 32, 32), dtype=np.float32)
    return matmul_no_trailing, (2, 2), (16, 16), (a, b, np.zeros((32, 32), np.float32)), "race"


@cuda.jit
def matmul_no_first(A, B, C):
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tmp = 0.0
    for i in range(A.shape[1] // TPB):
        sA[ty, tx] = A[y, tx + i * TPB]  # first
        sB[ty, tx] = B[ty + i * TPB, x]
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]  # second
        cuda.syncthreads()
    C[y, x] = tmp


def case_matmul_no_first(rng):
    return matmul_no_first, *case_matmul_no_trailing(rng)[1:]


@cuda.jit
def reduce_barrier_in_if(a, out):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            s[t] += s[t + step]
            cuda.syncthreads()  # first
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def case_reduce_barrier_in_if(rng):
    return (
        reduce_barrier_in_if,
        2,
        128,
        (rng.random(256, dtype=np.float32), np.zeros(2, np.float32)),
        "divergent barrier",
    )


@cuda.jit
def reduce_no_barrier(a, out):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            s[t] += s[t + step]  # first, second
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def case_reduce_no_barrier(rng):
    return reduce_no_barrier, 2, 128, (rng.random(256, dtype=np.float32), np.zeros(2, np.float32)), "race"


@cuda.jit
def warp_synchronous(a, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    if t < 32:
        s[t] += s[t + 32]
        cuda.syncwarp()
        if t < 16:
            s[t] += s[t + 16]  # first
        if t < 8:
            s[t] += s[t + 8]  # second
    cuda.syncthreads()
    out[t] = s[0]


def case_warp_synchronous(rng):
    return warp_synchronous, 1, 64, (rng.random(64, dtype=np.float32), np.zeros(64, np.float32)), "race"


@cuda.jit
def early_return(a, out):
    s = cuda.shared.array(64, float32)
    i = cuda.grid(1)
    if i >= a.shape[0]:
        return
    s[cuda.threadIdx.x] = a[i]
    cuda.syncthreads()  # first
    out[i] = s[0]


def case_early_return(rng):
    return (
        early_return,
        2,
        64,
        (rng.random(100, dtype=np.float32), np.zeros(100, np.float32)),
        "barrier after exit",
    )


@cuda.jit
def no_bound(a, out):
    i = cuda.grid(1)
    out[i] = a[i] * 2  # first


def case_no_bound(rng):
    return no_bound, 4, 32, (rng.random(100, dtype=np.float32), np.zeros(100, np.float32)), "out of bounds"


@cuda.jit
def wrong_guard(a, out):
    i, j = cuda.grid(2)
    if i <= a.shape[0] and j < a.shape[1]:
        out[i, j] = a[i, j]  # first


def case_wrong_guard(rng):
    a = rng.random((30, 30))
    return wrong_guard, (2, 2), (16, 16), (a, a.copy()), "out of bounds"


@cuda.jit
def full_mask_in_tail(x, out):
    i = cuda.grid(1)
    if i < x.size:
        v = x[i]
        offset = 16
        while offset > 0:
            v += cuda.shfl_down_sync(0xFFFFFFFF, v, offset)  # first
            offset >>= 1
        if cuda.laneid == 0:
            out[i // 32] = v


def case_full_mask_in_tail(rng):
    return full_mask_in_tail, 2, 64, (rng.random(100), np.zeros(4)), "warp mask"


@cuda.jit
def exited_lanes(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    v = x[i]
    for offset in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, offset)  # first
    if cuda.laneid == 0:
        out[i // 32] = v  # second


def case_exited_lanes(rng):
    return exited_lanes, 2, 64, (rng.random(100), np.zeros(4)), "warp mask"


@cuda.jit
def half_mask(x, out):
    v = x[cuda.grid(1)]
    v += cuda.shfl_xor_sync(0xFFFF, v, 8)  # first
    out[cuda.grid(1)] = v


def case_half_mask(rng):
    return half_mask, 1, 32, (rng.random(32), np.zeros(32)), "warp mask"


@cuda.jit
def padding_read(x, out):
    s = cuda.shared.array((18, 18), float32)
    i, j = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    s[tx + 1, ty + 1] = x[i, j]
    cuda.syncthreads()
    out[i, j] = s[tx, ty + 1] + s[tx + 2, ty + 1]  # first


def case_padding_read(rng):
    x = rng.random((16, 16), dtype=np.float32)
    return padding_read, (1, 1), (16, 16), (x, x.copy()), "uninitialised read"


@cuda.jit
def atomic_uninit(x, hist):
    s = cuda.shared.array(10, numba.int32)
    i = cuda.grid(1)
    cuda.atomic.add(s, x[i], 1)  # first
    cuda.syncthreads()
    if cuda.threadIdx.x < 10:
        cuda.atomic.add(hist, cuda.threadIdx.x, s[cuda.threadIdx.x])


def case_atomic_uninit(rng):
    return atomic_uninit, 1, 64, (rng.integers(0, 10, 64), np.zeros(10, np.int32)), "uninitialised read"


@cuda.jit
def histogram_plain(x, hist):
    i = cuda.grid(1)
    hist[x[i]] += 1  # first, second


def case_histogram_plain(rng):
    return histogram_plain, 1, 64, (rng.integers(0, 10, 64), np.zeros(10, np.int32)), "race"


def case_histogram_blocks(rng):
    return histogram_plain, 4, 1, (np.array([3, 3, 3, 3]), np.zeros(10, np.int32)), "race between blocks"


@cuda.jit
def zero_without_barrier(x, hist):
    s = cuda.shared.array(10, numba.int32)
    t = cuda.threadIdx.x
    if t < 10:
        s[t] = 0  # first
    cuda.atomic.add(s, x[t] % 10, 1)  # second
    cuda.syncthreads()
    if t < 10:
        cuda.atomic.add(hist, t, s[t])


def case_zero_without_barrier(rng):
    return zero_without_barrier, 1, 64, (rng.integers(0, 10, 64), np.zeros(10, np.int32)), "race"


@cuda.jit
def transpose_in_place(a, b):
    i, j = cuda.grid(2)
    b[j, i] = a[i, j]  # first, second


def case_transpose_in_place(rng):
    a = rng.random((16, 16))
    return transpose_in_place, (1, 1), (16, 16), (a, a), "race"


def case_transpose_aliased_blocks(rng):
    a = rng.random((16, 16))
    return transpose_in_place, (2, 2), (8, 8), (a, a[:, :]), "race between blocks"


@cuda.jit
def stencil_in_place(u):
    i = cuda.grid(1)
    if 0 < i < u.size - 1:
        u[i] = 0.5 * (u[i - 1] + u[i + 1])  # first, second


def case_stencil_in_place(rng):
    return stencil_in_place, 1, 64, (rng.random(64),), "race"


@cuda.jit
def scan_in_place(a):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    d = 1
    while d < 64:
        if t >= d:
            s[t] += s[t - d]  # first, second
        cuda.syncthreads()
        d *= 2
    a[t] = s[t]


def case_scan_in_place(rng):
    return scan_in_place, 1, 64, (rng.random(64, dtype=np.float32),), "race"


def make_flash(start):
    @cuda.jit
    def flash(Q, K, V, Out, sm_scale):
        s_k = cuda.shared.array((16, 16), float32)
        s_v = cuda.shared.array((16, 16), float32)
        tx = cuda.threadIdx.x
        row = cuda.grid(1)
        acc = cuda.local.array(16, float32)
        for d in range(16):
            acc[d] = 0.0
        m = start
        total = 0.0
        for t in range(0, K.shape[0], 16):
            for c in range(16):
                s_k[tx, c] = K[t + tx, c]
                s_v[tx, c] = V[t + tx, c]
            cuda.syncthreads()
            for j in range(16):
                s = 0.0
                for d in range(16):
                    s += Q[row, d] * s_k[j, d]
                s *= sm_scale
                m_new = max(m, s)
                total = total * math.exp(m - m_new) + math.exp(s - m_new)
                for d in range(16):
                    acc[d] = acc[d] * math.exp(m - m_new) + math.exp(s - m_new) * s_v[j, d]
                m = m_new
            cuda.syncthreads()
        for d in range(16):
            Out[row, d] = acc[d] / total  # first, second

    return flash


def case_flash_tiny(rng):
    q = rng.random((16, 16), dtype=np.float32) + 1
    k = -q - rng.random((16, 16), dtype=np.float32)
    v = rng.random((16, 16), dtype=np.float32)
    return make_flash(1e-30), 1, 16, (q, k, v, np.zeros_like(q), 100.0), "not a number"


@cuda.jit
def atomics_and_plain(x, total):
    i = cuda.threadIdx.x
    cuda.atomic.add(total, 0, x[i])  # first
    x[i] /= total[0]  # second


def case_atomics_and_plain(rng):
    return atomics_and_plain, 1, 64, (rng.random(64), np.zeros(1)), "race"


@cuda.jit
def last_block_no_fence(x, partial, counter, out):
    i = cuda.grid(1)
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = x[i]  # first
        if cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1:
            v = 0.0
            for b in range(cuda.gridDim.x):
                v += partial[b]  # second
            out[0] = v


def case_last_block_no_fence(rng):
    return (
        last_block_no_fence,
        4,
        32,
        (rng.random(128), np.zeros(4), np.zeros(1, np.int64), np.zeros(1)),
        "race between blocks",
    )


@cuda.jit
def while_never_ends(x, out):
    i = cuda.grid(1)
    s = cuda.blockDim.x
    while s > 1:  # first
        if x[i] > 2:
            s //= 2
    out[i] = s


def case_while_never_ends(rng):
    return while_never_ends, 1, 32, (rng.random(32), np.zeros(32)), "endless loop"


@cuda.jit
def misses_last(x, out):
    acc = cuda.local.array(4, float32)
    i = cuda.grid(1)
    for k in range(3):
        acc[k] = x[i]
    total = float32(0)
    for k in range(4):
        total += acc[k]  # first
    out[i] = total


def case_misses_last(rng):
    return misses_last, 1, 32, (rng.random(32), np.zeros(32)), "uninitialised read"


@cuda.jit
def global_index_into_tile(x, out):
    s = cuda.shared.array(32, float32)
    i = cuda.grid(1)
    s[i] = x[i]  # first
    cuda.syncthreads()
    out[i] = s[i]


def case_global_index_into_tile(rng):
    x = rng.random(64, dtype=np.float32)
    return global_index_into_tile, 2, 32, (x, x.copy()), "out of bounds"


@cuda.jit
def loop_trips_differ(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    acc = float32(0)
    for i in range(t, x.size, cuda.blockDim.x):
        s[t] = x[i]
        cuda.syncthreads()  # first
        acc += s[0]
        cuda.syncthreads()
    out[t] = acc


def case_loop_trips_differ(rng):
    return (
        loop_trips_differ,
        1,
        64,
        (rng.random(100, dtype=np.float32), np.zeros(64, np.float32)),
        "divergent barrier",
    )


@cuda.jit
def zero_over_zero(x, out):
    i = cuda.grid(1)
    s = float32(0)
    for k in range(x.shape[1]):
        s += x[i, k]
    for k in range(x.shape[1]):
        out[i, k] = x[i, k] / s  # first, second


def case_zero_over_zero(rng):
    return (
        zero_over_zero,
        1,
        32,
        (np.zeros((32, 4), np.float32), np.ones((32, 4), np.float32)),
        "not a number",
    )


@cuda.jit
def vector_modulo_zero(x, out):
    i = cuda.grid(1)
    out[i] = 100 // x[i] + 100 % x[i]  # first


def case_vector_modulo_zero(rng):
    return vector_modulo_zero, 1, 32, (np.arange(32), np.zeros(32, np.int64)), "division by zero"


CASES = {name[5:]: value for name, value in list(globals().items()) if name.startswith("case_")}
