"""Threads that wait for others: flags and locks work under every order, what cannot end is told at once."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from flashcore_numba.simulator import simulate

from .test_bugs import ORDERS


@cuda.jit
def flag_between_warps(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    flag = cuda.shared.array(1, int32)
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t < 32:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        y[t] = s[t]
    else:
        s[t - 32] = x[t - 32]
        cuda.syncwarp()
        cuda.threadfence_block()
        if t == 32:
            cuda.atomic.exch(flag, 0, 1)


@cuda.jit
def flag_between_blocks(x, y, flag):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if b < 2:
        if t == 0:
            while cuda.atomic.add(flag, b, 0) == 0:
                pass
        cuda.syncthreads()
        cuda.threadfence()
        y[32 * b + t] = x[32 * b + t] + 1
    else:
        x[32 * (b - 2) + t] = 10 * t + b
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            cuda.atomic.exch(flag, b - 2, 1)


@cuda.jit
def lock_of_each_warp(lock, total):
    if cuda.threadIdx.x % 32 == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@cuda.jit
def lock_of_each_thread(lock, total):
    """Threads of one warp wait for each other: a GPU since Volta lets each of them go on by itself."""
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    total[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)
    cuda.syncthreads()


@cuda.jit
def never_set(flag, y):
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    y[cuda.threadIdx.x] = 1


@cuda.jit
def polls_for_ever(flag, y):
    value = flag[0]
    while value == 0:
        value = flag[0]
    y[cuda.threadIdx.x] = 1


@cuda.jit
def wait_for_each_other(flag, y):
    t = cuda.threadIdx.x
    mine = t // 32
    while cuda.atomic.add(flag, 1 - mine, 0) == 0:
        pass
    cuda.atomic.exch(flag, mine, 1)


@pytest.mark.parametrize("order", ORDERS)
def test_flags_and_locks(order):
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    simulate(flag_between_warps, 1, 64, x, y, order=order).check()
    np.testing.assert_array_equal(y, x)

    x, y = np.zeros((2, 64))
    simulate(flag_between_blocks, 4, 32, x, y, np.zeros(2, np.int32), order=order, max_lanes=32).check()
    np.testing.assert_array_equal(y, np.tile(10 * np.arange(32), 2) + np.repeat([3, 4], 32))

    lock, total = np.zeros(1, np.int32), np.zeros(1)
    simulate(lock_of_each_warp, 3, 128, lock, total, order=order).check()
    assert total[0] == 12

    lock, total = np.zeros(1, np.int32), np.zeros(1)
    assert simulate(lock_of_each_thread, 2, 40, lock, total, order=order).problems == []
    assert total[0] == 80


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", [never_set, polls_for_ever, wait_for_each_other])
def test_what_waits_for_ever_is_reported_at_once(kernel, order):
    """Within the default of a million turns; the test's own limit of time is never reached."""
    flag, y = np.zeros(2, np.int32), np.zeros(64)
    result = simulate(kernel, 2, 64, flag, y, order=order)
    (problem,) = result.problems
    assert problem.kind == "endless loop"
    assert "no other thread can run" in problem.text
    assert result.totals()["global_load_requests"] + result.totals()["global_atomic_requests"] < 10_000


@cuda.jit
def long_loop(x):
    i = cuda.grid(1)
    while x[i] >= 0:
        x[i] += 1


@cuda.jit
def long_range(x, n):
    i = cuda.grid(1)
    for k in range(n):
        x[i] += k


@pytest.mark.long
@pytest.mark.parametrize("order, first", [("lockstep", 0), ("reverse", 2)])
def test_time_limit(order, first):
    for kernel, args in ((long_loop, ()), (long_range, (900_000,))):
        (problem,) = simulate(kernel, 3, 32, np.zeros(96), *args, order=order, time_limit=0.2).problems
        assert problem.kind == "time limit"
        assert f"time_limit = 0.2 s are over; block {first} of 3 was running" in problem.text


@pytest.mark.parametrize("limit", [0, -1, "5", float("nan"), True])
def test_bad_time_limit(limit):
    with pytest.raises(ValueError, match=r"time_limit: .* is not a number of seconds above zero"):
        simulate(long_loop, 1, 32, np.zeros(32), time_limit=limit)
