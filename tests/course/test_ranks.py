"""Lesson 23: its functions are the library's, what several ranks do is noted, and how an answer is judged."""

import re

import numpy as np
import pytest

from flashcore_numba.branches.ring.machine import Hazard, Order, orders
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.programs import FORWARD, Layer
from flashcore_numba.branches.ring.rank import MAIN, SIDE
from flashcore_numba.branches.ring.schedule import steps
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise, figures
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.judge import grade, process
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.course.ranks import model, shares, together
from flashcore_numba.course.ranks.together import OWN, Asked, Ring
from flashcore_numba.stages import edited

LESSON = LESSONS[23]
SOLUTION = exercise.region(LESSON.exercise).text
RANKS = (2, 3, 4, 5)


# The lesson's functions are those of the library


@pytest.mark.parametrize("ranks", (1, *RANKS, 8))
def test_pieces_and_what_they_see_are_those_of_the_schedule(ranks):
    split = even(6 * ranks + 1, ranks)
    for number in range(ranks):
        assert OWN.pieces(number, ranks) == split.pieces(number)
        for step in steps(split, number, True)[1:]:
            rows, keys = OWN.seen(number, step.owner)
            halves = [
                [slice(0, split.half(rank)), slice(split.half(rank), split.rows(rank))]
                for rank in (number, step.owner)
            ]
            for shown, (first, second), part in ((rows, halves[0], step.rows), (keys, halves[1], step.keys)):
                wanted = {(0,): first, (1,): second, (0, 1): slice(0, second.stop)}[shown]
                assert part == wanted


class Recorded:
    """A rank that notes what a program of the library asks for."""

    def __init__(self, rank):
        self.rank, self.asked, self.events = rank, [], []

    def __getattr__(self, name):
        return getattr(self.rank, name)

    def launch(self, stream, what, *rest):
        if what == "attention":
            self.asked.append((what, stream, rest[-1]))
        self.rank.launch(stream, what, *rest)

    def copy(self, stream, to, source, step):
        self.asked.append(("copy", stream, step))
        self.rank.copy(stream, to, source, step)

    def barrier(self, stream, name):
        self.asked.append(("barrier", stream, name))
        self.rank.barrier(stream, name)

    def record(self, stream):
        self.events.append(self.rank.record(stream))
        self.asked.append(("record", stream, len(self.events) - 1))
        return self.events[-1]

    def wait(self, stream, event):
        self.asked.append(("wait", stream, self.events.index(event)))
        self.rank.wait(stream, event)


def told(asked):
    """What a `NotedRank` notes, as `Recorded` does."""
    events = [each.about for each in asked if each.what == "record"]
    found = []
    for each in asked:
        about = events.index(each.about) if each.what in ("record", "wait") else each.about
        found.append((each.what, each.stream, each.step if each.what in ("attention", "copy") else about))
    return found


@pytest.mark.parametrize("ranks", RANKS)
def test_the_pull_asks_for_what_the_librarys_asks_for(ranks, rng):
    machine = together.Machine(ranks, Order("late"))
    split = even(8 * ranks + 3, ranks)
    own = together.run(OWN.pull, ranks, Order("late"), rng).asked[0]
    for rank, asked in zip(machine.ranks, own, strict=True):
        recorded = Recorded(rank)
        q, k, v = (
            rng.standard_normal((1, 2, split.rows(rank.number), 8)).astype(np.float32) for _ in range(3)
        )
        FORWARD["pull"](
            recorded, Layer(split, True, Float32()), q, k, v, np.empty_like(q), np.empty(q.shape[:3], q.dtype)
        )
        assert recorded.asked == told(asked)


# Runs


@pytest.mark.parametrize("ranks", RANKS)
def test_a_run_is_right_and_sees_the_keys_that_are_due(ranks, rng):
    for order in orders(ranks, rng):
        done = together.run(OWN.pull, ranks, order, rng)
        assert done.margin > 1 and not done.hazards
        assert len(done.used) == together.CALLS * ranks**2
        for (call, number, i), used in done.used.items():
            assert used == (together.plan_of(ranks, number)[i].owner, call)


@pytest.mark.parametrize("barrier", ["start", "end"])
def test_a_missing_barrier_is_named_in_every_order(barrier, rng):
    named, wrong = 0, 0
    for order in (every := orders(4, rng)):
        with pytest.raises(Hazard) as raised:
            together.run(OWN.pull, 4, order, rng, without=barrier)
        assert raised.value.kind == f"{barrier} barrier"
        kept = together.run(OWN.pull, 4, order, rng, without=barrier, keep=True)
        named += {each.kind for each in kept.hazards} == {f"{barrier} barrier"}
        wrong += kept.margin < 1
    assert named == len(every) and wrong > 0


def test_what_a_rank_does_not_take(rng):
    def pull(rank, plan, buffers, attention):
        keys = rank.of(rank.number)
        bad = {
            "0 to 1 are": lambda: rank.of(2),
            "rows of keys do not fit": lambda: rank.copy(SIDE, buffers[0][:2], keys[:3]),
            "MAIN and SIDE are accepted": lambda: rank.record("third"),
            "no event": lambda: rank.wait(MAIN, None),
            "0 to 1 are accepted": lambda: attention.step(2, keys),
            "the part of its owner's chunk": lambda: attention.step(1, keys[:1]),
            "in the memory of rank 0" if rank.number else "in the memory of rank 1": lambda: attention.step(
                1, rank.of(1 - rank.number)[plan[1].keys]
            ),
        }
        for text, call in bad.items():
            with pytest.raises(ArgumentError, match=text):
                call()
        OWN.pull(rank, plan, buffers, attention)

    assert together.run(pull, 2, Order("late"), rng).margin > 1


# Numbers


@pytest.mark.parametrize("way", FORWARD)
@pytest.mark.parametrize("heads, kv_heads", [(8, 8), (8, 4)])
def test_what_moves_is_counted(way, heads, kv_heads):
    for ranks in (2, 4):
        at = (way, ranks, 16 * ranks, heads, kv_heads, 16)
        assert shares.counted(*at) == shares.moved(*at)


def test_ring_and_ulysses_move_as_much_at_one_more_than_the_group():
    def without_lse(ranks, heads):
        return (
            shares.moved("ulysses", ranks, 1024, heads, 8, 64)
            - heads * 4 * 1024 / ranks * (ranks - 1) / ranks
        )

    for group in (1, 3, 4):
        ranks = group + 1
        assert without_lse(ranks, 8 * group) == pytest.approx(
            shares.moved("ring", ranks, 1024, 8 * group, 8, 64)
        )


def test_the_bandwidth_that_hides_a_copy():
    rows, heads, kv_heads, dim, rate = 4096, 32, 8, 128, 700.0
    seconds = 4 * heads * rows**2 * dim / (rate * 1e12)
    chunk = 2 * kv_heads * rows * dim * shares.ELEMENT
    assert shares.needed(rows, heads // kv_heads, rate, False) == pytest.approx(chunk / seconds / 1e9)
    assert shares.needed(rows, 4, rate, True) == 2 * shares.needed(rows, 4, rate, False)


def test_the_numbers_of_the_lesson():
    found = shares.figures()
    assert found["start_named"] == found["end_named"] == found["orders"] > found["start_wrong"] > 0
    assert found["last"] == 7 and found["barriers"] == 2 and found["mean"] < found["most"]
    assert Evidence().across("last") == 7
    with pytest.raises(ArgumentError, match="'x': accepted are start_wrong, "):
        Evidence().across("x")


# The model


def test_in_the_model_copies_are_hidden():
    found = model.timeline(OWN.pull, 4)
    assert model.end(found) == 4 * model.STEP
    for number, some in enumerate(found):
        kernels = [each for each in some if each.what == "attention"]
        copies = {each.step: each for each in some if each.what == "copy"}
        assert [each.step for each in kernels] == [0, 1, 2, 3] and sorted(copies) == [1, 2, 3]
        assert all(copies[each.step].stop <= each.start for each in kernels[1:])
        for step, each in copies.items():
            whole = together.plan_of(4, number)[step].owner > number
            assert each.stop - each.start == model.PIECE * (2 if whole else 1)


def test_the_model_waits_for_events_and_for_all_ranks():
    event = object()
    first = [
        Asked("attention", MAIN, 0, 1),
        Asked("record", MAIN, 0, 2, event),
        Asked("wait", SIDE, 0, 3, event),
    ]
    first += [Asked("barrier", SIDE, 0, 4, "start"), Asked("copy", SIDE, 1, 5, 3)]
    second = [Asked("barrier", SIDE, 0, 4, "start"), Asked("copy", SIDE, 1, 5, 3)]
    one, other = model.spans([first, second], 3)
    assert one[-1] == other[-1] == model.Span(SIDE, "copy", 1, model.STEP, model.STEP + model.PIECE)
    with pytest.raises(RuntimeError, match=r"nothing can go on: \['barrier'\]"):
        model.spans([second, []], 3)


# How an answer is judged


def answer(text):
    return exercise.answer_in_cell(LESSON, text)


@pytest.mark.parametrize(
    "text, status, said",
    [
        ("...\n", "empty", "still empty"),
        (SOLUTION.replace("def seen(", "def sees("), "refused", "no function `seen`"),
        (SOLUTION.replace("pieces(number: int, ", "pieces("), "refused", "with `number` and `ranks`"),
        (SOLUTION.replace("SIDE, coming", "SLIDE, coming"), "refused", "Did you mean `SIDE`"),
        (SOLUTION.replace("rank.copy", "rank._rank.copy"), "refused", r"may not use `\._rank`"),
    ],
)
def test_what_is_not_run(text, status, said):
    found = screen(LESSON, answer(text))
    assert found is not None and found.status == status
    assert re.search(said, f"{found.what} {found.look}")


@pytest.mark.parametrize(
    "old, new, kind, line",
    [
        ("    left: list", "    1 / 0\n    left: list", "error", "1 / 0"),
        ("if owner > number", "if owner > nothing[0]", "error", None),
        ("((0, 1), (0,))", "((0, 1), 0)", "value", None),
        ("return number, 2", "return str(number), 2", "value", None),
        ("return number, 2 * ranks - 1 - number", "return 0, 2 * ranks - 1", "value", None),
        ("return number, 2 * ranks - 1 - number", "return ranks - 1 - number, ranks + number", "value", None),
    ],
)
def test_what_raises_or_is_no_answer_is_placed(old, new, kind, line):
    text = SOLUTION.replace(old, new)
    if "nothing" in new:
        text = text.replace("def seen", "nothing = ()\n\n\ndef seen")
    result = grade.check(LESSON, answer(text))
    assert result.status == "failed" and result.kind == kind, result
    assert result.line_text == (line or next(x.strip() for x in text.splitlines() if new in x)), result


@pytest.mark.long
def test_other_right_answers_pass():
    """All waits and barriers by one stream more than is needed, and copies that begin a step later."""
    kinder = SOLUTION.replace("if i > 1:\n", "if i > 0:\n")
    merged = SOLUTION.replace('"end")', '"start")')
    for text in (kinder, merged, "SPARE = 3\n" + SOLUTION):
        result = grade.check(LESSON, answer(text))
        assert result.passed, result
        assert len(result.items) == 7 and result.notes


def test_a_file_is_judged_at_its_own_lines():
    wrong = SOLUTION.replace("rank.copy(SIDE", "rank.copy(MAIN")
    whole = exercise.starter(LESSON).replace("...\n", wrong)
    result = grade.check(LESSON, exercise.answer_in_file(LESSON, whole, "mine.py"))
    assert result.kind == "order" and result.line_text.startswith("rank.copy(MAIN")
    assert whole.splitlines()[result.line - 1].strip() == result.line_text


# Figures


@pytest.mark.parametrize("name", [LESSON.picture, *LESSON.figures])
def test_a_figure_says_its_numbers(name):
    stage = edited.original(LESSON.exercise.stage)
    figure = figures.draw(LESSON, name, stage, figures.whose(stage))
    said = {
        "in_order": "rank 3 14", "side_by_side": "rank 2: keys of 2, 3, 0, 1", "shares": "rank 3 8",
        "moved": "8 K/V heads, ring: 128 on 2", "needed": "4 query heads per K/V head, causal",
    }  # fmt: skip
    assert said[name] in figure.frames[-1].alt
    assert all(frame.png.startswith(b"\x89PNG") for frame in figure.frames)


@pytest.mark.long
def test_a_figure_is_of_the_answer():
    def late(rank, plan, buffers, attention):
        rank.wait(SIDE, rank.record(MAIN))
        rank.barrier(SIDE, "start")
        for i, step in enumerate(plan):
            keys = rank.of(step.owner)[step.keys]
            if i:
                rank.wait(SIDE, rank.record(MAIN))
                rank.copy(SIDE, buffers[0][step.keys], keys)
                rank.wait(MAIN, rank.record(SIDE))
                keys = buffers[0][step.keys]
            attention.step(i, keys)
        rank.wait(SIDE, rank.record(MAIN))
        rank.barrier(SIDE, "end")
        rank.wait(MAIN, rank.record(SIDE))

    own = Ring(shares.contiguous, OWN.seen, late)
    drawn = figures.draw(LESSON, "shares", own, "your program")
    assert "your program" in drawn.title and "takes 1.75 times" in drawn.alt and "rank 3 14" in drawn.alt
    side = figures.draw(LESSON, "side_by_side", own, "your program")
    took = model.end(model.timeline(late, 4))
    assert took > 16 and f"ends after {took:g}" in side.alt and "your program" in side.title


@pytest.mark.long
@pytest.mark.parametrize("text, whose", [(SOLUTION, "yours"), (SOLUTION + "1 / 0\n", "stage")])
def test_what_is_watched_of_an_answer(text, whose):
    reply = process.run({"job": "watch", "lesson": 23, "figure": "side_by_side", "answer": text})
    assert reply["status"] == "done" and reply["whose"] == whose
    assert ("your program" if whose == "yours" else "the lesson's own") in reply["result"]["title"]


def test_a_program_is_no_kernel():
    assert LESSON.exercise.subject == "program" and LESSON.exercise.model == "the lesson's own"
