"""Warp instructions: what a shuffle's distance means, and parts of a warp with masks of their own."""

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba.simulator import simulate

from .test_bugs import ORDERS

FULL = 0xFFFFFFFF


@cuda.jit
def far(x, distance, y):
    t = cuda.threadIdx.x
    y[0, t] = cuda.shfl_up_sync(FULL, x[t], distance[t])
    y[1, t] = cuda.shfl_down_sync(FULL, x[t], distance[t])
    y[2, t] = cuda.shfl_xor_sync(FULL, x[t], distance[t])
    y[3, t] = cuda.shfl_sync(FULL, x[t], distance[t])


@pytest.mark.parametrize("distance", [0, 3, 31, 32, 33, -1, -30])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_a_distance_is_its_low_five_bits(distance, kind):
    """PTX ISA, shfl.sync: bval = b[4:0], and a source beyond the warp's end is the lane itself."""
    lane, x, y = np.arange(32), np.arange(100, 132), np.zeros((4, 32), np.int64)
    simulate(far, 1, 32, x, np.full(32, distance, kind), y).check()
    bits = distance & 31
    source = [lane - bits, lane + bits, lane ^ bits, np.full(32, bits)]
    np.testing.assert_array_equal(y, [100 + np.where((s < 0) | (s > 31), lane, s) for s in source])


@cuda.jit
def eights(x, y):
    """The sum of each eight lanes, and a vote among them: every eight has a mask of its own."""
    t = cuda.threadIdx.x
    mask = 0xFF << (t & 24)
    v = x[t]
    for distance in (4, 2, 1):
        v += cuda.shfl_xor_sync(mask, v, distance)
    y[0, t] = v
    y[1, t] = cuda.ballot_sync(mask, x[t] > 9)
    y[2, t] = cuda.all_sync(mask, x[t] > 7)
    y[3, t] = cuda.any_sync(mask, x[t] > 30)
    y[4, t] = cuda.eq_sync(mask, x[t] > 9)


@cuda.jit
def eights_with_a_sum_too_far(x, y):
    t = cuda.threadIdx.x
    mask = 0xFF << (t & 24)
    y[0, t] = cuda.shfl_down_sync(mask, x[t], 1)  # lane 7 asks lane 8


@cuda.jit
def a_mask_with_a_stranger(x, y):
    t = cuda.threadIdx.x
    mask = 0xFF << (t & 24)
    if t < 8:
        mask = 0x1FF
    y[0, t] = cuda.shfl_xor_sync(mask, x[t], 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_parts_of_a_warp_meet_each_with_its_mask(order, kind):
    x, y = np.arange(32).astype(kind), np.zeros((5, 32))
    simulate(eights, 1, 32, x, y, order=order).check()
    rows = x.reshape(4, 8)
    ballot = np.array([0, 0xFC00, 0xFF0000, 0xFF000000], np.uint32).view(np.int32)
    votes = [rows.sum(1), ballot, (rows > 7).all(1), (rows > 30).any(1), [1, 0, 1, 1]]
    np.testing.assert_array_equal(y, np.repeat(votes, 8, 1))
    for kernel in (eights_with_a_sum_too_far, a_mask_with_a_stranger):
        (problem,) = simulate(kernel, 1, 32, x, np.zeros((1, 32), kind), order=order).problems
        assert problem.kind == "warp mask"


@cuda.jit
def halves(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    mask = 0xFFFF << (t & 16)
    s[t] = x[t]
    cuda.syncwarp(mask)
    y[t] = s[t ^ 15]


@cuda.jit
def beyond_its_half(x, y):
    t = cuda.threadIdx.x
    s = cuda.shared.array(32, float32)
    mask = 0xFFFF << (t & 16)
    s[t] = x[t]  # first
    cuda.syncwarp(mask)
    y[t] = s[t ^ 31]  # second


@pytest.mark.parametrize("order", ORDERS)
def test_syncwarp_orders_each_part_by_itself(order, rng):
    x, y = rng.standard_normal((2, 32), dtype=np.float32)
    simulate(halves, 1, 32, x, y, order=order).check()
    np.testing.assert_array_equal(y, x[np.arange(32) ^ 15])
    (problem,) = simulate(beyond_its_half, 1, 32, x, y, order=order).problems
    assert problem.kind == "race"
