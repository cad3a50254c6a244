"""The measured ceilings of a GPU lie where its data sheet puts them, and no kernel computes wrong sums."""

import pytest

from flashcore_numba.bench import ceilings, environment
from flashcore_numba.bench.limits import RATES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured():
    import cupy

    from flashcore_numba.bench.clock import GpuClock

    told = []
    found = ceilings.measure(GpuClock(cupy.cuda.Stream(non_blocking=True)), told.append)
    assert found, "the kernels need compute capability 8.0"
    assert not told
    print({name: round(value, 3) for name, value in found.items()})
    return found


@pytest.fixture(scope="module")
def tops():
    """What the tables allow at the highest clock; the L2 has no figure of its own."""
    gpu = environment.gpu()
    rate = RATES[tuple(gpu["compute_capability"])]
    per_second = gpu["sm_count"] * gpu["max_sm_mhz"] * 1e6
    return {
        "fp32_tflops": rate.fp32 * per_second / 1e12,
        "tensor_tflops": rate.tensor * per_second / 1e12,
        "exp_gops": rate.exp * per_second / 1e9,
        "l1_gbs": 128 * per_second / 1e9,
        "dram_gbs": gpu["bandwidth_gbs"],
    }


@pytest.mark.parametrize("name", ["fp32_tflops", "tensor_tflops", "exp_gops", "l1_gbs", "dram_gbs"])
def test_a_ceiling_is_near_what_the_hardware_allows(measured, tops, name):
    assert 0.4 * tops[name] < measured[name] < 1.05 * tops[name]


def test_the_memories_come_in_their_order(measured):
    assert measured["l1_gbs"] > measured["l2_gbs"] > measured["dram_gbs"]
    assert measured["mma_sync_tflops"] <= 1.05 * measured["tensor_tflops"]
    assert 0.1 < measured["launch_us"] < 10
