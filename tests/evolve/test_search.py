"""The search itself: what lives, what is told, what is kept. Its judge is a stand-in that reads words."""

import asyncio
import json
import os
import signal
import threading
import time
import zlib
from functools import partial

import pytest
from openevolve.config import DatabaseConfig

from cuda_reference.files import MachineError
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.evolve import engine, lineage, population, region, source
from flashcore_numba.evolve.evaluate import Evaluation
from flashcore_numba.evolve.proposers import BLOCK, Edits

from .stand_in import FIRST, GATES, LAST, LESSON, OWN, Judge, Says, before_last, search, trace

OUTSIDE = BLOCK.format(old="    const int lane = threadIdx.x % 32;", new="    const int lane = 0;")
MALFORMED = "<<<<<<< SEARCH\nno end\n"
REPLIES = (
    before_last("bug"),
    before_last("bug"),
    before_last("faster"),
    OUTSIDE,
    MALFORMED,
    before_last("faster and faster"),
    "no block at all",
)


def verdicts(record):
    return [each.layer or "valid" for each in record.candidates]


def check_golden(record, judge):
    """Verdicts, lineage, the best program, and that nothing else was judged."""
    start, one, two, three, four, five, six, seven = record.candidates
    assert verdicts(record) == ["valid", "race", "repeated", "valid", "region", "reply", "valid", "reply"]
    assert [each.parent for each in record.candidates[:3]] == [None, 0, 0]
    assert all(record.candidates[each.parent].valid for each in record.candidates[1:])
    assert [each.operator for each in record.candidates[1:]] == [f"operator {n}" for n in range(1, 8)]
    assert one.line == len(OWN.splitlines()) and one.region.splitlines()[one.line - 1].strip() == "// bug"
    assert two.message == "It is candidate 1 again." and two.region == ""
    assert three.fitness == 1.1 and three.region == OWN.replace(LAST, f"        // faster\n{LAST}")
    assert "`const int lane = threadIdx.x % 32;`" in four.message and four.region == ""
    assert "Unmatched SEARCH/REPLACE" in five.message and five.reply == MALFORMED
    assert "No valid diffs" in seven.message and start.fitness == 1 and start.seed == 7
    assert [each.number for each in lineage.elite(record.candidates, 2)] == [six.number, three.number]
    assert len(judge.texts) == 4
    for text, each in zip(judge.texts, (start, one, three, six), strict=True):
        assert text == source.whole(LESSON, each.region)[1]


def golden(folder=None):
    judge, proposer = Judge(), Says(*REPLIES)
    record = search(proposer, len(REPLIES), judge, islands=1, folder=folder)
    assert proposer.closed
    return record, judge


def test_recorded_replies_give_verdicts_lineage_and_the_best(tmp_path):
    record, judge = golden(tmp_path)
    check_golden(record, judge)
    assert lineage.load(tmp_path) == record
    assert (tmp_path / "best.cu").read_text() == source.whole(LESSON, record.candidates[6].region)[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.cu", "evolution.json"]


def test_a_reply_that_is_half_outside_is_not_half_applied():
    """openevolve would leave the block out that fits nowhere, and judge what nobody has proposed."""
    judge = Judge()
    record = search(Says(before_last("faster") + OUTSIDE), 1, judge)
    assert verdicts(record) == ["valid", "region"] and len(judge.texts) == 1


@pytest.mark.parametrize("character", ["\0", "\ud800"])
def test_a_character_that_no_file_has_ends_a_proposal_and_not_the_search(character):
    record = search(Says(before_last(f"x{character}"), before_last("faster")), 2, Judge())
    assert verdicts(record) == ["valid", "region", "valid"]


def everybody(search, original, *given):
    original(search, *given)
    return True


def check_admission():
    """No candidate has a rejected parent."""
    seen = set()
    for seed in range(4):
        record = search(Says(*[before_last(f"bug {n}") for n in range(12)]), 12, seed=seed)
        seen |= {each.parent for each in record.candidates[1:]}
    assert seen == {0}


def test_only_valid_candidates_become_parents():
    check_admission()


def check_feedback():
    proposer = Says(before_last("bug"), before_last("faster"), before_last("x"), before_last("y"))
    search(proposer, 4, islands=1)
    later = [asked.user for asked in proposer.asked if asked.number >= 3 and asked.region == OWN]
    later += [asked.user for asked in proposer.asked[3:]]
    told = "\n".join(later)
    for part in ("Candidate 1, rejected (race)", "Sentence 1.", "Written by one, read by another."):
        assert part in told
    assert f"Line {len(OWN.splitlines())} of it: `// bug`" in told and "Look at the wait." in told


def test_the_next_prompt_says_what_the_judge_said():
    check_feedback()


MUTANTS = {
    "admission": ("admit", check_admission),
    "region": (None, test_a_reply_that_is_half_outside_is_not_half_applied),
    "feedback": ("told_of", check_feedback),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_search_without_a_part_is_noticed(name, monkeypatch):
    method, check = MUTANTS[name]
    if name == "admission":
        monkeypatch.setattr(engine._Search, method, partial_of(engine._Search.admit))
    elif name == "region":
        monkeypatch.setattr(region, "outside", lambda blocks, lines: None)
    else:
        monkeypatch.setattr(engine._Search, method, lambda self, number, last: {"nothing": ""})
    with pytest.raises(AssertionError):
        check()


def partial_of(original):
    def admit(self, *given):
        return partial(everybody, self, original)(*given)

    return admit


def test_a_prompt_has_the_region_and_nothing_else_of_the_kernel():
    proposer = Says(before_last("faster"))
    search(proposer, 1)
    (asked,) = proposer.asked
    assert OWN.rstrip() in asked.user and LESSON.exercise.task.strip() in asked.system
    others = source.whole(LESSON, "")[1].splitlines()
    shown = f"{asked.system}\n{asked.user}".replace(OWN, "").replace(LESSON.exercise.task, "")
    assert not [line for line in others if len(line.strip()) > 30 and line.strip() in shown]


def test_islands_follow_ideas():
    proposer = Says(*[before_last(f"try {n}") for n in range(4)])
    record = search(proposer, 4, islands=2)
    assert {(each.island, each.idea) for each in record.candidates[1:]} == {(0, "waits"), (1, "numbers")}
    assert ["change numbers only" in asked.system for asked in proposer.asked] == [
        asked.idea == "numbers" for asked in proposer.asked
    ]


class Every:
    """Each edit of `Edits` is valid here, and some are fitter."""

    def __call__(self, path, lesson=None):
        text = path.read_text()
        number = zlib.crc32(text.encode())
        valid = number % 3 > 0 or text == source.whole(LESSON, OWN)[1]
        counters = {gate.what: number % 100 for gate in GATES}
        layer = None if valid else "odd"
        return Evaluation(lesson, valid, layer, "Odd.", counters=counters, fitness=1 + number % 7)


def test_a_seed_repeats_a_search(monkeypatch):
    monkeypatch.setattr(engine, "MIGRATION", 2)
    one, two, other = (search(Edits(seed), 16, Every(), seed=seed, islands=3) for seed in (5, 5, 6))
    assert trace(one) == trace(two) != trace(other)
    assert {each.valid for each in one.candidates} == {True, False}
    moved = [each for each in one.candidates[1:] if one.candidates[each.parent].number]
    assert any(one.candidates[each.parent].island != each.island for each in moved), "nothing has migrated"


def test_edits_never_repeat_and_keep_to_the_idea():
    record = search(Edits(3), 10, Every(), seed=3)
    regions = [each.region for each in record.candidates]
    assert len(set(regions)) == len(regions) and "" not in regions


def test_what_is_saved_is_gone_on_with(tmp_path):
    first = search(Says(*REPLIES), 3, islands=1, folder=tmp_path)
    judge, proposer = Judge(), Says(*REPLIES)
    second = search(proposer, 7, judge, islands=1, folder=tmp_path)
    assert trace(second)[:4] == trace(first) and len(second.candidates) == 8
    assert [asked.number for asked in proposer.asked] == [4, 5, 6, 7]
    assert verdicts(second) == ["valid", "race", "repeated", "valid", "region", "reply", "valid", "reply"]
    assert len(judge.texts) == 1, "what was judged is not judged again"
    assert trace(search(Says(), 7, islands=1, folder=tmp_path)) == trace(second)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": 1}, "its seed is 0, this one's 1"),
        ({"islands": 2}, "its islands is 1, this one's 2"),
        ({"start": f"{FIRST}\n{LAST}\n"}, "its start is another"),
    ],
)
def test_another_search_does_not_go_on(options, says, tmp_path):
    search(Says(*REPLIES), 1, islands=1, folder=tmp_path)
    with pytest.raises(ArgumentError, match=says):
        search(Says(*REPLIES), 2, folder=tmp_path, **{"islands": 1, **options})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"candidates": [{"number": 0}]}', "[" * 99_999])
def test_what_is_no_record_is_refused(text, tmp_path):
    (tmp_path / lineage.FILE).write_text(text)
    with pytest.raises(ArgumentError, match="is no record that flashcore evolve wrote"):
        lineage.load(tmp_path)
    with pytest.raises(ArgumentError, match="cannot be read"):
        lineage.load(tmp_path / "none")


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (None, {"candidates": []}),
        (None, {"candidates": {}}),
        (None, {"seed": "1"}),
        (None, {"islands": True}),
        (0, {"valid": False}),
        (0, {"parent": 0}),
        (1, {"number": 2}),
        (1, {"parent": None}),
        (1, {"parent": 7}),
        (2, {"parent": 2}),
        (2, {"fitness": "1"}),
        (2, {"message": None}),
        (2, {"counters": []}),
    ],
)
def test_a_damaged_record_is_no_record(number, changes, tmp_path):
    search(Says(*REPLIES), 2, folder=tmp_path)
    whole = json.loads((tmp_path / lineage.FILE).read_text())
    (whole if number is None else whole["candidates"][number]).update(changes)
    (tmp_path / lineage.FILE).write_text(json.dumps(whole))
    with pytest.raises(ArgumentError, match="is no record that flashcore evolve wrote"):
        lineage.load(tmp_path)


def test_an_interrupt_leaves_what_is_finished(tmp_path):
    class Stopped(Judge):
        def __call__(self, path, lesson=None):
            if len(self.texts) == 3:
                raise KeyboardInterrupt
            return super().__call__(path, lesson)

    proposer = Says(*[before_last(f"faster {n}") for n in range(9)])
    with pytest.raises(KeyboardInterrupt):
        search(proposer, 9, Stopped(), folder=tmp_path)
    assert proposer.closed
    assert [path.name for path in tmp_path.iterdir()] == [lineage.FILE]
    kept = lineage.load(tmp_path)
    assert verdicts(kept) == ["valid"] * 3
    assert json.loads((tmp_path / lineage.FILE).read_text())["candidates"][2]["number"] == 2
    again = search(Says(*proposer.replies), 9, folder=tmp_path)
    assert trace(again)[:3] == trace(kept) and len(again.candidates) == 10


def test_a_machine_that_fails_ends_the_search(tmp_path):
    class Broken(Judge):
        def __call__(self, path, lesson=None):
            if self.texts:
                raise MachineError("the disk is full")
            return super().__call__(path, lesson)

    with pytest.raises(MachineError, match="the disk is full"):
        search(Says(*REPLIES), 4, Broken(), folder=tmp_path)
    assert verdicts(lineage.load(tmp_path)) == ["valid"]


def test_a_record_that_cannot_be_written_ends_the_search(tmp_path, monkeypatch):
    def full(folder, record):
        if len(record.candidates) == 2:
            raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(lineage, "save", full)
    with pytest.raises(OSError, match="No space left"):
        search(Says(*REPLIES), 4, folder=tmp_path)


def test_a_start_that_is_wrong_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="the start of the search is not valid: Written by one"):
        search(Says(), 1, start=f"{FIRST} // bug\n", folder=tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_proposer_that_fails_is_in_the_record():
    record = search(Says(RuntimeError("no line"), before_last("faster")), 2)
    assert verdicts(record) == ["valid", "proposer", "valid"]
    assert record.candidates[1].message == "no line"


def test_times_make_the_fitness_where_there_is_a_clock():
    """And what is wrong on the GPU does not live."""
    timed = []

    def clock(child, parent):
        timed.append((child, parent))
        if "faster" not in child:
            return {"right": True, "fitness": 0.99, "basis": "time"}
        return {"right": False, "failed": "its timed output was wrong."}

    record = search(Says(before_last("bug"), before_last("faster")), 2, clock=clock)
    start, bug, faster = record.candidates
    assert start.fitness == 0.99 and start.basis == "time" and start.times["right"]
    assert bug.layer == "race" and bug.times is None
    assert (faster.valid, faster.layer) == (False, "device") and "timed output was wrong" in faster.message
    assert [each[0] for each in timed] == [OWN, faster.region] and timed[1][1] == OWN


def test_ctrl_c_while_a_reply_is_waited_for(tmp_path):
    class Waits(Says):
        async def propose(self, asked):
            if asked.number == 2:
                threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
                await asyncio.sleep(60)
            return await super().propose(asked)

    began, proposer = time.monotonic(), Waits(before_last("faster"))
    with pytest.raises(KeyboardInterrupt):
        search(proposer, 3, folder=tmp_path)
    assert time.monotonic() - began < 20 and proposer.closed
    assert verdicts(lineage.load(tmp_path)) == ["valid", "valid"]


def drawn(monkeypatch, exploit):
    """The parents of many proposals, and the candidates of the population: fitness and registers."""
    monkeypatch.setattr(population, "EXPLOIT", exploit)
    ranges = engine.MACHINE_CODE
    config = DatabaseConfig(
        num_islands=1, feature_dimensions=[*ranges], feature_bins=dict.fromkeys(ranges, engine.CELLS)
    )
    kept = population.Population(config, lambda *_: True, ranges, 2, 0, 1)
    for number, (fitness, registers) in enumerate([(1.0, 81), (1.2, 82), (1.3, 83), (0.9, 168)]):
        axes = {"registers": registers, "shared_bytes": 0.0, "combined_score": fitness}
        kept.add(population.program(str(number), "", axes, None, "cuda"), iteration=number, target_island=0)
    return {kept.sample_from_island(0)[0].id for _ in range(60)}


def test_a_parent_is_of_the_elite_or_of_any_cell(monkeypatch):
    """A worse candidate that needs other registers keeps its place, one that needs the same does not."""
    assert drawn(monkeypatch, exploit=1.0) == {"1", "2"}, "1 has lost its cell to 2"
    cells = drawn(monkeypatch, exploit=0.0)
    assert cells == {"2", "3"}
