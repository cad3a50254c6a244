"""Measured ceilings lie where the data sheet puts them; blocks an SM are what the driver says."""

import json

import numpy as np
import pytest

from cuda_reference import load
from flashcore_numba import Problem, cli
from flashcore_numba.core import gpu
from flashcore_numba.measure import ceilings, peers
from flashcore_numba.predict.limits import RATES
from flashcore_numba.predict.occupancy import occupancy
from flashcore_numba.records import artifact, environment
from flashcore_numba.run.executor import Gpu
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import runs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured():
    import cupy

    from flashcore_numba.measure.clock import GpuClock

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
        "read_gbs": gpu["bandwidth_gbs"],
    }


@pytest.mark.alone
@pytest.mark.parametrize(
    "name", ["fp32_tflops", "tensor_tflops", "exp_gops", "l1_gbs", "dram_gbs", "read_gbs"]
)
def test_a_ceiling_is_near_what_the_hardware_allows(measured, tops, name):
    assert 0.4 * tops[name] < measured[name] < 1.05 * tops[name]


@pytest.mark.alone
def test_the_memories_come_in_their_order(measured):
    assert measured["l1_gbs"] > measured["l2_gbs"] > measured["read_gbs"] > 0.95 * measured["dram_gbs"]
    assert measured["mma_sync_tflops"] <= 1.05 * measured["tensor_tflops"]
    assert 0.1 < measured["launch_us"] < 10


class Noting(Gpu):
    """Remembers what it launches."""

    def __init__(self):
        super().__init__()
        self.launched = []

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
        self.launched.append((load(kernel), int(np.prod(block)), shared_bytes))


@pytest.mark.parametrize(
    "run", runs([stage for stage in LADDER if stage.language == "CUDA C"]), ids=lambda run: run.label
)
def test_the_driver_finds_room_for_as_many_blocks(run):
    import cupy

    q = cupy.zeros((1, 8, 512, 64), cupy.float16)
    executor = Noting()
    run.stage.launch(Problem(q, q, q), cupy.empty_like(q), executor, variant=run.variant)
    for kernel, threads, dynamic in executor.launched:
        blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel._kernel.kernel.ptr, threads, dynamic
        )
        ours = occupancy(gpu.compute_capability(), threads, kernel.registers, kernel.shared_bytes + dynamic)
        assert ours.blocks == blocks, ours


@pytest.mark.alone
def test_a_shape_that_is_not_recorded_is_measured(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(artifact, "recorded_dir", lambda: tmp_path)
    monkeypatch.setattr(peers, "prepare", lambda *args: ([], {}))
    assert cli.main(["roofline", "5-6", "12", "--shape", "1x2x320x64", "--causal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpu"] == gpu.name()
    assert found["ceilings"]["measured"]
    assert all(0 < row["share"] < 1.05 for row in found["rows"])
