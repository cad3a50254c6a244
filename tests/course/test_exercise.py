"""The starter, the answer put back, and the lines that a message names."""

import ast
import textwrap
from dataclasses import replace

import pytest

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import exercise
from flashcore_numba.course.judge.answer_stage import loaded
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages.edited import MARKS
from flashcore_numba.stages.files import is_cuda

BEGIN, END = MARKS["Python"]

NUMBERS = list(LESSONS)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_starter_differs_from_the_stage_in_the_region_alone(number):
    lesson = LESSONS[number]
    stage, starter = exercise.source_text(lesson.exercise.file), exercise.starter(lesson)
    if not is_cuda(lesson.exercise.file):
        ast.parse(starter)
        assert "from ." not in starter
    solution = [line.strip() for line in exercise.region(lesson.exercise).text.splitlines()]
    begin, end = (next(line for line in starter.splitlines() if line.endswith(f"{mark}>"))
                  for mark in (" <exercise", " </exercise"))  # fmt: skip
    before, _, after = starter.partition(begin)
    inside = after.partition(end)[0].splitlines()
    assert not [line for line in inside if line.strip() and line.strip() in solution]
    kept = [line for line in before.splitlines() + after.partition(end)[2].splitlines() if line.strip()]
    for line in kept:
        assert line in stage or "flashcore_numba" in line
    assert lesson.exercise.task.strip().splitlines()[0] in after


@pytest.mark.parametrize("number", NUMBERS)
def test_the_solution_put_back_is_the_stage(number):
    task = LESSONS[number].exercise
    solution = exercise.region(task).text
    for text in (solution, textwrap.dedent(solution)):
        answer = exercise.answer_in_cell(LESSONS[number], text)
        assert answer.text == exercise.source_text(task.file)
        assert "\n".join(answer.lines) + "\n" == solution


def test_pasting_may_be_sloppy():
    lesson = LESSONS[5]
    text = exercise.region(lesson.exercise).text
    marked = f"            {BEGIN}\n{text}            {END}\n"
    for sloppy in (marked, text.replace("\n", "\r\n"), "\ufeff" + text, textwrap.indent(text, "    ")):
        assert exercise.answer_in_cell(lesson, sloppy).text == exercise.source_text(lesson.exercise.file)


def test_a_line_is_named_as_its_author_counts():
    lesson = LESSONS[5]
    found = exercise.region(lesson.exercise)
    cell = exercise.answer_in_cell(lesson, "a = 1\nb = 2\n")
    assert cell.place(found.first_line + 1) == "line 2 of your answer"
    assert cell.source(found.first_line + 1) == "b = 2"
    assert cell.place(3) == f"{lesson.exercise.file}.py:3"
    whole = exercise.answer_in_file(lesson, exercise.starter(lesson), "mine.py")
    assert whole.place(whole.first) == f"mine.py:{whole.first}"
    assert whole.inside(whole.first) and not whole.inside(whole.first - 1)


@pytest.mark.parametrize(
    "text, named", [(b"x = 1", "bytes"), (None, "NoneType"), ("if x:\n\ty = 1", "line 2 .* tab")]
)
def test_what_is_no_answer_is_refused(text, named):
    with pytest.raises(ArgumentError, match=f"the answer: .*{named}"):
        exercise.answer_in_cell(LESSONS[5], text)


def test_a_file_without_a_region_is_an_error():
    with pytest.raises(ArgumentError, match=r"common\.py has not exactly one region"):
        exercise.region(replace(LESSONS[5].exercise, file="common"))


def test_an_exponential_counts_in_whatever_type(rng):
    """A plain 0.0 makes them float64, and takes none away."""
    lesson = LESSONS[5]
    gate = next(each for each in lesson.exercise.gates if each.what.startswith("exponentials"))
    text = exercise.region(lesson.exercise).text.replace("else float32(0)", "else 0.0")
    executor = Simulator()
    with loaded(lesson, exercise.answer_in_cell(lesson, text)) as stage:
        stage.run(Problem(*parse(gate.shape).inputs(rng)), executor)
    assert sum(launch.totals()["exp64"] for launch in executor.launches) > 0
    assert gate.value(executor.launches) == gate.right
