"""What the lessons' experiments time: right, and different from the stage in what they say."""

import pytest
from matrix import few

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape
from flashcore_numba.course import experiments
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.experiments import EXPERIMENTS, experiment
from flashcore_numba.evidence.counts import count
from flashcore_numba.stages.edited import Edit
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run

SAME = {"forty_registers"}  # what only the compiler sees


@pytest.mark.parametrize("name", few(EXPERIMENTS, "row_in_registers"))
def test_an_experiment_is_right_and_moves_something_else_than_its_stage(name, rng):
    run, shape = experiment(name), Shape(1, 1, int(rng.integers(17, 48)), 64)
    assert run.label == f"{EXPERIMENTS[name].stage:02d} {name}" and not run.is_default
    stage = find(EXPERIMENTS[name].stage)
    own, others = (count(r, shape, True, rng) for r in (run, Run(stage, stage.default_variant)))
    assert own.right, own.error
    assert (own.totals() == others.totals()) == (name in SAME)


def test_text_that_is_no_longer_there_is_told(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "lost", experiments.Experiment(1, "", (Edit("no such text", ""),)))
    with pytest.raises(
        ArgumentError, match=r"'lost': this text occurs 0 times in stage01_scalar, not once:\nno such"
    ):
        experiment("lost")


def test_every_experiment_is_timed_beside_its_stage():
    timed = {run.label: runs for _, runs in experiments.planned() for run in runs}
    for name, chosen in EXPERIMENTS.items():
        beside = timed[f"{chosen.stage:02d} {name}"]
        assert find(chosen.stage).label in [run.label for run in beside]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ([], 2, "required: DIR"),
        (["/no/such"], 2, "'/no/such' is no folder"),
        (["."], 1, "needs a GPU; no driver"),
    ],
)
def test_what_cannot_be_timed_is_said_in_a_sentence(arguments, status, says, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["experiments", *arguments])
    monkeypatch.setattr(experiments.gpu, "why_not", lambda: "no driver in this test")
    try:
        assert experiments._command() == status
    except SystemExit as stopped:
        assert stopped.code == status
    assert says in capsys.readouterr().err


def test_an_experiment_is_quoted_from_its_record(monkeypatch):
    record = {
        "shapes": [
            {
                "shape": "2x8x512x64",
                "causal": False,
                "entries": [{"label": "01 row_in_registers", "gpu_us": {"p50": 12.5}}],
            }
        ]
    }
    monkeypatch.setattr(experiments, "recorded", lambda: record)
    assert Evidence().experiment("01 row_in_registers", "2x8x512x64") == 12.5
    for label, shape in (("01 scalar", "2x8x512x64"), ("01 row_in_registers", "mission")):
        with pytest.raises(ArgumentError, match=f"experiment '{label}' is not recorded at {shape}"):
            Evidence().experiment(label, shape)
