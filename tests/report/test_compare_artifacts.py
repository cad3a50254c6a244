"""Faster, slower or noise, from artifacts whose times the test knows."""

import copy
import json

import numpy as np
import pytest

from flashcore_numba import cli
from flashcore_numba.measure.stats import of_rounds
from flashcore_numba.records import artifact
from flashcore_numba.records.artifact import ArtifactError
from flashcore_numba.report.compare_artifacts import compare_artifacts

STAGE, OTHER, PEER = "06 register_tiles", "05 online_softmax", "SDPA flash"


@pytest.fixture
def compared(fake, rng, tmp_path):
    """compared(us_a, us_b, ...) -> the result of comparing two runs with these true times by label.

    change(record_b) edits the second artifact. rounds_off: how far each round is off; None: random, of size
    `noise`.
    """

    def compare(us_a, us_b, noise=0.001, change=lambda record: None, rounds_off=None):
        paths = []
        for name, truth in (("a", us_a), ("b", us_b)):
            record = copy.deepcopy(fake(commit=7 * name))
            shape = record["shapes"][0]
            for entry in shape["entries"]:
                us = truth.get(entry["label"], 40.0)
                off = noise * rng.standard_normal(20) if rounds_off is None else rounds_off
                rounds = us * (1 + off[:, None]) * (1 + 1e-5 * rng.random((20, 3)))
                entry["gpu_us"] = of_rounds(rounds.tolist())
            if name == "b":
                change(record)
            artifact.derive(shape)
            paths.append(tmp_path / f"{name}.json")
            artifact.save(record, paths[-1])
        return compare_artifacts(*paths)

    return compare


def verdicts(result):
    return {entry["label"]: entry["verdict"] for entry in result["shapes"][0]["entries"]}


def test_operations_are_not_compared_with_each_other(compared, tmp_path, capsys):
    result = compared({}, {}, change=lambda record: None)
    assert {shape["operation"] for shape in result["shapes"]} == {"forward"}
    with pytest.raises(ArtifactError, match=r"times the operation forward and .* backward"):
        compared({}, {}, change=lambda record: record.update(operation="backward"))
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "artifacts of one operation are accepted" in capsys.readouterr().err
    files = [str(tmp_path / "a.json")] * 2
    assert cli.main(["compare", *files, "--operation", "backward"]) == 2
    assert "--operation: is for a measurement" in capsys.readouterr().err


def test_faster_slower_and_noise(compared):
    result = compared({STAGE: 10.0, OTHER: 20.0}, {STAGE: 9.5, OTHER: 21.0})
    found = verdicts(result)
    assert (found.pop(STAGE), found.pop(OTHER)) == ("faster", "slower")
    assert set(found.values()) == {"noise"}
    entry = next(entry for entry in result["shapes"][0]["entries"] if entry["label"] == STAGE)
    assert entry["ci"]["low"] < entry["ratio"] < entry["ci"]["high"] < 1
    assert entry["ratio"] == pytest.approx(0.95, rel=0.005)
    assert (result["warnings"], result["only_a"], result["only_b"]) == ([], [], [])


def test_less_than_one_percent_is_noise_however_sharp_the_interval(compared):
    result = compared({STAGE: 10.0}, {STAGE: 10.05}, noise=1e-5)
    entry = next(entry for entry in result["shapes"][0]["entries"] if entry["label"] == STAGE)
    assert entry["ci"]["low"] > 1
    assert (entry["verdict"], result["shapes"][0]["floor"]) == ("noise", 0.01)


def test_what_rounds_cannot_tell_apart_is_noise(compared):
    two_states = np.repeat([-0.1, 0.1], 10)
    result = compared({STAGE: 10.0}, {STAGE: 10.3}, rounds_off=two_states)
    assert verdicts(result)[STAGE] == "noise"
    entry = next(entry for entry in result["shapes"][0]["entries"] if entry["label"] == STAGE)
    assert abs(entry["ratio"] - 1) > result["shapes"][0]["floor"], "the interval alone decides here"


def test_an_unchanged_peer_that_moved_raises_the_floor(compared):
    times = {STAGE: 10.0, PEER: 10.0}, {STAGE: 10.5, PEER: 10.8}
    result = compared(*times)
    assert result["shapes"][0]["floor_from"] == PEER
    assert result["shapes"][0]["floor"] == pytest.approx(0.08, abs=0.01)
    assert verdicts(result)[STAGE] == "noise"
    newer = compared(*times, change=lambda record: record["packages"].update(torch="3.0"))
    assert verdicts(newer)[STAGE] == "slower", "another library's version says nothing about the measurement"
    assert newer["warnings"] == ["Library versions differ (A and B): torch 2.0 and 3.0."]


def test_what_makes_two_runs_hard_to_compare_is_told(compared):
    def change(record):
        record["gpu"] |= {"name": "Another GPU", "driver": "2.0"}
        record["clocks"]["sm_mhz"]["p50"] = 1000
        record["dirty"] = True
        entries = record["shapes"][0]["entries"]
        entries[1]["throttled"] = ["the power limit in 2 of 20 readings"]
        entries[2]["error"]["right"] = False
        entries[0]["label"] = "01 renamed"

    result = compared({}, {}, change=change)
    assert result["warnings"] == [
        "The GPU differs: Imaginary GPU in A, Another GPU in B.",
        "The driver differs: 1.2.3 in A, 2.0 in B.",
        "The SM clocks differ: median 1950 MHz in A, 1000 MHz in B.",
        "B was measured with uncommitted changes, so its commit does not say what ran.",
        "B, 1x8x512x64: wrong results, whose times mean nothing: 06 q_outer.",
        "B, 1x8x512x64: throttled: 05 online_softmax.",
    ]
    assert result["only_a"] == ["01 scalar at 1x8x512x64"]
    assert result["only_b"] == ["01 renamed at 1x8x512x64"]


def test_a_wrong_result_is_neither_faster_nor_slower(compared):
    def spoil(record):
        next(e for e in record["shapes"][0]["entries"] if e["label"] == STAGE)["error"]["right"] = False

    assert verdicts(compared({STAGE: 10.0}, {STAGE: 5.0}, change=spoil))[STAGE] == "wrong"


def test_a_wrong_peer_sets_no_floor(compared):
    def spoil(record):
        next(e for e in record["shapes"][0]["entries"] if e["label"] == PEER)["error"]["right"] = False

    result = compared({STAGE: 10.0, PEER: 10.0}, {STAGE: 8.0, PEER: 5.0}, change=spoil)
    assert (result["shapes"][0]["floor"], result["shapes"][0]["floor_from"]) == (0.01, None)
    assert verdicts(result)[STAGE] == "faster"


def test_another_operation_is_named_everywhere(compared, tmp_path):
    def change(record):
        record["shapes"][0]["entries"][2]["error"]["right"] = False
        record["shapes"][0]["entries"][0]["label"] = "01 renamed"

    compared({}, {}, change=change)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"operation": "backward"}))
    result = compare_artifacts(*paths)
    assert (
        "B, backward, 1x8x512x64: wrong results, whose times mean nothing: 06 q_outer." in result["warnings"]
    )
    assert result["only_b"] == ["01 renamed at backward, 1x8x512x64"]


def test_two_runs_of_one_commit_say_so(compared):
    result = compared({STAGE: 10.0}, {STAGE: 10.3}, change=lambda record: record.update(commit=7 * "a"))
    assert verdicts(result)[STAGE] == "slower"
    assert len(result["warnings"]) == 1
    assert result["warnings"][0].startswith("Both ran commit aaaaaaa")


def test_without_rounds_the_floor_alone_decides(compared):
    def forget(record):
        for entry in record["shapes"][0]["entries"]:
            entry["gpu_us"] |= {"rounds_us": None, "ci": None}

    result = compared({STAGE: 10.0}, {STAGE: 12.0}, change=forget)
    assert {entry["ci"] for entry in result["shapes"][0]["entries"]} == {None}
    assert verdicts(result)[STAGE] == "slower"


def test_a_shape_that_one_of_them_lacks_is_listed(compared, capsys):
    result = compared({}, {}, change=lambda record: record["shapes"][0].update(causal=True))
    assert (result["shapes"], result["only_a"]) == ([], ["1x8x512x64"])
    assert result["only_b"] == ["1x8x512x64, causal"]
    assert cli.main(["compare", result["a"]["file"], result["b"]["file"]]) == 1
    assert "No shape and mask is in both" in capsys.readouterr().out


def test_the_command_shows_the_table(compared, tmp_path, capsys):
    compared({STAGE: 10.0}, {STAGE: 8.0}, change=lambda record: record.update(dirty=True))
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert cli.main(["compare", *files]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if STAGE in line)
    assert "faster" in row and "0.8" in row
    assert "Careful: B was measured with uncommitted changes" in out
    assert cli.main(["compare", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shapes"][0]["shape"] == "1x8x512x64"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a.json"], "artifacts: two files are accepted, not 1"),
        (["a.json", "a.json", "a.json"], "artifacts: two files are accepted, not 3"),
        (["a.json", "5"], "'5' beside a file: either stages or two artifacts are accepted"),
        (["a.json", "a.json", "--causal"], "--causal: is for a measurement"),
        (["a.json", "no.json"], "no.json: cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, says, fake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    artifact.save(fake(), tmp_path / "a.json")
    assert cli.main(["compare", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_damaged_artifact_is_named(fake, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    artifact.save(fake(), good)
    bad.write_text("{}")
    with pytest.raises(ArtifactError, match=r"bad\.json: has no field schema"):
        compare_artifacts(good, bad)
