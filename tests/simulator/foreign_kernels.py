"""Correct kernels as other people write them; each `case_*` returns a launch and what it must compute."""

import math

import numba
import numpy as np
from numba import cuda, float32, types
from numba.cuda import atomic, blockDim, grid, shared, syncthreads, threadIdx

TPB = 16
NEG_INF = float("-inf")
BINS = 32
FILTER = np.array([0.25, 0.5, 0.25], dtype=np.float32)


@cuda.jit
def add_one_2d(an_array):
    x, y = cuda.grid(2)
    if x < an_array.shape[0] and y < an_array.shape[1]:
        an_array[x, y] += 1


def case_add_one_2d(rng):
    a = rng.random((37, 21), dtype=np.float32)
    want = a + 1
    return add_one_2d, ((37 + 15) // 16, (21 + 15) // 16), (16, 16), (a,), a, want


@cuda.jit(fastmath=True)
def saxpy_stride(n, alpha, x, y):
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, n, stride):
        y[i] = alpha * x[i] + y[i]


def case_saxpy(rng):
    x, y = rng.random((2, 1000), dtype=np.float32)
    want = 2.5 * x + y
    return saxpy_stride, 3, 96, (1000, 2.5, x, y), y, want


@cuda.jit
def fast_matmul(A, B, C):
    """Tiled multiplication, any size."""
    sA = cuda.shared.array(shape=(TPB, TPB), dtype=float32)
    sB = cuda.shared.array(shape=(TPB, TPB), dtype=float32)

    x, y = cuda.grid(2)

    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    bpg = cuda.gridDim.x  # blocks per grid

    tmp = float32(0.0)
    for i in range(bpg):
        sA[ty, tx] = 0
        sB[ty, tx] = 0
        if y < A.shape[0] and (tx + i * TPB) < A.shape[1]:
            sA[ty, tx] = A[y, tx + i * TPB]
        if x < B.shape[1] and (ty + i * TPB) < B.shape[0]:
            sB[ty, tx] = B[ty + i * TPB, x]
        cuda.syncthreads()
        for j in range(TPB):
            tmp += sA[ty, j] * sB[j, tx]
        cuda.syncthreads()
    if y < C.shape[0] and x < C.shape[1]:
        C[y, x] = tmp


def case_matmul(rng):
    a, b = rng.random((40, 50), dtype=np.float32), rng.random((50, 45), dtype=np.float32)
    c = np.zeros((40, 45), np.float32)
    return fast_matmul, (4, 4), (16, 16), (a, b, c), c, a @ b


def make_transpose(tile, pad):
    width = tile + pad

    @cuda.jit(cache=True)
    def transpose(src, dst):
        buf = cuda.shared.array((tile, width), numba.float32)
        n, m = src.shape
        bx, by = cuda.blockIdx.x * tile, cuda.blockIdx.y * tile
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        # a comment in the first column
        for r in range(0, tile, cuda.blockDim.y):
            if by + ty + r < n and bx + tx < m:
                buf[ty + r, tx] = src[by + ty + r, bx + tx]
        cuda.syncthreads()
        for r in range(0, tile, cuda.blockDim.y):
            if bx + ty + r < m and by + tx < n:
                dst[bx + ty + r, by + tx] = buf[tx, ty + r]

    return transpose


def case_transpose(rng):
    a = rng.random((50, 70), dtype=np.float32)
    out = np.zeros((70, 50), np.float32)
    return make_transpose(32, 1), (3, 2), (32, 8), (a, out), out, a.T


@cuda.jit
def block_sum(a, out):
    s = shared.array(shape=(256,), dtype=numba.float64)
    tid, i = threadIdx.x, grid(1)
    s[tid] = a[i] if i < a.shape[0] else 0.0
    syncthreads()
    step = blockDim.x >> 1
    while step > 0:
        if tid < step:
            s[tid] += s[tid + step]
        syncthreads()
        step >>= 1
    if not tid:
        atomic.add(out, 0, s[0])


def case_block_sum(rng):
    a, out = rng.random(1000), np.zeros(1)
    return block_sum, 4, 256, (a, out), out, [a.sum()]


@cuda.jit
def interleaved_sum(a, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = a[cuda.grid(1)]
    cuda.syncthreads()
    s_ = 1
    while s_ < cuda.blockDim.x:
        if t % (2 * s_) == 0:
            s[t] += s[t + s_]
        cuda.syncthreads()
        s_ *= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


def case_interleaved_sum(rng):
    a, out = rng.random(512, dtype=np.float32), np.zeros(4, np.float32)
    return interleaved_sum, 4, 128, (a, out), out, a.reshape(4, -1).sum(1)


@cuda.jit
def warp_sum_everyone_writes(a, out):
    lane = cuda.laneid
    row = (cuda.grid(1)) // cuda.warpsize
    acc = float32(0)
    for k in range(lane, a.shape[1], 32):
        acc += a[row, k]
    offset = 16
    while offset > 0:
        acc += cuda.shfl_xor_sync(-1, acc, offset)
        offset //= 2
    out[row] = acc


def case_everyone_writes(rng):
    a, out = rng.random((8, 100), dtype=np.float32), np.zeros(8, np.float32)
    return warp_sum_everyone_writes, 2, 128, (a, out), out, a.sum(1)


@cuda.jit
def flag_by_many(a, found, total):
    s = cuda.shared.array(1, dtype=types.int32)
    s[0] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < a.size and a[i] > 5:
        found[0] = 1
        cuda.atomic.add(s, 0, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, s[0])


def case_flag(rng):
    a = rng.integers(0, 10, 200)
    found, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    return flag_by_many, 2, 100, (a, found, total), total, [(a > 5).sum()]


@cuda.jit
def histogram(x, xmin, xmax, hist):
    local_hist = cuda.shared.array(BINS, dtype=np.uint32)
    t = cuda.threadIdx.x
    if t < BINS:
        local_hist[t] = 0
    cuda.syncthreads()
    nbins = hist.shape[0]
    width = (xmax - xmin) / nbins
    start, stride = cuda.grid(1), cuda.gridsize(1)
    for i in range(start, x.shape[0], stride):
        b = np.int32((x[i] - xmin) / width)
        if 0 <= b < nbins:
            cuda.atomic.add(local_hist, b, 1)
    cuda.syncthreads()
    if t < BINS:
        cuda.atomic.add(hist, t, local_hist[t])


def case_histogram(rng):
    x = rng.normal(size=900).astype(np.float32)
    hist = np.zeros(BINS, np.int32)
    lo, hi = np.float32(-4), np.float32(4)
    bins = ((x - lo) / ((hi - lo) / BINS)).astype(int)
    want = np.bincount(bins[(bins >= 0) & (bins < BINS)], minlength=BINS)
    return histogram, 3, 64, (x, lo, hi, hist), hist, want


@cuda.jit
def scan(a, out):
    n = 128
    buf = cuda.shared.array(shape=(2, 128), dtype=types.int64)
    t = cuda.threadIdx.x
    src, dst = 0, 1
    buf[src, t] = a[t]
    cuda.syncthreads()
    d = 1
    while d < n:
        if t >= d:
            buf[dst, t] = buf[src, t] + buf[src, t - d]
        else:
            buf[dst, t] = buf[src, t]
        src, dst = dst, src
        cuda.syncthreads()
        d <<= 1
    out[t] = buf[src, t]


def case_scan(rng):
    a, out = rng.integers(0, 9, 128), np.zeros(128, np.int64)
    return scan, 1, 128, (a, out), out, np.cumsum(a)


@cuda.jit
def blelloch(a, out):
    s = cuda.shared.array(64, numba.int32)
    t = cuda.threadIdx.x
    s[2 * t] = a[2 * t]
    s[2 * t + 1] = a[2 * t + 1]
    offset = 1
    d = 32
    while d > 0:
        cuda.syncthreads()
        if t < d:
            ai = offset * (2 * t + 1) - 1
            bi = offset * (2 * t + 2) - 1
            s[bi] += s[ai]
        offset *= 2
        d >>= 1
    if t == 0:
        s[63] = 0
    d = 1
    while d < 64:
        offset >>= 1
        cuda.syncthreads()
        if t < d:
            ai = offset * (2 * t + 1) - 1
            bi = offset * (2 * t + 2) - 1
            tmp = s[ai]
            s[ai] = s[bi]
            s[bi] += tmp
        d *= 2
    cuda.syncthreads()
    out[2 * t] = s[2 * t]
    out[2 * t + 1] = s[2 * t + 1]


def case_blelloch(rng):
    a, out = rng.integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32)
    return blelloch, 1, 32, (a, out), out, np.cumsum(a) - a


@cuda.jit
def stencil(u, out, k):
    i, j = cuda.grid(2)
    n, m = u.shape
    if 1 <= i < n - 1 and 1 <= j < m - 1:
        out[i, j] = u[i, j] + k * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j])


def case_stencil(rng):
    u = rng.random((20, 30), dtype=np.float32)
    out = np.zeros_like(u)
    want = out.copy()
    c = u[1:-1, 1:-1]
    want[1:-1, 1:-1] = c + 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * c)
    return stencil, (2, 2), (16, 16), (u, out, 0.1), out, want


@cuda.jit
def convolve(x, out):
    taps = cuda.const.array_like(FILTER)
    i = cuda.grid(1)
    if i >= x.size:
        return
    acc = 0.0
    for k in range(-1, 2):
        if i + k < 0 or i + k >= x.size:
            continue
        acc += x[i + k] * taps[k + 1]
    out[i] = acc


def case_convolve(rng):
    x, out = rng.random(70, dtype=np.float32), np.zeros(70, np.float32)
    return convolve, 3, 32, (x, out), out, np.convolve(x, FILTER, "same")


@cuda.jit
def table_lookup(x, out):
    table = cuda.const.array_like(FILTER)
    i = cuda.grid(1)
    if i < x.size:
        k = i % 5
        if k < 3:
            out[i] = table[k] * x[i] + FILTER[k]


def case_table_lookup(rng):
    x, out = rng.random(70, dtype=np.float32), np.zeros(70, np.float32)
    k = np.arange(70) % 5
    f = FILTER[k.clip(0, 2)]
    return table_lookup, 3, 32, (x, out), out, np.where(k < 3, f * x + f, 0)


@cuda.jit
def softmax_rows(x, y):
    row = cuda.blockIdx.x
    t = cuda.threadIdx.x
    n = x.shape[1]
    red = cuda.shared.array(shape=0, dtype=float32)
    m = -math.inf
    for j in range(t, n, cuda.blockDim.x):
        m = max(m, x[row, j])
    red[t] = m
    cuda.syncthreads()
    s = cuda.blockDim.x // 2
    while s:
        if t < s:
            red[t] = max(red[t], red[t + s])
        cuda.syncthreads()
        s //= 2
    m = red[0]
    cuda.syncthreads()
    total = 0.0
    for j in range(t, n, cuda.blockDim.x):
        total += math.exp(x[row, j] - m)
    red[t] = total
    cuda.syncthreads()
    s = cuda.blockDim.x // 2
    while s:
        if t < s:
            red[t] += red[t + s]
        cuda.syncthreads()
        s //= 2
    for j in range(t, n, cuda.blockDim.x):
        y[row, j] = math.exp(x[row, j] - m) / red[0]


def case_softmax(rng):
    x = rng.normal(size=(5, 100)).astype(np.float32)
    y = np.zeros_like(x)
    e = np.exp(x - x.max(1, keepdims=True))
    return softmax_rows, 5, 64, (x, y), y, e / e.sum(1, keepdims=True)


case_softmax.shared_bytes = 256


@cuda.jit(device=True, inline=True)
def warp_reduce(v):
    for off in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(0xFFFFFFFF, v, off)
    return v


@cuda.jit(device=True)
def block_reduce(v, buf):
    t = cuda.threadIdx.x
    lane, wid = t & 31, t >> 5
    v = warp_reduce(v)
    cuda.syncthreads()
    if lane == 0:
        buf[wid] = v
    cuda.syncthreads()
    v = buf[lane] if t < cuda.blockDim.x // 32 else float32(0)
    if wid == 0:
        v = warp_reduce(v)
    if t == 0:
        buf[0] = v
    cuda.syncthreads()
    return buf[0]


@cuda.jit
def layernorm(x, gamma, beta, y, eps):
    buf = cuda.shared.array(32, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    n = x.shape[-1]
    s = float32(0)
    for j in range(t, n, cuda.blockDim.x):
        s += x[row, j]
    mean = block_reduce(s, buf) / n
    v = float32(0)
    for j in range(t, n, cuda.blockDim.x):
        d = x[row, j] - mean
        v += d**2
    var = block_reduce(v, buf) / n
    inv = 1.0 / math.sqrt(var + eps)
    for j in range(t, n, cuda.blockDim.x):
        y[row, j] = (x[row, j] - mean) * inv * gamma[j] + beta[j]


def case_layernorm(rng):
    x = rng.normal(size=(4, 200)).astype(np.float32)
    g, b = rng.random((2, 200), dtype=np.float32)
    y = np.zeros_like(x)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + b
    return layernorm, 4, 128, (x, g, b, y, 1e-5), y, want


@cuda.jit(device=True)
def mandel(x, y, max_iters):
    c = complex(x, y)
    z = 0.0j
    for i in range(max_iters):
        z = z * z + c
        if (z.real * z.real + z.imag * z.imag) >= 4:
            return i
    return max_iters


@cuda.jit
def mandelbrot(min_x, max_x, min_y, max_y, image, iters):
    height = image.shape[0]
    width = image.shape[1]
    px = (max_x - min_x) / width
    py = (max_y - min_y) / height
    sx, sy = cuda.grid(2)
    gx = cuda.gridDim.x * cuda.blockDim.x
    gy = cuda.gridDim.y * cuda.blockDim.y
    for x in range(sx, width, gx):
        real = min_x + x * px
        for y in range(sy, height, gy):
            imag = min_y + y * py
            image[y, x] = mandel(real, imag, iters)


def case_mandelbrot(rng):
    image = np.zeros((24, 36), np.uint8)
    want = np.zeros_like(image)
    for y in range(24):
        for x in range(36):
            c, z, k = complex(-2 + x * (3 / 36), -1 + y * (2 / 24)), 0j, 0
            while k < 20:
                z = z * z + c
                if abs(z) >= 2:
                    break
                k += 1
            want[y, x] = k
    return mandelbrot, (2, 2), (8, 8), (-2.0, 1.0, -1.0, 1.0, image, 20), image, want


@cuda.jit
def bool_arith(x, out):
    i = cuda.grid(1)
    a = x[i] > 2
    b = x[i] < 7
    out[i, 0] = a + b
    out[i, 1] = a and i % 4
    out[i, 2] = i % 4 or x[i]
    out[i, 3] = 1 if (i % 4 and x[i] > 2) else 0
    out[i, 4] = a & b | (not a)
    out[i, 5] = a * 3 - b
    if i & 2 and i & 4:
        out[i, 6] = 1
    if not (x[i] or i & 8):
        out[i, 7] = 1


def case_bool(rng):
    x, out = rng.integers(0, 10, 64), np.zeros((64, 8), np.int64)
    want = []
    for i, v in enumerate(x):
        a, b = v > 2, v < 7
        want.append(
            [
                int(a) + int(b),
                a and i % 4,
                i % 4 or v,
                bool(i % 4 and a),
                (a & b) | (not a),
                int(a) * 3 - int(b),
                bool(i & 2 and i & 4),
                not (v or i & 8),
            ]
        )
    return bool_arith, 2, 32, (x, out), out, np.array(want).astype(np.int64)


@cuda.jit
def small_ints(u8, i8, out, wrapped):
    i = cuda.grid(1)
    if i >= out.size:
        return
    out[i] = u8[i] + i8[i] * 2
    wrapped[i] = 300
    wrapped[i] += i
    if i == 3:
        wrapped[i] = -1


def case_small_ints(rng):
    u8, i8 = rng.integers(0, 256, 50).astype(np.uint8), rng.integers(-128, 128, 50).astype(np.int8)
    out, wrapped = np.zeros(50, np.int32), np.zeros(50, np.uint8)
    want = u8.astype(int) + 2 * i8.astype(int)
    return small_ints, 2, 32, (u8, i8, out, wrapped), out, want


@cuda.jit
def sentinel(x, out):
    s = cuda.shared.array(32, numba.uint32)
    t = cuda.threadIdx.x
    s[t] = 0xFFFFFFFF
    if t == 2:
        s[2] = -5
    cuda.syncthreads()
    out[t] = s[31 - t]


def case_sentinel(rng):
    out = np.zeros(32, np.int64)
    want = np.full(32, 2**32 - 1)
    want[29] -= 4
    return sentinel, 1, 32, (out, out), out, want


@cuda.jit
def chained_memory(idx, x, out):
    i = cuda.grid(1)
    if 0 <= idx[i] < x.size and idx[i] != 3 != x[idx[i]]:
        out[i] = x[idx[i]]


def case_chained(rng):
    idx, x, out = rng.integers(-5, 15, 64), rng.random(10), np.zeros(64)
    ok = (idx >= 0) & (idx < 10) & (idx != 3)
    return chained_memory, 2, 32, (idx, x, out), out, np.where(ok, x[idx.clip(0, 9)], 0)


@cuda.jit
def from_the_end(x, out):
    i = cuda.grid(1)
    acc = cuda.local.array(3, float32)
    for k in range(2, -1, -1):
        acc[k] = x[i, -1] * k
    out[i] = acc[-1] + x[-1, i % 2]


def case_from_the_end(rng):
    x, out = rng.random((32, 3), dtype=np.float32), np.zeros(32, np.float32)
    return from_the_end, 1, 32, (x, out), out, 2 * x[:, -1] + x[-1, np.arange(32) % 2]


@cuda.jit
def fill_slice(x, out):
    i = cuda.grid(1)
    acc = cuda.local.array(4, np.float32)
    acc[:] = 0
    for k in range(x.shape[1]):
        acc[k % 4] += x[i, k]
    out[i] = acc[0] + acc[1] - acc[2] - acc[3]


def case_fill_slice(rng):
    x, out = rng.random((32, 8), dtype=np.float32), np.zeros(32, np.float32)
    s = x[:, :4] + x[:, 4:]
    return fill_slice, 1, 32, (x, out), out, s[:, 0] + s[:, 1] - s[:, 2] - s[:, 3]


@cuda.jit
def dynamic_local(x, out):
    t = cuda.grid(1)
    stack = cuda.local.array(shape=8, dtype=numba.int32)
    top = 0
    v = x[t]
    while v > 0:
        stack[top] = v % 3
        top += 1
        v //= 3
    r = 0
    while top:
        top -= 1
        r = r * 3 + stack[top]
    out[t] = r


def case_dynamic_local(rng):
    x, out = rng.integers(0, 3**8, 40), np.zeros(40, np.int32)
    return dynamic_local, 1, 40, (x, out), out, x


@cuda.jit
def bitonic(a):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = a[t]
    cuda.syncthreads()
    k = 2
    while k <= 128:
        j = k >> 1
        while j > 0:
            ixj = t ^ j
            if ixj > t:  # noqa: SIM102
                if ((t & k) == 0 and s[t] > s[ixj]) or ((t & k) != 0 and s[t] < s[ixj]):
                    s[t], s[ixj] = s[ixj], s[t]
            cuda.syncthreads()
            j >>= 1
        k <<= 1
    a[t] = s[t]


def case_bitonic(rng):
    a = rng.random(128, dtype=np.float32)
    return bitonic, 1, 128, (a,), a, np.sort(a)


@cuda.jit
def dot_halves(a, b, out):
    i = cuda.grid(1)
    acc = np.float32(0)
    for k in range(a.shape[1]):
        acc += np.float32(a[i, k]) * np.float32(b[i, k])
    out[i] = np.float16(acc)


def case_dot_halves(rng):
    a, b = rng.random((2, 32, 20)).astype(np.float16)
    out = np.zeros(32, np.float16)
    want = (a.astype(np.float32) * b.astype(np.float32)).sum(1)
    return dot_halves, 1, 32, (a, b, out), out, want


@cuda.jit
def three_d(vol, out):
    i, j, k = cuda.grid(3)
    if i < vol.shape[0] and j < vol.shape[1] and k < vol.shape[2]:
        cuda.atomic.add(out, (i, k), vol[i, j, k])
        cuda.atomic.max(out, (i, vol.shape[2]), vol[i, j, k])


def case_three_d(rng):
    vol = rng.integers(0, 100, (5, 6, 7))
    out = np.zeros((5, 8), np.int64)
    want = np.concatenate([vol.sum(1), vol.max((1, 2))[:, None]], 1)
    return three_d, (2, 2, 2), (4, 4, 4), (vol, out), out, want


@cuda.jit
def flash(Q, K, V, Out, sm_scale):
    """One row per thread, K and V tiles of 16 keys through shared memory."""
    BK = 16
    D = 32
    sK = cuda.shared.array((16, 32), float32)
    sV = cuda.shared.array((16, 32), float32)
    tx = cuda.threadIdx.x
    row = cuda.blockIdx.x * cuda.blockDim.x + tx
    N = K.shape[0]
    q = cuda.local.array(32, float32)
    o = cuda.local.array(32, float32)
    if row < Q.shape[0]:
        for d in range(D):
            q[d] = Q[row, d]
    else:
        for d in range(D):
            q[d] = 0.0
    for d in range(D):
        o[d] = 0.0
    m_i = -np.inf
    l_i = 0.0
    for start in range(0, N, BK):
        for idx in range(tx, BK * D, cuda.blockDim.x):
            r, c = idx // D, idx % D
            if start + r < N:
                sK[r, c] = K[start + r, c]
                sV[r, c] = V[start + r, c]
        cuda.syncthreads()
        for j in range(min(BK, N - start)):
            s = 0.0
            for d in range(D):
                s += q[d] * sK[j, d]
            s *= sm_scale
            m_new = max(m_i, s)
            alpha = math.exp(m_i - m_new)
            p = math.exp(s - m_new)
            l_i = l_i * alpha + p
            for d in range(D):
                o[d] = o[d] * alpha + p * sV[j, d]
            m_i = m_new
        cuda.syncthreads()
    if row < Q.shape[0]:
        for d in range(D):
            Out[row, d] = o[d] / l_i


def case_flash(rng):
    q = rng.normal(size=(40, 32)).astype(np.float32)
    k, v = rng.normal(size=(2, 37, 32)).astype(np.float32)
    o = np.full_like(q, np.nan)
    s = q @ k.T * 0.2
    p = np.exp(s - s.max(1, keepdims=True))
    return flash, 2, 32, (q, k, v, o, 0.2), o, p / p.sum(1, keepdims=True) @ v


def puzzle(cuda, TPB):
    def call(out, a, size) -> None:
        buf = cuda.shared.array(TPB, numba.float32)
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        local_i = cuda.threadIdx.x
        if i < size:
            buf[local_i] = a[i]
            cuda.syncthreads()
        if i < size:
            out[i] = buf[local_i] + (buf[local_i - 1] if local_i > 0 else 0)

    return call


def case_puzzle(rng):
    a, out = rng.random(64, dtype=np.float32), np.zeros(64, np.float32)
    want = a + np.where(np.arange(64) % 32 > 0, np.concatenate([[0], a[:-1]]), 0)
    return cuda.jit(puzzle(cuda, 32)), 2, 32, (out, a, 64), out, want


@cuda.jit
def numpy_functions(x, out):
    i = cuda.grid(1)
    out[i, 0] = np.sin(x[i]) + np.cos(x[i]) + np.tanh(x[i])
    out[i, 1] = np.floor(x[i]) - np.ceil(x[i])
    out[i, 2] = np.maximum(x[i], 0.5) * np.minimum(x[i], 0.5)
    out[i, 3] = math.atan(x[i]) + math.asin(x[i]) + math.acos(x[i])
    out[i, 4] = math.sinh(x[i]) + math.cosh(x[i]) + math.erfc(x[i]) + math.pi
    q, r = divmod(i, 5)
    out[i, 5] = q - r
    out[i, 6] = math.lgamma(x[i] + 1) + math.radians(x[i])
    out[i, 7] = np.power(x[i], 3) + np.log2(x[i] + 1) + x[i] ** 0.5
    out[i, 8] = np.isnan(x[i]) or np.isinf(x[i])


def case_numpy(rng):
    x, out = rng.random(32), np.zeros((32, 9))
    i = np.arange(32)
    want = np.stack(
        [
            np.sin(x) + np.cos(x) + np.tanh(x),
            np.full(32, -1),
            np.maximum(x, 0.5) * np.minimum(x, 0.5),
            np.arctan(x) + np.arcsin(x) + np.arccos(x),
            np.sinh(x) + np.cosh(x) + np.vectorize(math.erfc)(x) + np.pi,
            i // 5 - i % 5,
            np.vectorize(math.lgamma)(x + 1) + np.radians(x),
            x**3 + np.log2(x + 1) + x**0.5,
            0 * x,
        ],
        1,
    )
    return numpy_functions, 1, 32, (x, out), out, want


@cuda.jit
def lcg(seed, out):
    i = cuda.grid(1)
    h = 5381
    for k in range(40):
        h = h * 33 + k
    s = seed[i]
    for _ in range(5):
        s = (s * 1664525 + 1013904223) % 4294967296
    out[i] = (s ^ h) & 0xFFFF


def case_lcg(rng):
    seed, out = rng.integers(0, 2**32, 32), np.zeros(32, np.int64)
    h = 5381
    for k in range(40):
        h = h * 33 + k
    h = (h + 2**63) % 2**64 - 2**63
    s = [int(v) for v in seed]
    for _ in range(5):
        s = [(v * 1664525 + 1013904223) % 2**32 for v in s]
    return lcg, 1, 32, (seed, out), out, [(v ^ h) & 0xFFFF for v in s]


@cuda.jit
def alias(a, b):
    i = cuda.grid(1)
    b[i] = a[i] * 2


def case_alias(rng):
    a = rng.random(64)
    return alias, 2, 32, (a, a), a, 2 * a


@cuda.jit(max_registers=40)
def nbody(pos, acc, eps):
    tile = cuda.shared.array(shape=(32, 3), dtype=float32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    n = pos.shape[0]
    ax = ay = az = float32(0.0)
    px, py, pz = (pos[i, 0], pos[i, 1], pos[i, 2]) if i < n else (float32(0), float32(0), float32(0))
    for b in range((n + 31) // 32):
        j = b * 32 + t
        if j < n:
            for c in range(3):
                tile[t, c] = pos[j, c]
        cuda.syncthreads()
        for k in range(32):
            if b * 32 + k >= n:
                break
            dx, dy, dz = tile[k, 0] - px, tile[k, 1] - py, tile[k, 2] - pz
            inv = 1.0 / math.sqrt(dx * dx + dy * dy + dz * dz + eps) ** 3
            ax += dx * inv
            ay += dy * inv
            az += dz * inv
        cuda.syncthreads()
    if i < n:
        acc[i, 0], acc[i, 1], acc[i, 2] = ax, ay, az


def case_nbody(rng):
    pos = rng.random((50, 3), dtype=np.float32)
    acc = np.zeros_like(pos)
    d = pos[None] - pos[:, None]
    want = (d / ((d**2).sum(-1) + 0.1)[..., None] ** 1.5).sum(1)
    return nbody, 2, 32, (pos, acc, 0.1), acc, want


@cuda.jit
def compact(x, out, count):
    i = cuda.grid(1)
    keep = i < x.size and x[i] > 0.5
    mask = cuda.ballot_sync(0xFFFFFFFF, keep)
    lane = cuda.threadIdx.x % 32
    leader = cuda.ffs(mask) - 1
    base = 0
    if lane == leader:
        base = cuda.atomic.add(count, 0, cuda.popc(mask))
    base = cuda.shfl_sync(0xFFFFFFFF, base, leader)
    if keep:
        out[base + cuda.popc(mask & ((1 << lane) - 1))] = x[i]


def case_compact(rng):
    x = rng.random(100)
    out, count = np.zeros(100), np.zeros(1, np.int32)
    want = np.zeros(100)
    kept = x[x > 0.5]
    want[: len(kept)] = kept
    return compact, 4, 32, (x, out, count), out, want


case_compact.any_order = True


@cuda.jit
def strided_batches(x, out):
    for b in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        for i in range(cuda.threadIdx.x, x.shape[1], cuda.blockDim.x):
            row = x[b]
            if row[i] < 0:
                continue
            out[b][i] = row[i] if i % 2 else -row[i]


def case_batches(rng):
    x = rng.normal(size=(7, 45)).astype(np.float32)
    out = np.zeros_like(x)
    sign = np.where(np.arange(45) % 2, 1, -1)
    return strided_batches, 3, 40, (x, out), out, np.where(x < 0, 0, x * sign)


@cuda.jit
def last_block(x, partial, counter, out):
    s = cuda.shared.array(64, float32)
    amlast = cuda.shared.array(1, numba.boolean)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        v = float32(0)
        for k in range(64):
            v += s[k]
        partial[cuda.blockIdx.x] = v
        cuda.threadfence()
        amlast[0] = cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if amlast[0] and t == 0:
        v = float32(0)
        for b in range(cuda.gridDim.x):
            v += partial[b]
        out[0] = v


def case_last_block(rng):
    x = rng.random(256, dtype=np.float32)
    out = np.zeros(1, np.float32)
    return last_block, 4, 64, (x, np.zeros(4, np.float32), np.zeros(1, np.int32), out), out, [x.sum()]


@cuda.jit
def ragged_warps(x, out):
    """What comes from lanes that have left is thrown away."""
    i = cuda.grid(1)
    if i >= x.size:
        return
    v = x[i]
    d = 16
    while d > 0:
        other = cuda.shfl_down_sync(0xFFFFFFFF, v, d)
        if i % 32 + d < 32 and i + d < x.size:
            v += other
        d >>= 1
    if i % 32 == 0:
        out[i // 32] = v


def case_ragged_warps(rng):
    x, out = rng.random(100), np.zeros(4)
    return ragged_warps, 2, 64, (x, out), out, [x[k : k + 32].sum() for k in range(0, 100, 32)]


@cuda.jit
def discrete_fourier(x, out):
    k = cuda.grid(1)
    acc = 0j
    for j in range(x.size):
        angle = -2.0 * math.pi * k * j / x.size
        acc += x[j] * complex(math.cos(angle), math.sin(angle))
    inside = abs(acc) >= 0
    out[k] = abs(acc) + -inside + inside


def case_discrete_fourier(rng):
    x, out = rng.random((2, 32))
    return discrete_fourier, 1, 32, (x, out), out, abs(np.fft.fft(x))


def make_reduction(combine, dtype):
    @cuda.jit(device=True)
    def both(a, b):
        return combine(a, b)

    @cuda.jit
    def reduction(x, out):
        """Ends by break,
        with text in the first column."""
        s = cuda.shared.array(64, dtype)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        n = 64
        while True:
            n >>= 1
            if n == 0:
                break
            if t < n:
                s[t] = both(s[t], s[t + n])
            cuda.syncthreads()
        if t == 0:
            out[0] = s[0]

    return reduction


def case_reduction(rng):
    x, out = rng.random(64), np.zeros(1)
    return make_reduction(max, types.float64), 1, 64, (x, out), out, [x.max()]


@cuda.jit
def game_of_life(g, out):
    i, j = cuda.grid(2)
    n, m = g.shape
    if i >= n or j >= m:
        return
    alive = 0
    for di in range(-1, 2):
        for dj in range(-1, 2):
            if di == 0 and dj == 0:
                continue
            alive += g[(i + di) % n, (j + dj) % m]
    if g[i, j] and (alive == 2 or alive == 3):  # noqa: SIM114
        out[i, j] = 1
    elif not g[i, j] and alive == 3:
        out[i, j] = 1
    else:
        out[i, j] = 0


def case_life(rng):
    g = rng.integers(0, 2, (20, 30)).astype(np.uint8)
    out = np.full_like(g, 9)
    near = sum(np.roll(g, (a, b), (0, 1)) for a in (-1, 0, 1) for b in (-1, 0, 1)) - g
    return game_of_life, (2, 4), (16, 8), (g, out), out, (near == 3) | ((g == 1) & (near == 2))


@cuda.jit
def online_softmax(x, out):
    """A warp per row; (m, d) pairs are merged by shuffles."""
    lane = cuda.threadIdx.x & 31
    row = cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
    if row >= x.shape[0]:
        return
    m = float32(NEG_INF)
    d = float32(0)
    for j in range(lane, x.shape[1], 32):
        v = x[row, j]
        m_new = max(m, v)
        d = d * math.exp(m - m_new) + math.exp(v - m_new)
        m = m_new
    k = 16
    while k >= 1:
        m2 = cuda.shfl_xor_sync(0xFFFFFFFF, m, k)
        d2 = cuda.shfl_xor_sync(0xFFFFFFFF, d, k)
        m_new = max(m, m2)
        d = d * math.exp(m - m_new) + d2 * math.exp(m2 - m_new)
        m = m_new
        k = k // 2
    for j in range(lane, x.shape[1], 32):
        out[row, j] = math.exp(x[row, j] - m) / d


def case_online_softmax(rng):
    x = rng.normal(size=(5, 77)).astype(np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    out = np.zeros_like(x)
    return online_softmax, 2, 128, (x, out), out, e / e.sum(1, keepdims=True)


@cuda.jit
def bool_arrays(x, mask, out):
    i = cuda.grid(1)
    mask[i] = x[i] > 0.5
    s = cuda.shared.array(32, numba.boolean)
    s[cuda.threadIdx.x] = not mask[i]
    cuda.syncthreads()
    n = 0
    for k in range(32):
        if s[k]:
            n += 1
        n += mask[cuda.blockIdx.x * 32 + k] * 100
    out[i] = n


def case_bool_arrays(rng):
    x, mask, out = rng.random(64), np.zeros(64, bool), np.zeros(64, np.int64)
    n = (x.reshape(2, 32) > 0.5).sum(1)
    return bool_arrays, 2, 32, (x, mask, out), out, np.repeat(100 * n + 32 - n, 32)


@cuda.jit
def fnv_hash(x, out):
    i = cuda.grid(1)
    h = np.uint32(2166136261)
    for k in range(4):
        h = np.uint32((h ^ ((x[i] >> (8 * k)) & 0xFF)) * np.uint32(16777619))
    out[i] = h


def case_fnv_hash(rng):
    x, out, want = rng.integers(0, 2**32, 32).astype(np.uint32), np.zeros(32, np.uint32), []
    for v in x.tolist():
        h = 2166136261
        for k in range(4):
            h = ((h ^ ((v >> 8 * k) & 255)) * 16777619) % 2**32
        want.append(h)
    return fnv_hash, 1, 32, (x, out), out, want


@cuda.jit
def extremes(x, out):
    i = cuda.grid(1)
    cuda.atomic.nanmax(out, 0, x[i])
    cuda.atomic.nanmin(out, 1, x[i])


def case_extremes(rng):
    x, out = rng.random(64), np.array([-9.0, 9])
    x[3] = np.nan
    return extremes, 2, 32, (x, out), out, [np.nanmax(x), np.nanmin(x)]


CASES = {name[5:]: value for name, value in list(globals().items()) if name.startswith("case_")}
