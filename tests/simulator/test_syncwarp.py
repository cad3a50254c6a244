"""syncwarp(mask) orders the lanes that the mask names, and nobody else."""

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba.simulator import simulate

from .test_bugs import ORDERS


@cuda.jit
def half_is_synchronized(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    s[t] = x[t]
    if t < 16:
        cuda.syncwarp(0xFFFF)
        y[t] = s[t + 16]


@cuda.jit
def within_the_half(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    s[t] = x[t]
    if t < 16:
        cuda.syncwarp(0xFFFF)
        y[t] = s[15 - t]
    else:
        cuda.syncwarp(0xFFFF0000)
        y[t] = s[47 - t]


@cuda.jit
def halves_then_all(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    s[t] = x[t]
    if t < 16:
        cuda.syncwarp(0xFFFF)
        y[t] = s[15 - t]
    cuda.syncwarp()
    y[t] = s[31 - t]


@cuda.jit
def handed_on(x, y):
    """Lane 0 to lane 1, lane 1 to lane 2: what lane 0 wrote is ordered before lane 2 reads it."""
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    if t == 0:
        s[0] = x[5]
    if t < 2:
        cuda.syncwarp(0b11)
    if t == 1 or t == 2:
        cuda.syncwarp(0b110)
    if t == 2:
        y[0] = s[0]


@cuda.jit
def not_handed_on(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    if t == 0:
        s[0] = x[5]
    if t == 1 or t == 2:
        cuda.syncwarp(0b110)
    if t < 2:
        cuda.syncwarp(0b11)
    if t == 2:
        y[0] = s[0]


@cuda.jit
def overwritten_too_soon(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    s[t] = x[t]
    cuda.syncwarp()
    y[t] = s[(t + 1) % 32]
    if t < 31:
        cuda.syncwarp(0x7FFFFFFF)
        s[t] = 0


@cuda.jit
def after_a_barrier(x, y):
    """What syncwarp did before a barrier says nothing after it."""
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    if t < 16:
        cuda.syncwarp(0xFFFF)
    cuda.syncthreads()
    s[t] = x[t]
    y[t] = s[31 - t]


CLEAN = [within_the_half, halves_then_all, handed_on]
RACING = [half_is_synchronized, not_handed_on, overwritten_too_soon, after_a_barrier]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kernel", CLEAN + RACING, ids=lambda kernel: kernel.py_func.__name__)
def test_only_the_named_lanes_are_ordered(kernel, order, rng):
    x, y = rng.standard_normal((2, 32), dtype=np.float32)
    problems = simulate(kernel, 1, 32, x, y, order=order).problems
    assert [problem.kind for problem in problems] == (["race"] if kernel in RACING else [])
    for problem in problems:
        writer, reader = problem.text.split("write by ")[1].split(", read by ")
        assert writer.split()[-1] != reader.split(",")[0].split()[-1]


@cuda.jit
def outsider_calls(x):
    cuda.syncwarp(0xFFFF)
    x[cuda.threadIdx.x] = 1


@cuda.jit
def named_but_absent(x):
    if cuda.threadIdx.x < 16:
        cuda.syncwarp(0xFFFFFFFF)
    x[cuda.threadIdx.x] = 1


@cuda.jit
def named_but_gone(x):
    if cuda.threadIdx.x >= 16:
        return
    cuda.syncwarp(0xFFFFFFFF)
    x[cuda.threadIdx.x] = 1


@pytest.mark.parametrize("order", ORDERS)
def test_masks_that_name_others_than_those_who_come(order):
    for kernel in (outsider_calls, named_but_absent):
        (problem,) = simulate(kernel, 1, 32, np.zeros(32), order=order).problems
        assert (problem.kind, problem.line) == (
            "warp mask",
            kernel.py_func.__code__.co_firstlineno + 2 + (kernel is named_but_absent),
        )
    assert simulate(named_but_gone, 1, 32, np.zeros(32), order=order).problems == []
