"""Random edits of the stages in CUDA C: each one runs in a process of its own and gets a verdict."""

import functools
import json
import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from cuda_reference.files import MachineError
from flashcore_numba.checks import campaign
from flashcore_numba.checks.campaign import (
    RECORD,
    STAGES,
    conclusion,
    control,
    judged,
    record,
    runs,
    summary,
    table,
)
from flashcore_numba.checks.edits import CLASSES, RandomEdit, random_edits
from flashcore_numba.checks.mutation import loaded
from flashcore_numba.stages.edited import Edit

EDITS = 8  # of each stage; `flashcore` repeats the campaign with any number
VERDICTS = {"reported", "refused", "wrong", "right", "does not compile", "same machine code"}


def some(stage, seed, count=60):
    return list(islice(random_edits(stage, np.random.default_rng(seed)), count))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.label)
def test_a_seed_says_which_edits(stage, rng):
    seed, other = rng.integers(2**31, size=2)
    edits = some(stage, seed)
    assert edits == some(stage, seed) != some(stage, other)
    assert len({(edit.file, edit.edit) for edit in edits}) == len(edits) == 60
    assert len({edit.kind for edit in edits}) >= 12
    assert {edit.kind for edit in edits} <= set(CLASSES)
    assert any(edit.file.endswith(".cuh") for edit in edits)


def test_an_edit_fits_the_source_and_changes_its_code(rng):
    stage = STAGES[rng.integers(len(STAGES))]
    for edit in some(stage, rng.integers(2**31)):
        assert edit.edit.old != edit.edit.new
        assert edit.before != edit.after, edit
        with loaded(edit.mutant):  # raises EditError where the text does not occur exactly once
            pass
        assert RandomEdit.of(edit.as_dict()) == edit


def test_every_class_is_drawn(rng):
    kinds = {edit.kind for stage in STAGES for edit in some(stage, rng.integers(2**31), 40)}
    assert kinds == set(CLASSES)


@pytest.mark.long
def test_a_stage_without_an_edit_is_right(rng):
    stage = STAGES[rng.integers(len(STAGES))]
    found = judged(control(stage))
    assert found["verdict"] == "right", found
    assert found["launches"] == 3 * len(runs(stage))


def edited(old, new, stage=7, file="stage07_wmma_qk.cu"):
    return RandomEdit(stage, "none", file, 1, old, new, Edit(old, new, file))


@pytest.mark.long
def test_a_compiler_that_does_not_come_back_is_no_launch_that_hangs():
    """Each lane would own so many registers that a loop over them is unrolled for minutes."""
    edit = edited("OWN = LEFT / CLUSTER", "OWN = RING / CLUSTER", 16, "stage16_cluster_split.cu")
    found = judged(RandomEdit(**vars(edit) | {"kind": "constant"}), seconds=6)
    assert (found["verdict"], found["kind"], found["launches"]) == ("does not compile", "NVRTC", 0)
    assert found["said"] == "it takes more than 6 s"


@pytest.mark.long
def test_a_compiler_that_crashes_is_no_executor_that_does():
    """ptxas of CUDA 13 crashes on the constant 0 as the arrivals of an mbarrier."""
    old = "for (int i = 0; i < 1 + 2 * STAGES; i++) ptx::mbarrier_init(q_full + i, 1);"
    edit = edited(old, old.replace("1);", "0);"), 14, "stage14_tma_wgmma.cu")
    found = judged(RandomEdit(**vars(edit) | {"kind": "count"}))
    assert (found["verdict"], found["kind"], found["launches"]) == ("does not compile", "NVRTC", 0)
    assert found["said"] == "the compiler crashed"
    assert judged(edit)["verdict"] == "reported", "by the executor, which needs no such compiler"


def _ended_by(sent, begun, edit, backend, folder, target, seconds):
    """In the place of `campaign._one`: it ends before its compiler does, or after."""
    Path(target).write_text(json.dumps({"compiles": True}) + "\n" if begun else "")
    os.kill(os.getpid(), sent)


@pytest.mark.parametrize("sent", [signal.SIGABRT, signal.SIGKILL])
@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_is_the_compilers_until_it_has_ended(sent, begun, monkeypatch):
    monkeypatch.setattr(campaign, "_one", functools.partial(_ended_by, sent, begun))
    found = judged(edited("a", "b"))
    wanted = ("hangs" if sent == signal.SIGKILL else "crash") if begun else "does not compile"
    assert found["verdict"] == wanted, found


@pytest.mark.parametrize(
    ("edit", "verdict"),
    [
        (edited("__syncthreads();  // S is whole", ";  // S is whole"), "reported"),
        (edited("o[c] += p[i] * v[c]", "o[c] -= p[i] * v[c]"), "wrong"),
        (edited("float m = -INFINITY,", "float m = nothing,"), "does not compile"),
        (edited("LD = D + 8,", "LD = D + 9,"), "reported"),
    ],
    ids=["race", "value", "name", "alignment"],
)
def test_verdicts(edit, verdict):
    found = judged(edit)
    assert found["verdict"] == verdict, found
    assert found["said"]


@pytest.mark.long
def test_an_edits_process_leaves_no_file(monkeypatch, tmp_path):
    """Also where it ends in the middle of its runs, as at the first report."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fresh = multiprocessing.get_context("spawn")  # it takes that folder over; a server that runs would not
    monkeypatch.setattr(campaign.multiprocessing, "get_context", lambda name: fresh)
    found = judged(edited("__syncthreads();  // S is whole", ";  // S is whole"))
    assert found["verdict"] == "reported", found
    assert not [*tmp_path.iterdir()]


@pytest.mark.long
def test_what_crashes_or_hangs_the_executor_has_a_verdict(monkeypatch):
    """The process ends, and not the campaign."""
    crash = "float m = -INFINITY, l = 0.0f, o[8] = {};\n    __builtin_trap();"
    found = judged(edited("float m = -INFINITY, l = 0.0f, o[8] = {};", crash))
    assert found["verdict"] == "crash", found
    monkeypatch.setattr(campaign, "EDIT_SECONDS", 0.5)
    assert judged(control(STAGES[0]))["verdict"] == "hangs"


def test_an_edit_that_changes_no_instruction_is_not_worth_a_run():
    edit = edited("const int warp = threadIdx.x / 32, h", "const int warp = threadIdx.x >> 5, h")
    assert judged(RandomEdit(**vars(edit) | {"kind": "constant"}))["verdict"] == "same machine code"


def verdicts(executor, gpu=None):
    return {"executor": {"verdict": executor}} | ({"gpu": {"verdict": gpu}} if gpu else {})


def test_conclusions():
    assert (
        conclusion(verdicts("reported", "right")) == conclusion(verdicts("refused", "faults")) == "reported"
    )
    assert conclusion(verdicts("wrong", "wrong")) == "wrong value"
    assert conclusion(verdicts("right", "right")) == conclusion(verdicts("right")) == "harmless"
    for seen in ("wrong", "hangs", "faults", "crash"):
        assert conclusion(verdicts("right", seen)) == "missed"
    for said in ("crash", "hangs"):
        assert conclusion(verdicts(said, "right")) == "executor fault"


def test_a_summary_names_what_was_missed():
    item = edited("a", "b").as_dict() | verdicts("right", "wrong")
    lines = summary([item, edited("c", "d").as_dict() | verdicts("reported", "hangs")])
    assert lines[0] == "executor | GPU: hangs | GPU: wrong"
    assert lines[1:3] == ["missed | 0 | 1", "reported | 1 | 0"]
    assert lines[3].startswith("missed: stage07_wmma_qk.cu:1: none: `a` -> `b`")


def test_a_record_keeps_what_a_table_counts():
    said = {"verdict": "reported", "kind": "race", "said": "line 3", "seconds": 1.0}
    one = edited("a" * 200, "b").as_dict() | {"executor": said, "gpu": {"verdict": "hangs", "seconds": 2.0}}
    other = edited("c", "d", stage=8).as_dict() | verdicts("right")
    kept = record({"seed": 5, "edits": [other, one]})
    assert kept["seed"] == 5
    assert [edit["conclusion"] for edit in kept["edits"]] == ["reported", "harmless"]
    assert kept["edits"][0]["before"] == "a" * 160
    assert kept["edits"][0]["executor"] == {"verdict": "reported", "kind": "race", "said": "line 3"}
    assert kept["edits"][1]["gpu"] == {"verdict": "not run"}
    lines = table(kept).splitlines()
    assert lines[2] == "| 07 wmma_qk | 1 | 1 | 0 | 0 | 0 | 0 |"
    assert lines[-1] == "| **all** | 2 | 1 | 0 | 0 | 1 | 0 |"


def test_the_recorded_campaign_missed_nothing():
    kept = json.loads(RECORD.read_text())
    assert Counter(edit["stage"] for edit in kept["edits"]) == {stage.number: 20 for stage in STAGES}
    assert {edit["kind"] for edit in kept["edits"]} == set(CLASSES)
    conclusions = Counter(edit["conclusion"] for edit in kept["edits"])
    assert set(conclusions) == {"reported", "wrong value", "harmless"}
    for edit in kept["edits"]:
        assert conclusion(edit) == edit["conclusion"]
        assert ("reason" in edit) == (edit["conclusion"] == "harmless"), edit
    assert str(conclusions["reported"]) in table(kept).splitlines()[-1]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs the campaign's command; its record is a file of the test."""
    monkeypatch.setattr(campaign, "RECORD", tmp_path / "record.json")
    monkeypatch.setattr(campaign.os, "environ", dict(campaign.os.environ))
    monkeypatch.setattr(campaign.multiprocessing, "set_forkserver_preload", lambda names: None)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["checks", *map(str, arguments)])
        return campaign.main()

    return run


@pytest.mark.parametrize("action", ["cpu", "gpu", "sanitize", "record"])
@pytest.mark.parametrize("text", [None, "no JSON", "[]", '{"seed": 1}', '{"seed": 1, "edits": []}'])
def test_a_campaign_needs_a_file_with_edits(action, text, command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(campaign.gpu, "why_not", lambda: None)
    path = tmp_path / "campaign.json"
    if text is not None:
        path.write_text(text)
    assert command(action, path) == 2
    assert str(path) in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ([] if text is None else [path.name])


def test_a_campaign_is_drawn_where_it_can_be_written(command, tmp_path, capsys):
    assert command("draw", tmp_path / "none/x.json") == 2
    assert "there is no such folder" in capsys.readouterr().err
    path = tmp_path / "x.json"
    assert command("draw", path, "--seed", 3, "--count", 0) == 0
    assert command("draw", path, "--seed", 4) == 2
    assert "was drawn from seed 3" in capsys.readouterr().err


@pytest.mark.parametrize("verdict", ["right", "crash", None])
def test_only_a_campaign_with_right_controls_becomes_the_record(verdict, command, tmp_path, capsys):
    controls = [control(stage).as_dict() | verdicts("right", "right") for stage in STAGES]
    if verdict is None:
        controls.pop()
    else:
        controls[-1]["gpu"]["verdict"] = verdict
    edit = edited("a", "b").as_dict() | verdicts("reported", "wrong")
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"seed": 1, "controls": controls, "edits": [edit]}))
    assert command("record", path) == (0 if verdict == "right" else 2)
    assert campaign.RECORD.exists() == (verdict == "right")
    assert (f"not run, on the {'cpu' if verdict is None else 'gpu'}: 16" in capsys.readouterr().err) == (
        verdict != "right"
    )


def test_a_campaign_without_a_gpu_keeps_its_file(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(campaign.gpu, "why_not", lambda: "no NVIDIA driver in this test")
    assert command("gpu", tmp_path / "none.json") == 1
    assert capsys.readouterr().err.endswith("gpu: needs a GPU; no NVIDIA driver in this test\n")
    assert not list(tmp_path.iterdir())


def test_a_control_that_is_not_right_fails_the_command(command, tmp_path, monkeypatch):
    path = tmp_path / "campaign.json"
    path.write_text(json.dumps({"seed": 1, "edits": [edited("a", "b").as_dict()], "rejected": {}}))
    for verdict, status in (("right", 0), ("hangs", 1)):
        monkeypatch.setattr(campaign, "judged", lambda *_: {"verdict": verdict, "seconds": 0})  # noqa: B023
        assert command("cpu", path) == status


def test_a_process_that_fails_gives_no_verdict():
    """As where an edit no longer fits the stage."""
    with pytest.raises(MachineError, match="not judged, its process failed"):
        judged(edited("no such text", "x"))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.label)
def test_no_edit_breaks_the_executor(stage, rng):
    """Fresh edits: each is reported, refused, wrong, or right on every schedule; none crashes or hangs."""
    for edit in some(stage, rng.integers(2**31), EDITS):
        found = judged(edit)
        assert found["verdict"] in VERDICTS, f"{edit.mutant.mistake}: {found}"


@pytest.mark.long
def test_a_fresh_edit_has_a_verdict(rng):
    stage = STAGES[rng.integers(len(STAGES))]
    for edit in some(stage, rng.integers(2**31), 2):
        found = judged(edit)
        assert found["verdict"] in VERDICTS, f"{edit.mutant.mistake}: {found}"
