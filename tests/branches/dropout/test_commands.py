"""The commands take dropout and dropout_backward as they take backward."""

import json

import numpy as np
import pytest

from flashcore_numba import checks, cli
from flashcore_numba.branches.dropout.ladder import BACKWARD, FORWARD
from flashcore_numba.branches.dropout.operation import DROPOUT, DROPOUT_BACKWARD
from flashcore_numba.branches.find import BRANCHES, find, select
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.run.executor import simulated
from flashcore_numba.stages import files
from flashcore_numba.stages.files import place_of

SMALL = "1x2x70x64"
EACH = pytest.mark.parametrize("stage", [*FORWARD, *BACKWARD], ids=lambda stage: stage.key)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no NVIDIA driver in this test")
    monkeypatch.setattr(gpu, "available", lambda: False)
    monkeypatch.setenv("COLUMNS", "300")


@EACH
def test_stages_are_found_by_name(stage):
    assert find(stage.key) is stage and BRANCHES[stage.operation.name] is stage.operation
    assert select("dropout", "dropout_backward") == [*FORWARD, *BACKWARD]
    with pytest.raises(ArgumentError, match=rf"accepted are {stage.key}"):
        find(f"{stage.operation.name}/none")


def test_check(monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "check", lambda stages, **options: seen.extend(stages) or [])
    assert cli.main(["check", "dropout", "dropout_backward"]) == 0
    assert seen == simulated([*FORWARD, *BACKWARD])[0]


@EACH
def test_count(stage, capsys):
    assert cli.main(["count", stage.key, "--shape", SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stage"] == stage.key and found["right"] and not found["problems"]


@pytest.mark.long
@EACH
def test_reconcile_and_resources(stage, capsys):
    assert cli.main(["reconcile", stage.operation.name, "--shape", SMALL, "--causal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == max(1, len(stage.variants))
    assert not any(row["flagged"] for run in found["runs"] for row in run["rows"])
    assert cli.main(["resources", stage.key, "--json"]) == 0
    assert "DROPOUT=1" in capsys.readouterr().out


def test_the_files_of_a_stage():
    """A kernel of the spine, and one of another branch."""
    kernels = [[path.name for path in files.kernels_of(place_of(stage))] for stage in (*FORWARD, *BACKWARD)]
    assert kernels[0] == ["stage12_mma_sync.cu"]
    assert {"backward_mma_sync.cu", "backward_rows.cu"} <= set(kernels[1])


@pytest.mark.parametrize("operation", [DROPOUT, DROPOUT_BACKWARD], ids=lambda each: each.name)
def test_what_a_caller_gets_is_right(operation, rng):
    """What `compare` times."""
    x = operation.draw(Shape(1, 2, 40, 64), True, rng)
    problem, (stage,) = x.problem(x.arrays), operation.ladder()
    outputs = stage.allocate(problem, lambda shape, dtype: np.full(shape, 7, dtype), False)
    operation.caller(problem, stage, outputs)()
    reference = operation.reference(x)
    for each in operation.outputs:
        if each.name in outputs:
            assert operation.judge(each, outputs[each.name], reference, None).passed, each.name
