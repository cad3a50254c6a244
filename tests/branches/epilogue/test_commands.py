"""The commands take epilogue and epilogue/norm as they take backward."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cuda_reference import driver, source
from cuda_reference.gpu import GpuKernel
from flashcore_numba import checks, cli
from flashcore_numba.branches.epilogue.epilogue_norm import STAGE
from flashcore_numba.branches.epilogue.mutants import MUTANTS
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.peers import PEERS
from flashcore_numba.branches.find import BRANCHES, find, select
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.mutation import Kill
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import files


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setenv("COLUMNS", "300")


def test_stages_are_found_by_name():
    assert select("epilogue") == [STAGE] and find("epilogue/norm") is STAGE
    assert BRANCHES["epilogue"] is EPILOGUE and set(EPILOGUE.peers()) == set(PEERS)
    with pytest.raises(ArgumentError, match=r"accepted are epilogue/norm"):
        find("epilogue/none")


def test_check(monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "check", lambda stages, **options: seen.extend(stages) or [])
    assert cli.main(["check", "epilogue"]) == 0
    assert seen == simulated([STAGE])[0]


@pytest.mark.long
def test_count(capsys):
    assert cli.main(["count", STAGE.key, "--shape", "1x2x70x64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == STAGE.key and found["right"] and not found["problems"]


@pytest.mark.long
@pytest.mark.parametrize("how", [("--shape", "1x2x140x64", "--causal"), (), ("--shape", "1x3x70x128")])
def test_reconcile(how, capsys):
    """With one head or three, a warp reads the moments of fewer than four others at once."""
    assert cli.main(["reconcile", "epilogue", *how, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == len(STAGE.variants)
    assert not any(row["flagged"] for run in found["runs"] for row in run["rows"])


def test_mutants(monkeypatch, capsys):
    from flashcore_numba.cli import mutants as command

    def survived(chosen, progress):
        return [Kill(m.stage, m.name, m.mistake, "simulator", "survived") for m in chosen]

    monkeypatch.setattr(command, "kill", survived)
    assert cli.main(["mutants", STAGE.key]) == 1
    assert f"0 of {len(MUTANTS) + len(deletions(STAGE))} mutants" in capsys.readouterr().out


def test_the_files_of_a_stage():
    assert [path.name for path in files.kernels_of(files.place_of(STAGE))] == ["epilogue_norm.cu"]


def test_work_of_the_mission_shape():
    """Attention's, the norm's, and the bytes of the residual, the weights and one output."""
    problem = stand_in_for(STAGE, Shape(1, 8, 512, 64), False)
    tokens = 512 * 512
    assert problem.flops == 4 * 64 * 8 * tokens + 8 * tokens and problem.exponentials == 8 * tokens
    assert problem.min_bytes == 2 * (5 * tokens + 2 * 512)


def test_a_large_cluster_is_asked_for():
    """More blocks than CUDA promises everywhere need a word to the driver before the launch."""
    assert source("epilogue_norm", CLUSTER=2, HEADS=8).cluster == 16 > driver.PORTABLE_CLUSTER
    assert source("epilogue_norm", CLUSTER=1, HEADS=8).cluster == driver.PORTABLE_CLUSTER
    assert source("stage12_mma_sync").cluster == 1 and source("decode_cluster", CLUSTER=8).cluster == 8


def test_the_driver_is_told_of_it_once(monkeypatch):
    """When the kernel is loaded, and of no kernel whose cluster every GPU has room for."""
    told = []

    class Driver:
        def cuFuncSetAttribute(self, function, attribute, value):
            told.append((function.value, attribute, value))
            return 0

    class RawModule:
        def __init__(self, path):
            pass

        def get_function(self, entry):
            return SimpleNamespace(kernel=SimpleNamespace(ptr=77))

    cupy = SimpleNamespace(RawModule=RawModule, cuda=SimpleNamespace(Device=lambda: None))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(driver, "driver", Driver)
    for clusters, heads, expected in ((1, 8, []), (2, 8, [(77, driver.NON_PORTABLE, 1)])):
        compiled = SimpleNamespace(
            source=source("epilogue_norm", CLUSTER=clusters, HEADS=heads), cubin=Path("none.cubin")
        )
        GpuKernel(compiled)
        assert told == expected
