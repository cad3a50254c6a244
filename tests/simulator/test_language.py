"""What Python and CUDA a kernel may use, with the values Numba's types give, and how the rest is refused."""

import math

import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int32, uint32
from numba.cuda import libdevice
from numba.cuda.types import float16

from flashcore_numba.simulator import Unsupported, simulate

FULL = 0xFFFFFFFF
SCALE = 3
HALF = 0.5


def run(kernel, *args, lanes=32, **options):
    return simulate(kernel, 1, lanes, *args, **options).check()


def floats(rng, n=32):
    return rng.standard_normal(n, dtype=np.float32)


# Functions and types


@cuda.jit
def mathematics(x, out):
    i = cuda.threadIdx.x
    v = abs(x[i]) + float32(1)
    out[i, 0] = math.exp(v)
    out[i, 1] = math.sqrt(v)
    out[i, 2] = math.log2(v) + math.log(v)
    out[i, 3] = math.erf(v)
    out[i, 4] = math.tanh(v)
    out[i, 5] = libdevice.fast_expf(v)
    out[i, 6] = libdevice.exp2f(v)
    out[i, 7] = libdevice.fast_fdividef(v, float32(3))
    out[i, 8] = libdevice.rsqrtf(v)
    out[i, 9] = libdevice.fmaf(v, v, v)
    out[i, 10] = math.floor(v) + math.ceil(v)
    out[i, 11] = max(v, float32(2), float32(1.5)) - min(v, float32(2))
    out[i, 12] = cuda.selp(v > 2, v, float32(0))
    out[i, 13] = pow(v, 2)
    out[i, 14] = math.exp2(v)


def test_mathematics(rng):
    x = floats(rng)
    out = np.zeros((32, 15), np.float32)
    totals = run(mathematics, x, out).totals()
    v = np.abs(x).astype(np.float64) + 1
    expected = [
        *(np.exp(v), np.sqrt(v), np.log2(v) + np.log(v), [math.erf(t) for t in v], np.tanh(v)),
        *(np.exp(v), np.exp2(v), v / 3, 1 / np.sqrt(v), v * v + v, np.floor(v) + np.ceil(v)),
        *(np.maximum(v, 2) - np.minimum(v, 2), np.where(v > 2, v, 0), v**2, np.exp2(v)),
    ]
    np.testing.assert_allclose(out.T, expected, rtol=1e-5, atol=1e-5)
    assert totals["exp32"] == 4 * 32


@cuda.jit
def ignores_nan(x, out):
    i = cuda.threadIdx.x
    out[i] = max(x[i], float32(-1)) + min(float32(2), x[i])


def test_max_and_min_ignore_nan():
    """PTX max.f32 and min.f32 return the operand that is a number."""
    x, out = np.array([np.nan, 5, -5], np.float32), np.zeros(3, np.float32)
    run(ignores_nan, x, out, lanes=3)
    np.testing.assert_array_equal(out, [1, 7, -6])


@cuda.jit
def casts(x, out):
    i = cuda.threadIdx.x
    out[i, 0] = int32(x[i])
    out[i, 1] = int8(i * 20)
    out[i, 2] = uint32(-1 - i)
    out[i, 3] = float16(x[i] * float32(1000))
    out[i, 4] = int(x[i]) // 3
    out[i, 5] = int(x[i]) % 3
    out[i, 6] = bool(x[i] > 0)
    out[i, 7] = float64(x[i]) * 2
    out[i, 8] = (i << 3) ^ (i & 5) | (i >> 1)
    out[i, 9] = -i + ~i
    out[i, 10] = np.int32(7) * np.float32(0.5)


def test_casts_and_integers(rng):
    x = floats(rng) * 10
    out = np.zeros((32, 11))
    run(casts, x, out)
    i, whole = np.arange(32), np.trunc(x).astype(np.int64)
    expected = [
        *(whole, (i * 20).astype(np.int8), (-1 - i) % 2**32),
        (x * np.float32(1000)).astype(np.float16),
        *(whole // 3, whole % 3, x > 0, 2 * x.astype(np.float64)),
        *((i << 3) ^ (i & 5) | (i >> 1), -i + ~i, np.full(32, 3.5)),
    ]
    np.testing.assert_allclose(out.T, expected, rtol=1e-6)


@cuda.jit
def bits(x, out):
    i = cuda.threadIdx.x
    out[i, 0] = cuda.popc(x[i])
    out[i, 1] = cuda.clz(x[i])
    out[i, 2] = cuda.ffs(x[i])
    out[i, 3] = cuda.brev(x[i])


def test_bit_functions(rng):
    x = rng.integers(0, 2**32, 32).astype(np.uint32)
    x[:2] = 0, 1
    out = np.zeros((32, 4), np.int64)
    run(bits, x, out)
    texts = [f"{int(v):032b}" for v in x]
    np.testing.assert_array_equal(out[:, 0], [t.count("1") for t in texts])
    np.testing.assert_array_equal(out[:, 1], [len(t) - len(t.lstrip("0")) for t in texts])
    np.testing.assert_array_equal(out[:, 2], [(t[::-1].find("1") + 1) for t in texts])
    np.testing.assert_array_equal(out[:, 3], [int(t[::-1], 2) for t in texts])


@cuda.jit
def half_arithmetic(x, out):
    i = cuda.threadIdx.x
    out[i] = x[i] * x[i] + float16(1)


def test_float16_arithmetic_rounds_every_step(rng):
    x = floats(rng).astype(np.float16)
    out = np.zeros_like(x)
    assert run(half_arithmetic, x, out).totals()["fma16"] == 32
    np.testing.assert_array_equal(out, x * x + np.float16(1))


# Functions, closures, tuples


@cuda.jit(device=True)
def two(a, b=4):
    return a + b, a * b


@cuda.jit(device=True)
def sign(v):
    if v < 0:
        return -1
    if v > 0:
        return 1
    return 0


def make_scaled(factor):
    offset = factor + 1

    @cuda.jit(device=True)
    def scaled(v):
        """Closures freeze their constants."""
        return factor * v + offset

    @cuda.jit
    def kernel(x, shape, out):
        i = cuda.threadIdx.x
        total, product = two(i)
        rows, columns = shape
        (low, high), last = (total, product), two(i, b=SCALE)
        out[i, 0] = scaled(i) + rows - columns
        out[i, 1] = low * 100 + high
        out[i, 2] = last[0] - last[1]
        out[i, 3] = sign(x[i])
        a = b = x.size + len(x) + x.ndim + x.shape[0]
        out[i, 4] = a + b if HALF < 1 and x.dtype is not None else 0

    return kernel


def test_functions_closures_and_tuples(rng):
    x = floats(rng)
    x[0] = 0
    out, i = np.zeros((32, 5)), np.arange(32)
    for factor in (2, 5):
        run(make_scaled(factor), x, (7, 3), out)
        np.testing.assert_array_equal(out[:, 0], factor * i + factor + 1 + 4)
    np.testing.assert_array_equal(out[:, 1], (i + 4) * 100 + 4 * i)
    np.testing.assert_array_equal(out[:, 2], i + 3 - 3 * i)
    np.testing.assert_array_equal(out[:, 3], np.sign(x))
    np.testing.assert_array_equal(out[:, 4], 2 * (3 * 32 + 1))


# Control flow


@cuda.jit
def ragged_loops(limits, out):
    i = cuda.threadIdx.x
    visible = limits[i]
    total = 0
    for j in range(visible):
        if j == 7:
            continue
        if j > 20:
            break
        total += j
    left = visible
    steps = 0
    while left > 1 and steps < 100:
        left = left // 2 if left % 2 == 0 else 3 * left + 1
        steps += 1
    out[i, 0] = total
    out[i, 1] = steps
    out[i, 2] = j if visible else -1
    if i % 3 == 0 and not (visible < 5 or visible > 25):
        return
    out[i, 3] = 0 < visible < 9


def test_loops_of_different_lengths(rng):
    limits = rng.integers(0, 32, 32)
    limits[:2] = 0, 1
    out = np.full((32, 4), -7)
    run(ragged_loops, limits, out)
    expected = np.full((32, 4), -7)
    for i, visible in enumerate(limits):
        taken = [j for j in range(min(visible, 22)) if j != 7 and j <= 20]
        left, steps = int(visible), 0
        while left > 1 and steps < 100:
            left = left // 2 if left % 2 == 0 else 3 * left + 1
            steps += 1
        expected[i, :3] = sum(taken), steps, min(visible - 1, 21)
        if not (i % 3 == 0 and 5 <= visible <= 25):
            expected[i, 3] = 0 < visible < 9
    np.testing.assert_array_equal(out, expected)


# Grids, memory, atomics, warps


@cuda.jit
def three_dimensions(out):
    x, y, z = cuda.grid(3)
    nx, ny, nz = cuda.gridsize(3)
    out[z, y, x] = x + nx * (y + ny * z) + 0 * nz + cuda.gridDim.y - cuda.blockDim.x


def test_three_dimensional_grid_and_block():
    out = np.zeros((4, 9, 8), np.int64)
    simulate(three_dimensions, (2, 3, 2), (4, 3, 2), out).check()
    np.testing.assert_array_equal(out.ravel(), np.arange(out.size) + 3 - 4)


@cuda.jit
def views(x, out):
    pool = cuda.shared.array(shape=0, dtype=float32)
    words = cuda.shared.array(0, int32)
    left, right = pool[:32], pool[32:64]
    i = cuda.threadIdx.x
    left[i] = x[1, i]
    right[i] = x[2][i]
    words[64 + i] = i * i
    cuda.syncthreads()
    row = x[0, 4:]
    out[i] = left[31 - i] + pool[32 + i] + words[64 + i] + row[i]


def test_views_of_one_pool_and_of_arrays(rng):
    x = rng.standard_normal((3, 36), dtype=np.float32)[:, :]
    out = np.zeros(32)
    result = run(views, x, out, shared_bytes=384)
    np.testing.assert_allclose(out, x[1, :32][::-1] + x[2, :32] + np.arange(32) ** 2 + x[0, 4:], rtol=1e-5)
    assert result.totals()["shared_bytes_per_block"] == 384


def test_strided_arguments(rng):
    packed = rng.standard_normal((64, 3), dtype=np.float32)
    out = np.zeros((32, 2), np.float32)
    run(copy_kernel, packed[::2, 1], out[:, 0])
    np.testing.assert_array_equal(out[:, 0], packed[::2, 1])
    assert (out[:, 1] == 0).all()


@cuda.jit
def copy_kernel(src, dst):
    i = cuda.threadIdx.x
    dst[i] = src[i]


@cuda.jit
def atomics(x, out, old):
    i = cuda.threadIdx.x
    old[i] = cuda.atomic.add(out, 0, x[i])
    cuda.atomic.sub(out, 1, x[i])
    cuda.atomic.max(out, 2, x[i])
    cuda.atomic.min(out, 3, x[i])
    cuda.atomic.or_(out, 4, x[i])
    cuda.atomic.and_(out, 5, x[i])
    cuda.atomic.xor(out, 6, x[i])
    cuda.atomic.exch(out, 7 + i, x[i])
    cuda.atomic.cas(out, 39, 0, 5)
    cuda.atomic.cas(out, 39, 6, 7)


def test_atomics(rng):
    x = rng.integers(1, 1000, 32)
    out, old = np.zeros(40, np.int64), np.zeros(32, np.int64)
    out[3] = out[5] = 1023
    for order in ("lockstep", "reverse"):
        again = out.copy()
        run(atomics, x, again, old, order=order)
        expected = [x.sum(), -x.sum(), x.max(), min(1023, x.min())]
        expected += [f.reduce(x) for f in (np.bitwise_or, np.bitwise_and, np.bitwise_xor)]
        np.testing.assert_array_equal(again, [*expected, *x, 5])
        lanes = x if order == "lockstep" else x[::-1]
        before = np.concatenate([[0], np.cumsum(lanes)[:-1]])
        np.testing.assert_array_equal(old, before if order == "lockstep" else before[::-1])


TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
TWO = (TABLE, TABLE[:, ::2] + 100)


@cuda.jit
def constant_rows(y, n):
    i = cuda.threadIdx.x
    table = cuda.const.array_like(TABLE)
    row = table[i % 3]
    y[0, i] = row[i % 4]
    y[1, i] = table[1:, 2][i % 2] + len(table) + table.shape[1]
    chosen = TABLE if i < n else TWO[1]
    y[2, i] = chosen[i % 3, 1]
    y[3, i] = TWO[i % 2][2, 0]


@cuda.jit
def constant_out_of_bounds(y, n):
    i = cuda.threadIdx.x
    row = TABLE[i % n]
    y[0, i] = row[i % 4]


@cuda.jit
def constant_store(y, n):
    TABLE[0, 0] = n


def test_constant_arrays_have_rows_and_slices():
    """A row that each lane chooses, as of any other array; nothing is counted as memory traffic."""
    i, y = np.arange(32), np.zeros((4, 32))
    totals = run(constant_rows, y, 7).totals()
    rows = [TABLE[i % 3, i % 4], TABLE[1 + i % 2, 2] + 7, np.where(i < 7, TABLE[i % 3, 1], TWO[1][i % 3, 1])]
    np.testing.assert_array_equal(y, [*rows, np.where(i % 2, TWO[1][2, 0], TABLE[2, 0])])
    assert totals["global_load_requests"] == totals["shared_load_requests"] == 0
    run(constant_out_of_bounds, y, 3)
    (problem,) = simulate(constant_out_of_bounds, 1, 32, y, 4).problems
    assert problem.kind == "out of bounds" and "index [3] of constant array" in problem.text
    with pytest.raises(Unsupported, match="TABLE"):
        run(constant_store, y, 3)
    assert TABLE[0, 0] == 0


@cuda.jit
def extremes(x, y):
    i = cuda.threadIdx.x
    cuda.atomic.max(y, (0, i), x[i])
    cuda.atomic.min(y, (1, i), x[i])
    cuda.atomic.nanmax(y, (2, i), x[i])
    cuda.atomic.nanmin(y, (3, i), x[i])


def test_atomic_extremes_of_what_is_no_number():
    """max and min keep a NaN in memory, nanmax and nanmin replace it; one as the operand changes nothing."""
    x, y = np.zeros(32, np.float32), np.full((4, 32), np.nan, np.float32)
    y[:, 16:], x[8:24] = 1, np.nan
    run(extremes, x, y)
    of_numbers = np.where(np.arange(32) < 24, 1, [[1], [0]])[:, 16:]
    np.testing.assert_array_equal(y[:, 16:], np.tile(of_numbers, (2, 1)))
    assert np.isnan(y[:2, :16]).all() and (y[2:, :8] == 0).all() and np.isnan(y[2:, 8:16]).all()


@cuda.jit
def warp_functions(x, out):
    i = cuda.threadIdx.x
    lane = cuda.laneid
    v = x[i]
    out[i, 0] = cuda.shfl_sync(FULL, v, 5)
    out[i, 1] = cuda.shfl_up_sync(FULL, v, 3)
    out[i, 2] = cuda.shfl_down_sync(FULL, v, 30)
    out[i, 3] = cuda.shfl_xor_sync(FULL, v, 9)
    out[i, 4] = cuda.all_sync(FULL, v > 0)
    out[i, 5] = cuda.any_sync(FULL, v > 900)
    out[i, 6] = cuda.ballot_sync(FULL, v % 2)
    out[i, 7] = cuda.eq_sync(FULL, v > 0)
    out[i, 8] = cuda.syncthreads_count(int(v > 500))
    out[i, 9] = cuda.syncthreads_and(int(v > 0)) + 2 * cuda.syncthreads_or(int(v > 1000))
    if lane % 2:
        out[i, 10] = cuda.activemask()
        out[i, 11] = cuda.shfl_sync(0xAAAAAAAA, v, 1)


@pytest.mark.parametrize("order", ["lockstep", "reverse", "random:5"])
def test_warp_functions(rng, order):
    x = rng.integers(1, 1000, 64)
    out = np.zeros((64, 12), np.int64)
    run(warp_functions, x, out, lanes=64, order=order)
    for start in (0, 32):
        v, lane = x[start : start + 32], np.arange(32)
        got = out[start : start + 32].T
        np.testing.assert_array_equal(got[0], np.full(32, v[5]))
        np.testing.assert_array_equal(got[1], v[np.where(lane < 3, lane, lane - 3)])
        np.testing.assert_array_equal(got[2], v[np.where(lane > 1, lane, lane + 30)])
        np.testing.assert_array_equal(got[3], v[lane ^ 9])
        np.testing.assert_array_equal(got[4], np.ones(32))
        np.testing.assert_array_equal(got[5], np.full(32, (v > 900).any()))
        votes = np.uint32(((v % 2) << lane).sum()).astype(np.int32)  # Numba's ballot is an int32
        np.testing.assert_array_equal(got[6], np.full(32, votes))
        np.testing.assert_array_equal(got[7], np.ones(32))
        np.testing.assert_array_equal(got[8], np.full(32, (x > 500).sum()))
        np.testing.assert_array_equal(got[9], np.ones(32))
        np.testing.assert_array_equal(got[10], np.where(lane % 2, 0xAAAAAAAA, 0))
        np.testing.assert_array_equal(got[11], np.where(lane % 2, v[1], 0))


# Refused

REFUSED_BY_NUMBA = {
    "a kernel that returns a value": "return x[0]",
    "a shape from an argument": "s = cuda.shared.array(x.shape[0], np.float32)",
    "a shape computed from a global": "s = cuda.shared.array(2 * SIZE, np.float32)",
    "a shape in a variable": "n = i + 1\n    s = cuda.local.array((n, 2), np.float32)",
}


@pytest.mark.parametrize("what", REFUSED_BY_NUMBA)
def test_what_numba_refuses_is_refused_with_its_line(what, tmp_path):
    path = tmp_path / "refused.py"
    body = REFUSED_BY_NUMBA[what]
    path.write_text(
        "import numpy as np\nfrom numba import cuda\n\nSIZE = 4\n\n"
        f"@cuda.jit\ndef kernel(x):\n    i = cuda.threadIdx.x\n    {body}\n"
    )
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    with pytest.raises(Unsupported, match=r"refused\.py:(9|10): Numba refuses "):
        simulate(scope["kernel"], 1, 32, np.ones(32, np.float32))


@cuda.jit
def literal_shapes(x):
    rows = 4
    s, r = cuda.shared.array((rows, 2 * 4), float32), cuda.local.array(SCALE, float32)
    s[0, 0], r[0] = 1, 2
    x[0] = s[0, 0] + r[0]


def test_shapes_that_numba_knows_when_it_compiles():
    x = np.zeros(1)
    run(literal_shapes, x, lanes=1)
    assert x[0] == 3


@cuda.jit
def grid_group(x):
    cuda.cg.this_grid().sync()


@cuda.jit
def sleeping(x):
    cuda.nanosleep(100)


@cuda.jit
def misspelt(x):
    x[0] = cuda.threadIndex.x


def test_messages_for_other_names_of_numba_cuda():
    for kernel, what in ((grid_group, "this part of Numba's CUDA"), (sleeping, "this part of Numba's CUDA")):
        with pytest.raises(Unsupported, match=rf"test_language\.py:\d+: .*{what}") as caught:
            simulate(kernel, 1, 32, np.zeros(1))
        assert "device=True" not in str(caught.value)
    with pytest.raises(Unsupported, match=r"which Numba does not know either: cuda\.threadIndex"):
        simulate(misspelt, 1, 32, np.zeros(1))


PLAIN = {
    "for v in x:": "for v in x:\n        out[0] = v",
    "x.view(np.int32)": "y = x.view(np.int32)",
    "x.sum()": "out[0] = x.sum()",
    "[1, 2]": "y = [1, 2]",
    "{}": "y = {}",
    "lambda v: v": "y = lambda v: v",
    "with x:": "with x:\n        pass",
    "try:": "try:\n        pass\n    finally:\n        pass",
    "print(1)": "print(1)",
    "assert x": "assert x",
    "raise ValueError": "raise ValueError",
    "not_there": "out[0] = not_there",
    "plain(1)": "out[0] = plain(1)",
    "x @ x": "out[0] = x @ x",
    "cuda.match_any_sync(1, 2)": "out[0] = cuda.match_any_sync(1, 2)",
    "f'{1}'": "y = f'{1}'",
    "import math": "import math",
    "del x": "del x",
    "1 in (1, 2)": "out[0] = 1 in (1, 2)",
    "else after a loop": "while False:\n        pass\n    else:\n        pass",
    "barrier inside": "y = cuda.syncthreads_or(1) if x[0] else 0",
    "a, b, c": "a, b, c = 1, 2",
    "x[0, 0]": "out[0] = x[0, 0]",
}


@pytest.mark.parametrize("what", PLAIN)
def test_unknown_python_is_refused_with_its_line(what, tmp_path):
    path = tmp_path / "refused.py"
    body = PLAIN[what]
    path.write_text(
        "import numpy as np\nfrom numba import cuda\n\ndef plain(v):\n    return v\n\n"
        f"@cuda.jit\ndef kernel(x, out):\n    i = cuda.threadIdx.x\n    {body}\n"
    )
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    order = "forward" if "barrier" in what else "lockstep"
    with pytest.raises(Unsupported, match=r"refused\.py:1\d: the simulator ") as caught:
        simulate(scope["kernel"], 1, 32, np.ones(32, np.float32), np.zeros(32, np.float32), order=order)
    if " " not in what or what.startswith("x @"):
        assert what in str(caught.value)


@cuda.jit(device=True)
def endless_recursion(n):
    return endless_recursion(n - 1)


@cuda.jit
def recursive(x):
    x[0] = endless_recursion(3)


def test_recursion_is_refused():
    with pytest.raises(Unsupported, match="recursion"):
        simulate(recursive, 1, 32, np.zeros(1))


@cuda.jit(device=True)
def assigned_in_the_other_suite(a, b):
    if a < 10:
        b = 19
    else:
        a = b
    return a


@cuda.jit
def reads_before_the_branch(x, y):
    i = cuda.threadIdx.x
    y[i] = assigned_in_the_other_suite(x[i], x[i] + 100)


def test_a_suite_does_not_see_what_the_other_assigned():
    x = np.arange(32)
    y = np.zeros(32, np.int64)
    simulate(reads_before_the_branch, 1, 32, x, y).check()
    np.testing.assert_array_equal(y, np.where(x < 10, x, x + 100))
