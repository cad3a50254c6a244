"""A probe reads a running kernel and changes nothing else about it."""

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba.simulator import Unsupported, probe, simulate


@cuda.jit
def running_sum(src, dst):
    shared = cuda.shared.array(64, float32)
    mine = cuda.local.array(2, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for j in range(3):
        mine[j % 2] = j
        shared[i] = src[i] + j
        total += shared[i]
    dst[i] = total


@cuda.jit
def running_sum_probed(src, dst):
    shared = cuda.shared.array(64, float32)
    mine = cuda.local.array(2, float32)
    i = cuda.threadIdx.x
    total = float32(0)
    for j in range(3):
        mine[j % 2] = j
        shared[i] = src[i] + j
        total += shared[i]
        # The neighbour's element is read without a barrier: a race, were this the kernel's own work.
        probe("turn", total, shared[63 - i], src[i] * total, mine, shared[i + 1], shared)
    dst[i] = total
    if i >= 40:
        probe("end", total, later, total / 0)  # noqa: F821
    later = total  # noqa: F841


@cuda.jit
def without_label(dst):
    probe(dst[0])


@pytest.mark.parametrize("order", ["lockstep", "forward", "random:3"])
def test_values_are_those_of_the_lanes(rng, order):
    src = rng.standard_normal(64).astype(np.float32)
    launch = simulate(running_sum_probed, 1, 64, src, np.zeros(64, np.float32), order=order)
    assert not launch.problems
    for visit in range(3):
        turn = [p for p in launch.probes if (p.label, p.visit) == ("turn", visit)]
        lanes = np.concatenate([p.thread for p in turn])
        assert sorted(lanes) == list(range(64))
        expected = (visit + 1) * src[lanes] + visit * (visit + 1) / 2
        np.testing.assert_allclose(
            np.concatenate([p.values[0] for p in turn]), expected, rtol=1e-5, atol=1e-5
        )
        assert all(p.active.all() and (p.block == 0).all() for p in turn)
        assert all(p.values[3].shape == (2, len(p.thread)) and p.values[5] is None for p in turn)
        assert all((p.values[4] is None) == (63 in p.thread) for p in turn)  # one index past the end
    ends = [p for p in launch.probes if p.label == "end"]
    assert sorted(t for p in ends for t in p.thread[p.active]) == list(range(40, 64))
    assert all(p.values[1] is None for p in ends)


def test_counts_and_results_are_those_without_it(rng):
    src, plain, probed = (
        rng.standard_normal(64).astype(np.float32),
        np.zeros(64, np.float32),
        np.zeros(64, np.float32),
    )
    one = simulate(running_sum, 1, 64, src, plain, record=True)
    two = simulate(running_sum_probed, 1, 64, src, probed, record=True)
    assert one.totals() == two.totals()
    assert len(one.events) == len(two.events)
    np.testing.assert_array_equal(plain, probed)


def test_a_label_is_wanted():
    with pytest.raises(Unsupported, match="no label in quotes"):
        simulate(without_label, 1, 32, np.zeros(1, np.float32))
