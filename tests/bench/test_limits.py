import doctest

import numpy as np
import pytest

from flashcore_numba.bench import limits
from flashcore_numba.bench.limits import Device, limits_us, share_of_limit
from flashcore_numba.problem import Problem

H200 = Device((9, 0), 132, 1980.0, 4917.0)


def _problem(batch, heads, seq, head_dim, causal=False):
    x = np.zeros((batch, heads, seq, head_dim), np.float16)
    return Problem(x, x, x, causal=causal)


def test_the_docstrings_example():
    failed, tried = doctest.testmod(limits)
    assert tried > 0
    assert failed == 0


def test_hand_computed_at_the_mission_shape():
    got = limits_us(_problem(1, 8, 512, 64), H200)
    # 4 * 8 * 512 * 512 * 64 = 536870912 operations; 132 SMs at 1980 clocks a us are 261360 SM clocks a us.
    assert got["fp32"] == pytest.approx(536870912 / (128 * 2 * 261360))
    assert got["tensor"] == pytest.approx(536870912 / (4096 * 261360))
    assert got["exp"] == pytest.approx(8 * 512 * 512 / (16 * 261360))
    assert got["memory"] == pytest.approx(4 * 8 * 512 * 64 * 2 / 4917e3)


def test_causal_counts_only_what_is_visible():
    full, half = (limits_us(_problem(1, 1, 1024, 64, causal), H200) for causal in (False, True))
    share = (1024 * 1025 / 2) / 1024**2
    for unit in ("fp32", "tensor", "exp"):
        assert half[unit] == pytest.approx(share * full[unit])
    assert half["memory"] == full["memory"]


def test_the_largest_unit_is_the_limit():
    times = {"fp32": 8.0, "tensor": 0.5, "exp": 0.6, "memory": 0.4}
    assert share_of_limit(times, "fp32", 80.0) == pytest.approx(0.1)
    assert share_of_limit(times, "tensor", 6.0) == pytest.approx(0.1)
    assert share_of_limit(times | {"memory": 4.0}, "tensor", 8.0) == pytest.approx(0.5)


def test_a_gpu_outside_the_table_has_no_share():
    got = limits_us(_problem(1, 1, 64, 64), Device((99, 0), 10, 1000.0, None))
    assert got == {"fp32": None, "tensor": None, "exp": None, "memory": None}
    assert share_of_limit(got, "fp32", 1.0) is None
