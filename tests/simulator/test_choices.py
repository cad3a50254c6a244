"""Arrays of which each thread chooses its own: right values, counters, races and bounds in every order."""

import numpy as np
import pytest
from matrix import few
from numba import cuda, float32, int32

from flashcore_numba.simulator import Unsupported, simulate

from .test_bugs import ORDERS

N = 64
CONDITIONS = {"divergent": 16, "warp": 32, "nobody": 0, "everybody": 64}


@cuda.jit
def expression(a, b, y, n):
    t = cuda.threadIdx.x
    buf = a if t < n else b
    y[t] = buf[t]


@cuda.jit
def branches(a, b, y, n):
    t = cuda.threadIdx.x
    if t < n:
        buf = a
        t += 0
    else:
        buf = b
    y[t] = buf[t]


@cuda.jit
def rebinding(a, b, y, n):
    t = cuda.threadIdx.x
    buf = b
    if t < n:
        buf = a
    y[t] = buf[t]


@cuda.jit(device=True)
def pick(a, b, t, n):
    if t < n:
        return a
    return b


@cuda.jit
def returned(a, b, y, n):
    t = cuda.threadIdx.x
    y[t] = pick(a, b, t, n)[t]


@cuda.jit
def tuples(a, b, y, n):
    t = cuda.threadIdx.x
    pair = (a, 1) if t < n else (b, 2)
    y[t] = pair[0][t] + pair[1] - (1 if t < n else 2)


@cuda.jit
def indexed_tuple(a, b, y, n):
    t = cuda.threadIdx.x
    y[t] = (b, a)[int32(t < n)][t]


@cuda.jit
def swapped(a, b, y, n):
    t = cuda.threadIdx.x
    one, two = b, a
    for _ in range(3):
        if t < n:
            one, two = two, one
    y[t] = one[t]


@cuda.jit
def shared_or_global(a, b, y, n):
    t = cuda.threadIdx.x
    s = cuda.shared.array(64, float32)
    s[t] = a[t]
    cuda.syncthreads()
    buf = s if t < n else b
    y[t] = buf[t]


@cuda.jit
def two_shared(a, b, y, n):
    t = cuda.threadIdx.x
    s, r = cuda.shared.array(64, float32), cuda.shared.array(64, float32)
    s[t], r[t] = a[t], b[t]
    cuda.syncthreads()
    buf = s if t < n else r
    y[t] = buf[t]


@cuda.jit
def two_local(a, b, y, n):
    t = cuda.threadIdx.x
    one, two = cuda.local.array(4, float32), cuda.local.array(4, float32)
    one[t % 4], two[t % 4] = a[t], b[t]
    buf = one if t < n else two
    y[t] = buf[t % 4]


@cuda.jit
def two_sizes(a, b, y, n):
    t = cuda.threadIdx.x
    shifted = 2 <= t < n
    buf = a[2:] if shifted else (a if t < n else b)
    length = 62 if shifted else 64
    y[t] = buf[t - 2 if shifted else t] if buf.shape[0] == len(buf) == buf.size == length else 0.0


@cuda.jit
def strided(a, b, y, n):
    t = cuda.threadIdx.x
    buf = a[::2] if t < n else b
    y[t] = buf[t // 2] + (a[t] - a[t // 2 * 2]) if t < n else buf[t]


@cuda.jit
def stores(a, b, y, n):
    t = cuda.threadIdx.x
    left, right = y[:32], y[32:]
    half = left if t % 2 else right
    half[t // 2] = a[t] if t < n else b[t]
    cuda.syncthreads()
    other = right if t >= 32 else left
    value = other[t % 32]
    cuda.syncthreads()
    source = (t % 32) * 2 + (1 if t < 32 else 0)
    y[t] = value if source >= 0 else 0.0
    cuda.syncthreads()
    value = y[t // 2 if t % 2 else 32 + t // 2]
    cuda.syncthreads()
    y[t] = value


KERNELS = [
    *(expression, branches, rebinding, returned, tuples, indexed_tuple, swapped, shared_or_global),
    *(two_shared, two_local, two_sizes, strided, stores),
]


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
@pytest.mark.parametrize("case", CONDITIONS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.py_func.__name__)
def test_each_thread_has_its_own_array(kernel, case, order, rng):
    a, b = rng.standard_normal((2, N), dtype=np.float32)
    y, n = np.zeros(N, np.float32), CONDITIONS[case]
    result = simulate(kernel, 1, N, a, b, y, n, order=order).check()
    np.testing.assert_allclose(y, np.where(np.arange(N) < n, a, b), rtol=1e-5, atol=1e-6)
    assert result.totals() == simulate(kernel, 1, N, a, b, y, n).check().totals()


@pytest.mark.parametrize("kernel", [expression, two_shared], ids=["global", "shared"])
def test_a_load_from_two_arrays_is_one_request(kernel, rng):
    """Two warps, one load each: 16 threads of the first read one array and 16 the other."""
    a, b = rng.standard_normal((2, N), dtype=np.float32)
    totals = simulate(kernel, 1, N, a, b, np.zeros(N, np.float32), 16).totals()
    space = "global" if kernel is expression else "shared"
    assert totals[f"{space}_load_requests"] == 2
    assert totals[f"{space}_load_lanes"] == 64
    if kernel is expression:
        assert totals["global_load_sectors"] == 8
        assert totals["footprint_bytes"] == {"a": 64, "b": 192, "y": 256}


@cuda.jit
def rows(x, which, y):
    t = cuda.threadIdx.x
    row = x[which[t]]
    y[t] = row[t % 8]


@cuda.jit
def windows(x, start, length, y):
    t = cuda.threadIdx.x
    part = x[start[t] : start[t] + length[t]]
    y[t, 0] = part[0]
    y[t, 1] = part[part.shape[0] - 1]
    y[t, 2] = part.size


@cuda.jit
def local_rows(y):
    t = cuda.threadIdx.x
    tile = cuda.local.array((3, 4), int32)
    for i in range(3):
        for j in range(4):
            tile[i, j] = 100 * t + 10 * i + j
    row = tile[t % 3]
    row[1] = -1
    y[t] = row[2] + tile[t % 3, 1]


@cuda.jit
def counters(a, b, n):
    t = cuda.threadIdx.x
    cell = a if t < n else b
    cuda.atomic.add(cell, t % 2, 1)


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
def test_rows_windows_and_atomics(order, rng):
    x, which, y = rng.standard_normal((5, 8)), rng.integers(0, 5, N), np.zeros(N)
    simulate(rows, 1, N, x, which, y, order=order).check()
    np.testing.assert_array_equal(y, x[which, np.arange(N) % 8])

    x, start, length = rng.standard_normal(100), rng.integers(0, 90, N), rng.integers(1, 9, N)
    y = np.zeros((N, 3))
    simulate(windows, 1, N, x, start, length, y, order=order).check()
    np.testing.assert_array_equal(y, np.stack([x[start], x[start + length - 1], length], 1))

    y = np.zeros(N, np.int64)
    simulate(local_rows, 1, N, y, order=order).check()
    t = np.arange(N)
    np.testing.assert_array_equal(y, 100 * t + 10 * (t % 3) + 1)

    a, b = np.zeros((2, 2), np.int32)
    simulate(counters, 1, N, a, b, 20, order=order).check()
    np.testing.assert_array_equal([a, b], [[10, 10], [22, 22]])


@cuda.jit
def racing(a, y, n):
    t = cuda.threadIdx.x
    s, r = cuda.shared.array(64, float32), cuda.shared.array(64, float32)
    buf = s if t < n else r
    buf[t] = a[t]
    other = r if t < n else s
    y[t] = other[t]  # never written
    y[t] = buf[t ^ 32]


@cuda.jit
def too_far(a, b, y, n):
    t = cuda.threadIdx.x
    buf = a if t < n else b
    y[t] = buf[t]


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
def test_problems_of_chosen_arrays(order, rng):
    a, y = rng.standard_normal((2, N), dtype=np.float32)
    assert simulate(racing, 1, N, a, y, 64, order=order).problems[0].kind == "uninitialised read"
    kinds = {problem.kind for problem in simulate(racing, 1, N, a, y, 64, order=order).problems}
    assert "race" in kinds
    (problem,) = simulate(too_far, 1, N, a, a[:40], y, 40, order=order).problems
    assert problem.kind == "out of bounds"
    assert "index [40] of b, shape (40,)" in problem.text or "of a/b, shape (40,)" in problem.text


@cuda.jit
def two_types(a, b, y):
    t = cuda.threadIdx.x
    buf = a if t < 16 else b
    y[t] = buf[t]


@cuda.jit
def two_ranks(a, b, y):
    t = cuda.threadIdx.x
    buf = b
    if t < 16:
        buf = a
    y[t] = buf[t]


@pytest.mark.parametrize("kernel, other", [(two_types, np.zeros(N, np.int32)), (two_ranks, np.zeros((N, N)))])
def test_arrays_that_numba_cannot_unify_are_refused(kernel, other):
    with pytest.raises(Unsupported, match=r"test_choices\.py:\d+: .*Numba cannot unify them"):
        simulate(kernel, 1, N, np.zeros(N), other, np.zeros(N))


@cuda.jit(device=True)
def chosen(a, b, c):
    return a if c else b


@cuda.jit(device=True)
def window(a, start):
    return a[start:]


@cuda.jit(device=True)
def fresh():
    return cuda.shared.array(32, float32)


@cuda.jit
def returns_choice(x, y):
    y[0] = chosen(x, y, x[0] > 0)[0]


@cuda.jit
def returns_window(x, y):
    y[0] = window(x, 2)[0]


@cuda.jit
def returns_new(x, y):
    y[0] = fresh()[0]


@pytest.mark.parametrize("kernel", [returns_choice, returns_window, returns_new])
def test_a_device_function_returns_only_arrays_that_it_was_given(kernel):
    """Numba: "Only accept returning of array passed into the function as argument"."""
    with pytest.raises(Unsupported, match=r"test_choices\.py:\d+: .*one of its parameters"):
        simulate(kernel, 1, 32, np.ones(32, np.float32), np.ones(32, np.float32))
