"""The commands take decode and decode/NAME as they take backward."""

import json
from argparse import Namespace

import numpy as np
import pytest

from flashcore_numba import checks, cli
from flashcore_numba.branches.decode.decode_chunks import STAGE
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.mutants import MUTANTS
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.find import find, select
from flashcore_numba.checks.mutation import Kill
from flashcore_numba.checks.truth import truth
from flashcore_numba.cli import selection
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence import reconcile
from flashcore_numba.predict.limits import Device, limits_us
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import files
from flashcore_numba.stages.files import place_of
from flashcore_numba.stages.runs import runs

SMALL = "1x2x70x64"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setenv("COLUMNS", "300")


def test_stages_are_found_by_name():
    assert select("decode") == list(LADDER) and find("decode/chunks") is STAGE
    assert selection.selected(Namespace(stages=[], operation="decode")) == list(LADDER)
    with pytest.raises(ArgumentError, match=r"accepted are .*decode/chunks"):
        find("decode/none")
    with pytest.raises(ArgumentError, match=r"computes another one"):
        selection.selected(Namespace(stages=["backward"], operation="decode"))


def test_check(monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "check", lambda stages, **options: seen.extend(stages) or [])
    assert cli.main(["check", "decode"]) == 0
    assert seen == simulated(LADDER)[0] and STAGE in seen


def test_count(capsys):
    assert cli.main(["count", STAGE.key, "--shape", SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == STAGE.key and found["right"] and not found["problems"]
    assert 1 < found["moved"]["times_needed"] < 2  # of memory: a row reads each of its keys once


@pytest.mark.long
def test_reconcile(capsys):
    assert cli.main(["reconcile", "decode", "--shape", SMALL, "--causal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["stage"] for run in found["runs"]] == [run.label for run in runs(LADDER)]
    assert not any(row["flagged"] for run in found["runs"] for row in run["rows"])
    assert reconcile.foretold(LADDER) == ([*LADDER], [])


def test_mutants(monkeypatch, capsys):
    from flashcore_numba.cli import mutants as command

    def survived(chosen, progress):
        return [Kill(m.stage, m.name, m.mistake, "simulator", "survived") for m in chosen]

    monkeypatch.setattr(command, "kill", survived)
    own = [mutant for mutant in MUTANTS if mutant.stage == STAGE.key]
    assert cli.main(["mutants", STAGE.key]) == 1
    assert f"0 of {len(own)} mutants killed" in capsys.readouterr().out


def test_the_files_of_a_stage():
    modules = [path.stem for path in files.of_stage(place_of(STAGE))]
    assert modules == ["decode_chunks", "decode_chunks_attend", "decode_chunks_merge"]
    assert not files.kernels_of(place_of(STAGE))


def test_the_limit_is_memory():
    device = Device((9, 0), 132, 1980.0, 4800.0)
    found = limits_us(stand_in_for(STAGE, Shape(8, 64, 8192, 128, kv_heads=8), False), device)
    keys = 2 * 8 * 8 * 8192 * 128 * 2
    assert found["memory"] == pytest.approx((keys + 2 * 8 * 64 * 128 * 2) / 4800e3)
    assert found["memory"] > 3 * max(found["tensor"], found["exp"])


def test_truth_of_some_requests(rng, monkeypatch):
    """Many keys are judged by random requests, and a wrong one among them shows."""
    monkeypatch.setattr("flashcore_numba.branches.decode.truth.MOST_KEYS", 2 * 2 * 70)
    x = DECODE.draw(Shape(5, 2, 70, 64), True, rng)
    right = DECODE.reference(x)
    judge = truth(DECODE, x, rng)
    out = x.q.dtype.type(0) + right.out.astype(np.float16)
    found = judge.judge([{"out": out}])
    assert found["right"] and (found["heads_checked"], found["heads"]) == (4, 10)
    request, kv_head = judge.chosen[0]
    out[request, kv_head, 0, 0] += 1
    assert not judge.judge([{"out": out}])["right"]
