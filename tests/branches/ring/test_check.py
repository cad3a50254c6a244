"""`flashcore check ring`: all ways pass, and each wrong version of them is noticed."""

import json
import re

import numpy as np
import pytest
from matrix import few

from flashcore_numba import cli
from flashcore_numba.branches.ring import checking
from flashcore_numba.branches.ring.mutants import MUTANTS, kill_one
from flashcore_numba.checks.mutation import Mutant
from flashcore_numba.checks.runner import KINDS
from flashcore_numba.stages.edited import Edit, EditError

NAMED = {
    "ring/gated nothing_awaited": "attention of step 0 may still use it",
    "ring/gated own_keys_not_counted": "main stream: attention, for key 3",
    "ring/gated reset_on_the_other_stream": "use the number of each head's first key, one of them writes",
    "ring/pull no_start_barrier": "the copy reads keys of rank 1, and no barrier before it says that rank 1",
    "ring/pull no_end_barrier": "rank 0 writes keys of rank 0 for its next call, while the copy of rank 1",
    "ring/pull barrier_not_awaited": "no barrier ends the call before",
    "ring/pull barrier_before_the_keys": "and no barrier before it says that rank 1 has written them",
    "ring/pull buffer_reused_early": "the copy writes buffer 1, while attention of step 1 may still use it",
    "ring/pull arrival_not_awaited": "attention uses buffer 1, and nothing waits until the copy of step 1",
    "ring/backward barrier_before_the_part": "the copy reads parts of rank 1, and no barrier before it",
    "ring/backward slots_reused_early": "writes parts of rank 0, while the copy of rank 1, step 1, may still",
    "ring/backward room_for_a_part_reused": "the copy writes a part that came, while adding gradients of",
    "ring/ring buffer_reused_early": "the exchange writes buffer 1, while attention of step 1 may",
    "ring/ring arrival_not_awaited": "step 1: the exchange may still send keys, while filling of step 0",
}
QUICK = [
    mutant
    for mutant in MUTANTS
    if mutant.label in NAMED
    or mutant.name in ("halves_of_keys_exchanged", "out_of_one_chunk", "parts_in_float16")
]
HARMLESS = [
    Mutant(
        f"ring/{way}",
        name,
        "None.",
        tuple(Edit(old, new, file) for old, new in edits),
    )
    for way, name, file, *edits in (
        (
            "pull",
            "another_barrier",
            "programs",
            (
                '    rank.barrier(SIDE, "end")  # without',
                '    rank.barrier(SIDE, "middle")\n    rank.barrier(SIDE, "end")  # without',
            ),
        ),
        ("gather", "copies_of_each_head", "programs", ("FIRST = 4", "FIRST = 99")),
        (
            "pull",
            "other_direction",
            "schedule",
            ("(rank + i) % split.ranks\n        whole", "(rank - i) % split.ranks\n        whole"),
        ),
        (
            "pull",
            "three_buffers",
            "programs",
            (
                'f"buffer {i}", shape, dtype) for i in range(2)',
                'f"buffer {i}", shape, dtype) for i in range(3)',
            ),
            ("held = mine if i == 0 else buffers[i % 2]", "held = mine if i == 0 else buffers[i % 3]"),
            ("found.copies[i] = buffers[i % 2]", "found.copies[i] = buffers[i % 3]"),
        ),
        (
            "pull",
            "waits_for_all_kernels",
            "programs",
            ("left[i - 1])  # or the copy", "rank.record(MAIN))  # or the copy"),
        ),
        ("backward", "more_slots", "programs", ("SLOTS = 3\n", "SLOTS = 5\n")),
        (
            "backward",
            "a_barrier_at_the_end",
            "programs",
            (
                "        collect(rank.count - 1)\n",
                '        collect(rank.count - 1)\n    rank.barrier(SIDE, "end")\n',
            ),
        ),
        (
            "backward",
            "the_barrier_waits_for_the_sums_too",
            "programs",
            ("rank.wait(SIDE, written)", "rank.wait(SIDE, rank.record(MAIN))"),
        ),
        (
            "pull",
            "copies_on_the_main_stream",
            "programs",
            (
                "rank.copy(SIDE, buffer, source, i + 1)",
                "rank.wait(MAIN, rank.record(SIDE))\n"
                "            rank.copy(MAIN, buffer, source, i + 1)\n"
                "            rank.wait(SIDE, rank.record(MAIN))",
            ),
        ),
    )
]


@pytest.mark.long
def test_every_way_is_right() -> None:
    reports = checking.check()
    assert [report.label for report in reports] == [
        "ring/schedule", "ring/gated", "ring/gather", "ring/pull", "ring/ring", "ring/ulysses",
        "ring/backward", "ring/decode",
    ]  # fmt: skip
    for report in reports:
        assert report.passed, [(failure.name, failure.message) for failure in report.failures]
        assert report.margin > 2


@pytest.mark.parametrize("mutant", few(MUTANTS, *QUICK), ids=lambda mutant: mutant.label)
def test_it_is_noticed(mutant: Mutant) -> None:
    kill = kill_one(mutant)
    assert kill.status == "killed" and kill.as_expected, kill
    assert NAMED.get(mutant.label, "") in kill.message
    assert set(mutant.expected) <= {*KINDS}


@pytest.mark.long
@pytest.mark.parametrize("mutant", HARMLESS, ids=lambda mutant: mutant.name)
def test_a_harmless_change_passes(mutant: Mutant) -> None:
    assert kill_one(mutant).status == "survived"


def test_every_name_is_a_mutant() -> None:
    labels = [mutant.label for mutant in MUTANTS]
    assert len(set(labels)) == len(labels) and set(NAMED) <= set(labels)


def test_an_edit_that_no_longer_fits_is_named() -> None:
    with pytest.raises(EditError, match="ring/pull gone: this text occurs 0 times in programs"):
        kill_one(Mutant("ring/pull", "gone", "None.", (Edit("not there", "", "programs"),)))


@pytest.mark.long
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "ring/schedule", "ring/decode", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["key"], second["key"], second["backend"]) == ("ring/schedule", "ring/decode", "ranks")
    assert second["passed"] and second["margin"] > 2
    assert cli.main(["check", "ring/decode"]) == 0
    assert re.search(r"ring/decode │ +9/9", capsys.readouterr().out)


def test_the_command_fails_when_a_way_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setitem(checking.FORWARD, "pull", lambda *_: None)
    assert cli.main(["check", "ring/pull"]) == 1
    assert "elements are NaN" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["ring/pool"], "ring/pool: accepted are ring/schedule, ring/gated"),
        (["ring", "5"], "name no other stage beside it"),
    ],
)
def test_other_names_are_refused(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_limit_of_time_leaves_cases_that_failed() -> None:
    (report,) = checking.check(["pull"], time_limit=0.0)
    assert not report.passed and {result.kind for result in report.results} == {"time"}


def test_mutants_by_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("flashcore_numba.branches.ring.mutants.MUTANTS", MUTANTS[:1])
    assert cli.main(["mutants", "ring", "--json"]) == 0
    (kill,) = json.loads(capsys.readouterr().out)
    assert kill["status"] == "killed" and kill["as_expected"]
    assert cli.main(["mutants", "ring", "--save"]) == 2


@pytest.mark.long
def test_the_same_numbers_from_the_same_seed() -> None:
    one, other = (checking.check(["decode"], seed=int(np.int64(7)))[0].margin for _ in range(2))
    assert one == other
