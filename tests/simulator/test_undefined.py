"""Values that nobody defined: variables assigned on one path only, and what absent lanes would send."""

import numpy as np
import pytest
from numba import cuda, int32

from flashcore_numba.simulator import simulate

from .test_bugs import ORDERS


@cuda.jit
def one_branch(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
    y[t] = v


@cuda.jit
def no_turn(x, y):
    t = cuda.threadIdx.x
    for k in range(t):
        v = x[k]
    y[t] = v


@cuda.jit
def added_to(x, y):
    t = cuda.threadIdx.x
    if t != 3:
        v = x[t]
    v += 1
    y[t] = v


@cuda.jit
def array_in_one_branch(x, y):
    t = cuda.threadIdx.x
    if t % 2:
        buf = x
    y[t] = buf[t]


@cuda.jit
def nobody(x, y):
    t = cuda.threadIdx.x
    if t > 40:
        v = x[t]
    y[t] = v


WITHOUT_VALUE = {
    one_branch: "16 thread(s)",
    no_turn: "thread 0",
    added_to: "thread 3",
    array_in_one_branch: "16 thread(s)",
    nobody: "32 thread(s)",
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", WITHOUT_VALUE)
def test_a_variable_that_some_threads_never_assigned(kernel, order):
    (problem,) = simulate(kernel, 1, 32, np.ones(32), np.zeros(32), order=order).problems
    assert problem.kind == "uninitialised read"
    assert problem.line == kernel.py_func.__code__.co_firstlineno + 5
    assert "the variable " in problem.text
    assert WITHOUT_VALUE[kernel] in problem.text


@cuda.jit
def both_read_it_where_it_is(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
    if t < 16:
        y[t] = v
    w = v if t < 8 else 0.0
    for k in range(3):
        if k > 0:
            w += last  # noqa: F821
        last = 1.0  # noqa: F841
    y[t] = w if t >= 16 else y[t] + 0 * w
    if t < 8:
        return
    u = 1.0
    y[t] += u


@pytest.mark.parametrize("order", ORDERS)
def test_no_report_where_every_reader_has_assigned(order):
    simulate(both_read_it_where_it_is, 1, 32, np.ones(32), np.zeros(32), order=order).check()


@cuda.jit
def absent_integer(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = cuda.shfl_down_sync(0xFFFF, x[t], 8)
        y[t] = v


@cuda.jit
def absent_in_a_condition(x, y):
    t = cuda.threadIdx.x
    if t < 16:
        v = cuda.shfl_down_sync(0xFFFF, int32(x[t]), 8)
        y[t] = 1 if v > 7 else 0


@cuda.jit
def absent_but_unused(x, y):
    """The usual reduction: the upper lanes hold nonsense that nobody reads."""
    t = cuda.threadIdx.x
    if t < 16:
        v = x[t]
        v += cuda.shfl_down_sync(0xFFFF, v, 8)
        v += cuda.shfl_down_sync(0xFFFF, v, 4)
        v += cuda.shfl_down_sync(0xFFFF, v, 2)
        v += cuda.shfl_down_sync(0xFFFF, v, 1)
        if t == 0:
            y[0] = v


@pytest.mark.parametrize("order", ORDERS)
def test_integers_of_absent_lanes(order):
    x = np.arange(32)
    for kernel in (absent_integer, absent_in_a_condition):
        y = np.zeros(32, np.int64)
        (problem,) = simulate(kernel, 1, 32, x, y, order=order).problems
        assert (problem.kind, problem.line) == ("warp mask", kernel.py_func.__code__.co_firstlineno + 4)
        assert "element 8 of y, and 8 in all" in problem.text
        assert (y[16:] == 0).all()
    assert simulate(absent_integer, 1, 32, x, y, order=order).totals()["shuffle"] == 1
    y = np.zeros(32, np.int64)
    simulate(absent_but_unused, 1, 32, x, y, order=order).check()
    assert y[0] == x[:16].sum()


@cuda.jit(device=True)  # noqa: RET503
def reciprocal(v):
    if v > 0:
        return 1 / v


@cuda.jit(device=True)
def root_or_nothing(v):
    if v < 0:
        return None
    return v**0.5


@cuda.jit(device=True)  # noqa: RET503
def sign(v):
    if v < 0:
        return -1.0
    if v >= 0:
        return 1.0


@cuda.jit
def takes_what_is_not_returned(x, y):
    t = cuda.threadIdx.x
    y[t] = reciprocal(x[t])


@cuda.jit
def takes_nothing(x, y):
    t = cuda.threadIdx.x
    y[t] = root_or_nothing(x[t]) + 1


@cuda.jit
def takes_a_sign(x, y):
    t = cuda.threadIdx.x
    reciprocal(x[t])
    y[t] = sign(x[t])


@pytest.mark.parametrize("order", ORDERS)
def test_a_function_that_returns_a_value_on_some_paths(order):
    """Numba ends a thread that uses a value which was not returned: it stores nothing, and nobody is told."""
    x, y = np.arange(-3.0, 29.0), np.zeros(32)
    for kernel, threads in ((takes_what_is_not_returned, 4), (takes_nothing, 3)):
        (problem,) = simulate(kernel, 1, 32, x, y, order=order).problems
        assert problem.kind == "uninitialised read"
        assert problem.line == kernel.py_func.__code__.co_firstlineno + 3
        assert f"returned no value, block 0 thread 0 (warp 0 lane 0); {threads} thread(s)" in problem.text
    simulate(takes_a_sign, 1, 32, x, y, order=order).check()
    np.testing.assert_array_equal(y, np.where(x < 0, -1, 1))
