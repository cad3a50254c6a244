"""Small kernels for the simulator's tests, each with one property; they run on a GPU too (hardware.py)."""

import math

from numba import cuda, float32, float64

from flashcore_numba.wide import load4, load8, store4, store8

FULL = 0xFFFFFFFF


# Global memory


@cuda.jit
def copy_coalesced(src, dst):
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = src[i]


@cuda.jit
def copy_strided(src, dst, stride):
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = src[i * stride]


@cuda.jit
def copy_misaligned(src, dst):
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = src[i + 1]


@cuda.jit
def broadcast_add(src, one, dst):
    i = cuda.grid(1)
    dst[i] = src[i] + one[0]


@cuda.jit
def double_it(src, dst):
    i = cuda.grid(1)
    if i < dst.size:
        value = src[i]
        dst[i] = value + value


@cuda.jit
def double_twice(src, dst):  # the compiler merges the two loads
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = src[i] + src[i]


@cuda.jit
def double_four(src, dst):
    i = cuda.grid(1) * 4
    if i < dst.size:
        for k in range(4):
            value = src[i + k]
            dst[i + k] = value + value


@cuda.jit
def double_wide(src, dst):
    i = cuda.grid(1) * 4
    if i < dst.size:
        a, b, c, d = load4(src, i)
        store4(dst, i, a + a, b + b, c + c, d + d)


@cuda.jit
def double_halves(src, dst):
    i = cuda.grid(1) * 8
    if i < dst.size:
        a, b, c, d, e, f, g, h = load8(src, i)
        store8(dst, i, a + a, b + b, c + c, d + d, e + e, f + f, g + g, h + h)


# Shared memory


@cuda.jit
def transpose_naive(src, dst):  # the column read meets one bank 32 times
    tile = cuda.shared.array((32, 32), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x0, y0 = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for r in range(0, 32, 8):
        tile[ty + r, tx] = src[y0 + ty + r, x0 + tx]
    cuda.syncthreads()
    for r in range(0, 32, 8):
        dst[x0 + ty + r, y0 + tx] = tile[tx, ty + r]


@cuda.jit
def transpose_padded(src, dst):  # one column of padding: no conflict
    tile = cuda.shared.array((32, 33), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x0, y0 = cuda.blockIdx.x * 32, cuda.blockIdx.y * 32
    for r in range(0, 32, 8):
        tile[ty + r, tx] = src[y0 + ty + r, x0 + tx]
    cuda.syncthreads()
    for r in range(0, 32, 8):
        dst[x0 + ty + r, y0 + tx] = tile[tx, ty + r]


@cuda.jit
def shared_broadcast(src, dst):
    s = cuda.shared.array(256, float32)
    i = cuda.threadIdx.x
    s[i] = src[i]
    cuda.syncthreads()
    dst[i] = s[i // 32]


@cuda.jit
def shared_gather32(src, index, dst):
    s = cuda.shared.array(2048, float32)
    i = cuda.threadIdx.x
    for k in range(0, 2048, 32):
        s[k + i] = src[k + i]
    cuda.syncthreads()
    dst[i] = s[index[i]]


@cuda.jit
def shared_gather64(src, index, dst):
    s = cuda.shared.array(2048, float64)
    i = cuda.threadIdx.x
    for k in range(0, 2048, 32):
        s[k + i] = src[k + i]
    cuda.syncthreads()
    dst[i] = s[index[i]]


@cuda.jit
def shared_gather128(src, index, dst):
    s = cuda.shared.array(4096, float32, alignment=16)
    i = cuda.threadIdx.x
    for k in range(0, 4096, 128):
        a, b, c, d = load4(src, k + 4 * i)
        store4(s, k + 4 * i, a, b, c, d)
    cuda.syncthreads()
    a, b, c, d = load4(s, index[i])
    store4(dst, 4 * i, a, b, c, d)


# Matrix products


@cuda.jit
def matmul_naive(a, b, c):
    col, row = cuda.grid(2)
    if row < c.shape[0] and col < c.shape[1]:
        acc = float32(0)
        for k in range(a.shape[1]):
            acc += a[row, k] * b[k, col]
        c[row, col] = acc


def make_matmul_tiled(pad):
    """16 x 16 tiles; with rows of 17 the compiler cannot merge neighbouring loads."""
    width = 16 + pad

    @cuda.jit
    def matmul_tiled(a, b, c):
        sa = cuda.shared.array((16, width), float32)
        sb = cuda.shared.array((16, 16), float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row, col = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
        acc = float32(0)
        for t in range(a.shape[1] // 16):
            sa[ty, tx] = a[row, t * 16 + tx]
            sb[ty, tx] = b[t * 16 + ty, col]
            cuda.syncthreads()
            for k in range(16):
                acc += sa[ty, k] * sb[k, tx]
            cuda.syncthreads()
        c[row, col] = acc

    return matmul_tiled


@cuda.jit
def matmul_dynamic(a, b, c):
    pool = cuda.shared.array(0, float32)
    sa, sb = pool[:256], pool[256:]
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, col = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
    acc = float32(0)
    for t in range(a.shape[1] // 16):
        sa[ty * 16 + tx] = a[row, t * 16 + tx]
        sb[ty * 16 + tx] = b[t * 16 + ty, col]
        cuda.syncthreads()
        for k in range(16):
            acc += sa[ty * 16 + k] * sb[k * 16 + tx]
        cuda.syncthreads()
    c[row, col] = acc


# Warps and atomics


@cuda.jit(device=True)
def warp_sum(value):
    offset = 16
    while offset > 0:
        value += cuda.shfl_down_sync(FULL, value, offset)
        offset //= 2
    return value


@cuda.jit
def row_sum_shuffle(x, out):
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    lane = cuda.threadIdx.x
    acc = float32(0)
    for j in range(lane, x.shape[1], 32):
        acc += x[row, j]
    acc = warp_sum(acc)
    if lane == 0:
        out[row] = acc


@cuda.jit
def histogram(values, counts):
    bins = cuda.shared.array(16, float32)
    i = cuda.threadIdx.x
    if i < 16:
        bins[i] = 0
    cuda.syncthreads()
    for j in range(i, values.size, cuda.blockDim.x):
        cuda.atomic.add(bins, values[j], float32(1))
    cuda.syncthreads()
    if i < 16:
        counts[i] = bins[i]


# Attention


@cuda.jit
def attention_naive(q, k, v, out, scores, scale):
    i = cuda.grid(1)
    n, d = q.shape
    if i < n:
        row_max = float32(-math.inf)
        for j in range(n):
            s = float32(0)
            for c in range(d):
                s += q[i, c] * k[j, c]
            s *= scale
            scores[i, j] = s
            row_max = max(row_max, s)
        row_sum = float32(0)
        for j in range(n):
            p = math.exp(scores[i, j] - row_max)
            scores[i, j] = p
            row_sum += p
        for c in range(d):
            acc = float32(0)
            for j in range(n):
                acc += scores[i, j] * v[j, c]
            out[i, c] = acc / row_sum


def make_attention_tiled(head_dim, trailing_barrier=True, pad=1):
    """32 query rows x 32 keys a step, block (32, 32): thread (tx, ty) owns score [ty, tx]."""
    stride, parts = head_dim + pad, head_dim // 32

    @cuda.jit
    def attention_tiled(q, k, v, out, scale):
        q_smem = cuda.shared.array((32, stride), float32)
        k_smem = cuda.shared.array((32, stride), float32)
        v_smem = cuda.shared.array((32, stride), float32)
        p_smem = cuda.shared.array((32, 33), float32)
        acc = cuda.local.array(parts, float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        row = cuda.blockIdx.x * 32 + ty
        for c in range(parts):
            q_smem[ty, tx + 32 * c] = q[row, tx + 32 * c]
            acc[c] = 0
        row_max = float32(-math.inf)
        row_sum = float32(0)
        for t in range(k.shape[0] // 32):
            for c in range(parts):
                k_smem[ty, tx + 32 * c] = k[t * 32 + ty, tx + 32 * c]
                v_smem[ty, tx + 32 * c] = v[t * 32 + ty, tx + 32 * c]
            cuda.syncthreads()
            s = float32(0)
            for c in range(head_dim):
                s += q_smem[ty, c] * k_smem[tx, c]
            p_smem[ty, tx] = s * scale
            cuda.syncthreads()
            new_max = row_max
            for j in range(32):
                new_max = max(new_max, p_smem[ty, j])
            rescale = math.exp(row_max - new_max)
            row_sum *= rescale
            for c in range(parts):
                acc[c] *= rescale
            for j in range(32):
                p = math.exp(p_smem[ty, j] - new_max)
                row_sum += p
                for c in range(parts):
                    acc[c] += p * v_smem[j, tx + 32 * c]
            row_max = new_max
            if trailing_barrier:
                cuda.syncthreads()
        for c in range(parts):
            out[row, tx + 32 * c] = acc[c] / row_sum

    return attention_tiled
