"""The tables of docs/trust.md and docs/edits.md say what their records hold."""

import json

import pytest

from flashcore_numba.checks import Kill
from flashcore_numba.report import trust_tables

FUZZ = {
    "date": "2026-01-31",
    "commit": "0123456789",
    "first_seed": 7,
    "simulator": {"equal": 8, "wrong value": 2},
    "Numba's simulator": {"equal": 4, "differs": 1, "not run: it lacks votes": 5},
    "mutants, barrier": {"reported": 5, "harmless": 1, "wrong value": 3},
    "mutants, index": {"another kernel": 1},
    "mutants, syncwarp": {"reported": 2},
}
GPU = FUZZ | {"simulator": {"equal": 11, "differs": 1}, "ran on the GPU": 12, "refused or broken there": 3}
EDIT = {
    "stage": 7,
    "file": "stage07_wmma_qk.cu",
    "line": 3,
    "kind": "swap",
    "before": "a | b;",
    "after": "b;",
    "executor": {"verdict": "right"},
    "gpu": {"verdict": "wrong"},
    "conclusion": "missed",
}
MUTATION = {
    "seed": 7,
    "status": "failed",
    "place": "there",
    "cause": "operator",
    "false": ["It is 0."],
    "misleading": [],
    "still_false": [],
}
PASSED = {
    "seed": 8,
    "status": "passed",
    "place": "",
    "cause": "",
    "false": [],
    "misleading": [],
    "still_false": [],
}
DRAW = {"date": "2026-01-31", "commit": "0123456789", "seed": 7, "count": 2, "sentences": 5}
MUTATIONS = {
    "draws": [DRAW, DRAW | {"seed": 8, "count": 1, "sentences": 4}],
    "mutations": [
        MUTATION,
        MUTATION | {"place": "elsewhere", "cause": "", "misleading": ["a", "b"], "still_false": ["c"]},
        PASSED,
    ],
}
EDITS = {"seed": 1, "controls": [{"stage": 7, "executor": "right", "gpu": "wrong"}], "edits": [EDIT]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trust").mkdir()
    for name, record in {"fuzz": FUZZ, "fuzz-h200": GPU, "edits": EDITS}.items():
        (tmp_path / f"trust/{name}.json").write_text(json.dumps(record))
    return tmp_path


def cells(text, first):
    """The cells of the row that begins with `first`."""
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_what_differs_is_counted(folder):
    text = trust_tables.fuzz(folder)
    assert cells(text, "an H200") == ["12", "11", "1"]
    assert cells(text, "one greenlet per thread, in four orders") == ["10", "8", "2"]
    assert cells(text, "Numba's CUDA simulator") == ["5", "4", "1"]
    assert "3 more did not compile" in text and "5, because it lacks votes" in text


def test_a_silent_fault_is_shown(folder):
    text = trust_tables.planted(folder)
    assert cells(text, "a barrier removed") == ["5", "1", "0", "3"]
    assert cells(text, "an index shifted") == ["0", "0", "1", "0"]


def test_false_sentences_are_shown(folder):
    assert trust_tables.mutations(folder) is None
    (folder / "trust/mutations-python.json").write_text(json.dumps(MUTATIONS))
    text = trust_tables.mutations(folder)
    assert cells(text, "00 to 06, Python") == ["3", "1", "2", "1", "1", "9", "2", "1", "2"]
    assert "2 on 2026-01-31, commit 0123456, seed 7, 2 false of 5; 1 on" in text and "CUDA C" not in text


def test_a_missed_edit_is_shown(folder):
    text = trust_tables.edits(folder)
    assert cells(text, "**all**") == ["1", "0", "0", "1", "0", "0"]
    assert "Of 1 stages without an edit, 0 were right" in text
    assert "`a \\| b;`" in trust_tables.every_edit(folder)


def test_a_survivor_is_not_counted_as_caught(folder):
    def fate(name, status, kind=""):
        return Kill(3, name, "", "simulator", status, kind)

    kills = [fate("a", "killed", "race"), fate("b", "survived"), fate("c", "killed", "race")]
    path = trust_tables.save_mutants(kills, kills[:1], folder)
    assert json.loads(path.read_text())["planted"]["wrong versions of the stages"]["survived"] == ["03 b"]
    text = trust_tables.mistakes(folder)
    assert cells(text, "wrong versions of the stages") == ["3", "2", "race 2"]
    assert cells(text, "statements that order memory, left out") == ["1", "1", "race 1"]


@pytest.mark.parametrize("make", trust_tables.TABLES.values())
def test_nothing_is_said_without_a_record(make, tmp_path):
    assert make(tmp_path) is None
