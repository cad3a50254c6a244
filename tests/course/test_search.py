"""Lesson 24: what an evaluator works with, the cheats, the search, and how an answer is judged."""

import re
from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise, figures
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import search as drawn
from flashcore_numba.course.judge import followed, grade, process
from flashcore_numba.course.judge.answer_stage import functions
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.course.search import bench, hunt, survey
from flashcore_numba.course.search.cheats import CHEATS, RIGHT, candidate, table
from flashcore_numba.course.search.lineage import Hunt, barriers, padded, search, values_only
from flashcore_numba.stages import edited

LESSON = LESSONS[24]
WITH_EDITS = [cheat for cheat in CHEATS if cheat.edits]
SOLUTION = exercise.region(LESSON.exercise).text


def evaluated(kernel, rng):
    with bench.watched() as log:
        return hunt.evaluate(kernel, rng), log


def on(x, kernel):
    """The reports and the output of one launch into NaN."""
    out = np.full(x.q.shape, np.nan, np.float16)
    return bench.launch(kernel, x, out), out


# What an evaluator works with


def test_a_right_kernel_is_within_what_is_allowed_and_not_exact(rng):
    x = bench.draw(rng, 2, 19, 37, True)
    reports, out = on(x, RIGHT["stage 04 itself"]())
    assert reports == () and bench.within(out, x) and not (out == bench.exact(x)).all()
    assert not bench.within(np.where(np.arange(64) == 3, np.nan, out), x)
    off = bench.exact(x) + 1.01 * bench.allowed(x)
    assert not bench.within(off, x)


@pytest.mark.long
def test_memory_holds_what_the_evaluation_before_left(rng):
    first, second = bench.draw(rng, 1, 16, 32), bench.draw(rng, 1, 16, 38)
    kernel = RIGHT["stage 04 itself"]()
    with bench.watched():
        left = []
        for x in (first, second):
            out = bench.empty(x)
            bench.launch(kernel, x, out)
            left.append(out)
    with bench.watched() as log:
        for x, out in zip((first, second), left, strict=True):
            memory = bench.empty(x)
            assert (memory == out).all() and bench.within(memory, x)
            bench.launch(kernel, x, memory)
    assert len(log.taken) == 2 and {file for file, _ in log.taken} == {__file__}


def test_inputs_are_those_of_the_generator():
    a, b, c = (bench.draw(np.random.default_rng(seed), 1, 4, 5) for seed in (1, 1, 2))
    assert (a.q == b.q).all() and (a.q != c.q).any() and a.q.dtype == np.float16


@pytest.mark.parametrize(
    "sizes, named", [((0, 4, 4), "heads: 0"), ((1, 129, 4), "rows: 129"), ((1, 4, 4.0), "keys")]
)
def test_a_size_that_is_none(rng, sizes, named):
    with pytest.raises(ArgumentError, match=named):
        bench.draw(rng, *sizes)


def test_what_is_no_output_or_no_generator(rng):
    x = bench.draw(rng, 1, 4, 4)
    with pytest.raises(ArgumentError, match="out: float64"):
        bench.launch(RIGHT["stage 04 itself"](), x, np.zeros(x.q.shape))
    with pytest.raises(ArgumentError, match="rng: int"):
        bench.draw(7, 1, 4, 4)
    with pytest.raises(ArgumentError, match="x: tuple"):
        bench.exact((1, 2))


def test_what_is_no_python_is_reported(rng):
    reports, out = on(bench.draw(rng, 1, 4, 4), bench.of_lines(["if"]))
    assert re.match("it does not import: ", reports[0]) and np.isnan(out).all()


# Cheats


@pytest.mark.parametrize("cheat", WITH_EDITS, ids=lambda cheat: cheat.name.replace(" ", "-"))
def test_each_cheat_dies(cheat, rng):
    reason, log = evaluated(candidate(cheat), rng)
    assert reason and any(each.shows for each in log.launches)


def test_a_table_is_right_for_its_evaluation_alone():
    _, log = evaluated(RIGHT["stage 04 itself"](), np.random.default_rng(1))
    kernel = table([each.after for each in log.launches])
    assert not evaluated(kernel, np.random.default_rng(1))[0]
    assert evaluated(kernel, np.random.default_rng(2))[0]


@pytest.mark.parametrize("name", RIGHT)
def test_each_right_kernel_lives(name, rng):
    assert evaluated(RIGHT[name](), rng)[0] == ""


@pytest.mark.long
def test_ten_cheats_each_with_a_situation_in_which_it_is_right(rng):
    assert len(CHEATS) == 10 and len({cheat.name for cheat in CHEATS}) == 10
    x = bench.draw(rng, 1, 16, 32)
    at_ease = {cheat.name for cheat in WITH_EDITS if bench.within(on(x, candidate(cheat))[1], x)}
    assert {cheat.name for cheat in WITH_EDITS} - at_ease == {"answer left in memory", "lower precision"}
    (lower,) = (cheat for cheat in CHEATS if cheat.name == "lower precision")
    assert np.abs(on(x, candidate(lower))[1] - bench.exact(x)).max() < 0.05


# The search


@pytest.mark.long
def test_a_search_finds_the_needless_barrier_and_repeats_itself():
    found = search(padded(), hunt.mutate, hunt.evaluate, 10)
    assert found[:3] == search(padded(), hunt.mutate, hunt.evaluate, 3)
    (better,) = (each for each in found if each.better)
    assert better.barriers == barriers(bench.region_lines()) < barriers(padded())
    assert not survey.wrong(better.lines)


@pytest.mark.long
def test_numbers_alone_find_a_race():
    found = survey.figures()
    assert found["children"] == sum(found[layer] for layer in ("import", "report", "value", "lives"))
    assert found["numbers"] < found["everything"] == barriers(bench.region_lines())
    assert 0 < found["accepted_wrong"] < found["accepted"] and found["race_wrong"] == 0
    last = [each for each in survey.by_numbers() if each.better][-1]
    assert not values_only(bench.of_lines(list(last.lines)), np.random.default_rng()) and survey.wrong(
        last.lines
    )
    assert Evidence().searched("lives") == found["lives"]


@pytest.mark.long
def test_a_number_that_is_none():
    with pytest.raises(ArgumentError, match="'x': accepted are children, "):
        Evidence().searched("x")


# How an answer is judged


def answer(text):
    return exercise.answer_in_cell(LESSON, text)


@pytest.mark.parametrize(
    "text, status, said",
    [
        ("...\n", "empty", "still empty"),
        ("def mutate(lines, rng):\n    return lines\n", "refused", "no function `evaluate`"),
        (
            SOLUTION.replace("mutate(lines: list[str], ", "mutate("),
            "refused",
            "called with `lines` and `rng`",
        ),
        (SOLUTION.replace("exact(x)", "exakt(x)"), "refused", "Did you mean `exact`"),
        ("import os\n" + SOLUTION, "refused", "may not import os"),
        (
            SOLUTION.replace("launch(candidate", "launch(candidate._table"),
            "refused",
            r"may not use `\._table`",
        ),
        (SOLUTION.replace("list(lines)", "open(lines)"), "refused", "may not use `open`"),
        (SOLUTION.replace("return child", "return child)"), "refused", "not Python"),
    ],
)
def test_what_is_not_run(text, status, said):
    found = screen(LESSON, answer(text))
    assert found is not None and found.status == status
    assert re.search(said, f"{found.what} {found.look}")


@pytest.mark.long
def test_a_file_is_judged_at_its_own_lines():
    whole = exercise.starter(LESSON).replace("...\n", SOLUTION.replace('return ""', "return 1 / 0"))
    result = grade.check(LESSON, exercise.answer_in_file(LESSON, whole, "mine.py"))
    assert result.status == "failed" and result.kind == "error" and "ZeroDivisionError" in result.what
    assert whole.splitlines()[result.line - 1].strip() == result.line_text == "return 1 / 0"
    with pytest.raises(ArgumentError, match="no file of lesson 24"):
        grade.check(LESSON, exercise.answer_in_file(LESSON, "x = 1\n", "mine.py"))


def test_a_module_that_raises():
    result = grade.check(LESSON, answer(SOLUTION + "\n\nTHIRD = 1 / 0\n"))
    assert (
        result.status == "failed" and result.line_text == "THIRD = 1 / 0" and "cannot be run" in result.what
    )


def test_lines_are_followed():
    def some(x: list[int]) -> int:
        x.append(1)
        return len(x)

    found = followed.follow(some, [], values=True)
    assert found.value == 1 and found.error is None
    assert [state["x"] for state in found.states] == [[], [1], [1]]
    first = some.__code__.co_firstlineno
    assert found.lines == [first + 1, first + 2] and found.last == first + 2
    assert isinstance(followed.follow(some, None).error, AttributeError)


@pytest.mark.long
def test_an_endless_evaluator_ends():
    text = SOLUTION.replace('    return ""\n', "    while True:\n        pass\n")
    assert process.run({"job": "check", "lesson": 24, "answer": text}, time_limit=8)["status"] == "timeout"


# Figures


def kinds(name):
    return tuple(cheat for cheat in CHEATS if cheat.name in name)


@pytest.mark.long
def test_the_matrix_shows_what_an_evaluator_lets_live(monkeypatch):
    monkeypatch.setattr(drawn, "CHEATS", kinds(["one head", "race"]))
    figure = figures.draw(LESSON, "kills", Hunt(hunt.mutate, values_only), "your search")
    assert "0 of 2 cheats die" in figure.alt and "your search" in figure.alt
    assert "one head: nothing" in figure.alt and "race: report" in figure.alt


@pytest.mark.long
def test_the_matrix_of_evaluators_with_a_hole():
    reads_nothing = functions(
        answer(SOLUTION.replace("        if reports:\n            return reports[0]\n", ""))
    )
    labels, found = drawn.shown_by(reads_nothing)
    assert len(labels) == 3
    assert {name for name, (_, refused) in found.items() if not refused} == {"race"}
    assert found["race"][0] == ["report"] * 3 and found["one head"][0] == ["", "", "number"]
    memory = functions(answer(SOLUTION.replace("np.full_like(x.q, np.nan)", "empty(x)")))
    shown, refused = drawn.shown_by(memory)[1]["answer left in memory"]
    assert shown == ["", "", ""] and not refused


@pytest.mark.long
@pytest.mark.parametrize("name", ["funnel", "kills", "lineages"])
def test_a_figure_says_its_numbers(name):
    stage = edited.original(LESSON.exercise.stage)
    figure = figures.draw(LESSON, name, stage, figures.whose(stage))
    said = {"funnel": str(survey.figures()["lives"]), "kills": "10 of 10 cheats die", "lineages": "ends at"}
    assert said[name] in figure.alt
    if name == "lineages":
        own = figures.draw(LESSON, name, Hunt(hunt.mutate, values_only), "your search")
        assert "your search" in own.alt and own.alt != figure.alt


@pytest.mark.long
@pytest.mark.parametrize(
    "text, whose, why", [(SOLUTION, "yours", None), (SOLUTION + "1 / 0\n", "stage", "Your search")]
)
def test_what_is_watched_of_an_answer(text, whose, why):
    reply = process.run({"job": "watch", "lesson": 24, "figure": "kills", "answer": text})
    assert reply["status"] == "done" and reply["whose"] == whose
    assert ("your search" if whose == "yours" else "the lesson's own") in reply["result"]["title"]
    assert reply.get("why") is why or reply["why"].startswith(why)


def test_a_search_is_no_kernel():
    assert LESSON.exercise.subject == "search" and LESSONS[4].exercise.subject == "kernel"
    assert replace(LESSON, number=99).exercise.model == "the lesson's own"
