"""Every exercise: the starter is empty, the solution passes with margin, a wrong answer gets help."""

import re

import pytest
from matrix import few, first_of_each

from flashcore_numba.checks.cases import normal
from flashcore_numba.course import exercise
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.judge import cuda_probe, grade, process
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.files import is_cuda

from . import kill_table
from .wrong_answers import text_of

SMALLEST_MARGIN = 1.3
FEWEST = 5
LEAST_OF_ALL = 80  # over the whole course
WRONG = {number: kill_table.wrongs(number) for number in LESSONS}
KEPT = kill_table.kept()
CUDA = [number for number, lesson in LESSONS.items() if is_cuda(lesson.exercise.file)]
CASES = [
    pytest.param(n, wrong, id=f"{n:02d}-{wrong.name}") for n, wrongs in WRONG.items() for wrong in wrongs
]


@pytest.mark.parametrize("number, wrong", first_of_each(CASES, lambda number, wrong: number))
def test_a_wrong_answer_is_told_what_is_wrong_and_where(number, wrong):
    lesson = LESSONS[number]
    answer = exercise.answer_in_cell(lesson, text_of(wrong, lesson.exercise))
    result = grade.check(lesson, answer)
    assert not result.passed and result.status in ("failed", "refused"), result
    for pattern in wrong.says:
        assert re.search(pattern, result.message, re.DOTALL), f"{pattern!r} is not in:\n{result.message}"
    if wrong.line:
        assert result.line_text == wrong.line, result.message
        assert answer.lines[result.line - 1].strip() == wrong.line
    known = KEPT.get(f"{number:02d} {wrong.name}")
    assert known, f"it is not in the kill table yet: make kills N={number}"
    assert kill_table.cause(result) == known["cause"], result


@pytest.mark.parametrize("number", LESSONS)
def test_enough_wrong_answers(number):
    assert len({wrong.name for wrong in WRONG[number]}) >= FEWEST


def test_the_kill_table_is_published_whole():
    assert {name: kill["mistake"] for name, kill in KEPT.items()} == {
        f"{number:02d} {wrong.name}": wrong.mistake for number, some in WRONG.items() for wrong in some
    }
    assert len(KEPT) >= LEAST_OF_ALL
    assert kill_table.summary(KEPT) in kill_table.INDEX.read_text()
    assert kill_table.TABLE.read_text() == kill_table.full_table(KEPT)
    assert set(kill_table.MISCONCEPTIONS) == set(LESSONS)
    assert all(2 <= len({name for name, *_ in some}) <= 3 for some in kill_table.MISCONCEPTIONS.values())
    assert kill_table.misconceptions(KEPT) in kill_table.INSTRUCTOR.read_text()


@pytest.mark.parametrize("number", few(LESSONS, 0, 7))
def test_the_solution_passes_with_margin(number):
    reply = process.run({"job": "check", "lesson": number})
    result = reply["result"]
    assert reply["status"] == "passed", result or reply
    assert result["margin"] >= SMALLEST_MARGIN
    for gate in result["gates"]:
        assert gate["value"] == gate["right"], (
            f"{gate['what']}: the lesson does not say what the solution has"
        )
        assert gate["right"] <= gate["bar"]


@pytest.mark.parametrize("number", [number for number in LESSONS if number > 1])
def test_a_gate_quotes_the_stage_below(number):
    for gate in LESSONS[number].exercise.gates:
        below = Evidence().counted(number - 1, gate.shape)
        assert gate.value(below.launches) == gate.before, gate.what


@pytest.mark.parametrize("number", CUDA)
def test_what_is_wanted_of_a_kernel_has_a_value(number, rng):
    task = LESSONS[number].exercise
    solution = exercise.answer_in_cell(LESSONS[number], exercise.region(task).text)
    wanted = cuda_probe.usable(solution, task.wanted)
    assert wanted == list(task.wanted)
    if wanted:
        visits = cuda_probe.values(LESSONS[number], solution, wanted, normal(rng, 1, 1, 70, 70, 64))
        assert visits and all(len(values) == len(wanted) for _, _, values in visits)


@pytest.mark.parametrize("number", few(LESSONS, 0, 5, 12))
def test_the_starter_is_empty(number):
    lesson = LESSONS[number]
    reply = process.run({"job": "check", "lesson": number, "answer": exercise.starter_cell(lesson)})
    assert reply["status"] == "empty"
    assert lesson.exercise.task.strip() in reply["result"]["message"]
    whole = grade.check(lesson, exercise.answer_in_file(lesson, exercise.starter(lesson), "mine"))
    assert whole.status == "empty" and whole.message == reply["result"]["message"]


@pytest.mark.parametrize("number", LESSONS)
def test_a_region_has_5_to_25_lines(number):
    lines = [line for line in exercise.region(LESSONS[number].exercise).text.splitlines() if line.strip()]
    assert 5 <= len(lines) <= 25
