import doctest

import numpy as np
import pytest

from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import limits
from flashcore_numba.predict.limits import (
    DATA_SHEETS,
    RATES,
    Device,
    ceilings_of,
    limits_us,
    share_of_limit,
    units_us,
)

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


@pytest.fixture
def measured(rng):
    """An artifact with ceilings nobody measured."""
    names = ("fp32_tflops", "tensor_tflops", "exp_gops", "l1_gbs", "l2_gbs", "dram_gbs", "launch_us")
    gpu = {"name": "Some GPU", "compute_capability": [9, 0], "sm_count": 132, "max_sm_mhz": 1980.0}
    ceilings = {name: float(value) for name, value in zip(names, rng.uniform(1, 100, 7), strict=True)}
    return {
        "date": "2001-02-03T04:05:06Z",
        "gpu": gpu | {"bandwidth_gbs": 4917.0},
        "ceilings": ceilings | {"mma_sync_tflops": 1.0},
    }


def test_each_unit_takes_its_work_over_its_measured_ceiling(measured):
    problem, known = _problem(1, 2, 96, 64, causal=True), measured["ceilings"]
    got = units_us(problem, {"tensor": 0.5, "fp32": 0.5}, 4096.0, 2048.0, 3, ceilings_of(measured))
    seen = 96 * 97 / 2 * 2
    assert got == pytest.approx(
        {
            "fp32": seen * 2 * 64 / known["fp32_tflops"] / 1e6,
            "tensor": seen * 2 * 64 / known["tensor_tflops"] / 1e6,
            "exp": seen / known["exp_gops"] / 1e3,
            "l1": 4096 / known["l1_gbs"] / 1e3,
            "l2": 2048 / known["l2_gbs"] / 1e3,
            "dram": 4 * 2 * 96 * 64 * 2 / known["dram_gbs"] / 1e3,
            "launch": 3 * known["launch_us"],
        }
    )


def test_without_measured_ceilings_the_table_gives_the_same_limits(measured):
    measured["ceilings"] = None
    ceilings = ceilings_of(measured)
    assert not ceilings.measured
    assert "not measured" in ceilings.source
    problem = _problem(1, 8, 512, 64)
    got = units_us(problem, {"tensor": 1.0}, 1e6, 1e6, 1, ceilings)
    limits = limits_us(problem, H200)
    assert (got["tensor"], got["exp"], got["dram"]) == pytest.approx(
        (limits["tensor"], limits["exp"], limits["memory"])
    )
    assert got["l1"] == pytest.approx(1e6 / (128 * 132 * 1980))
    assert set(got) == {"tensor", "exp", "l1", "dram"}, "nobody tells the L2's rate, or a launch's"


def test_a_ceiling_that_could_not_be_measured_leaves_its_unit_out(measured):
    measured["ceilings"] |= {"l2_gbs": None, "launch_us": None}
    got = units_us(_problem(1, 1, 64, 64), {"fp32": 1.0}, 1.0, 1.0, 1, ceilings_of(measured))
    assert set(got) == {"fp32", "exp", "l1", "dram"}


@pytest.mark.parametrize("sheet", DATA_SHEETS, ids=lambda sheet: sheet.name)
def test_a_data_sheet_agrees_with_the_table_of_rates(sheet):
    """Its own rates are SMs x clock x the table's; tensor cores of GeForce sum in float32 at half the rate,
    and H100's fp32 is told at a higher clock."""
    rate, per_us = RATES[sheet.compute_capability], sheet.sm_count * sheet.boost_mhz / 1e6
    half = 0.5 if "GeForce" in sheet.name else 1.0
    assert sheet.tensor_tflops == pytest.approx(half * rate.tensor * per_us, rel=0.01)
    higher = 1980 / 1830 if "H100" in sheet.name else 1.0
    assert sheet.fp32_tflops == pytest.approx(higher * rate.fp32 * per_us, rel=0.01)
    assert "not measured" in sheet.ceilings().source
