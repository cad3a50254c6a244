"""The commands take fp8 and fp8/wgmma as they take backward."""

import json

import numpy as np
import pytest

from flashcore_numba import checks, cli
from flashcore_numba.branches.find import BRANCHES, find, select
from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.ladder import LADDER
from flashcore_numba.branches.fp8.mutants import MUTANTS
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.mutation import Kill
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.predict.limits import Device, limits_us
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import files
from flashcore_numba.stages.files import place_of
from flashcore_numba.stages.find import find as stage_of

SMALL = "1x1x140x128"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setenv("COLUMNS", "300")


def test_stages_are_found_by_name():
    assert select("fp8") == list(LADDER) and find("fp8/wgmma") is STAGE and BRANCHES["fp8"] is FP8
    with pytest.raises(ArgumentError, match=r"accepted are fp8/wgmma"):
        find("fp8/none")


def test_check(monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "check", lambda stages, **options: seen.extend(stages) or [])
    assert cli.main(["check", "fp8"]) == 0
    assert seen == simulated(LADDER)[0]


@pytest.mark.long
def test_count(capsys):
    assert cli.main(["count", STAGE.key, "--shape", SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == STAGE.key and found["right"] and not found["problems"]


@pytest.mark.long
def test_reconcile(capsys):
    assert cli.main(["reconcile", "fp8", "--shape", SMALL, "--causal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == len(STAGE.variants)
    assert not any(row["flagged"] for run in found["runs"] for row in run["rows"])


@pytest.mark.long
def test_resources(capsys):
    assert cli.main(["resources", "fp8/wgmma", "--json"]) == 0
    assert "fp8_wgmma" in capsys.readouterr().out


def test_mutants(monkeypatch, capsys):
    from flashcore_numba.cli import mutants as command

    def survived(chosen, progress):
        return [Kill(m.stage, m.name, m.mistake, "simulator", "survived") for m in chosen]

    monkeypatch.setattr(command, "kill", survived)
    assert cli.main(["mutants", STAGE.key]) == 1
    assert f"0 of {len(MUTANTS) + len(deletions(STAGE))} mutants" in capsys.readouterr().out


def test_the_files_of_a_stage():
    kernels = [path.name for path in files.kernels_of(place_of(STAGE))]
    assert kernels == ["fp8_wgmma.cu", "fp8_quantise.cu"]


def test_the_limit_of_the_products(rng):
    """Half the time of 16 bits; at D = 128 the exponentials take as long."""
    device = Device((9, 0), 132, 1980.0, 4800.0)
    found = limits_us(stand_in_for(STAGE, Shape(2, 64, 8192, 128, kv_heads=8), False), device)
    assert found["tensor"] == pytest.approx(found["exp"])
    shape = Shape(2, 64, 8192, 128, kv_heads=8)
    assert limits_us(stand_in_for(stage_of(15), shape, False), device)["tensor"] == 2 * found["tensor"]
    x = FP8.draw(Shape(1, 2, 20, 64), True, rng)
    assert x.problem(x.arrays).tensor_speed == 2 and x.but(scale=1.0).problem(x.arrays).tensor_speed == 2


def test_truth_of_some_heads(rng, monkeypatch):
    monkeypatch.setattr("flashcore_numba.checks.truth.MOST_PAIRS", 2 * 70 * 70)
    x = FP8.draw(Shape(2, 2, 70, 64), False, rng)
    right = FP8.reference(x)
    judge = truth(FP8, x, rng)
    found = judge.judge([{"out": right.out.astype(np.float16)}])
    assert found["right"] and found["heads_checked"] < found["heads"]
    assert not judge.judge([{"out": np.zeros_like(x.q)}])["right"]
