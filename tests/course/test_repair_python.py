"""Changes of an answer in Python towards the solution: together they give it, and the fewest are found."""

import random
from itertools import islice

import pytest

from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import repair, repair_cuda, repair_python
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.files import is_cuda

from . import kill_table
from .sample_mutations import mutations
from .wrong_answers import text_of

PYTHON = [number for number, lesson in LESSONS.items() if not is_cuda(lesson.exercise.file)]


def answers(number: int, rng) -> list[Answer]:
    lesson = LESSONS[number]
    some = rng.permutation(len(kill_table.wrongs(number)))[:6]
    texts = [text_of(kill_table.wrongs(number)[n], lesson.exercise) for n in some]
    drawn = mutations(lesson, random.Random(int(rng.integers(2**31))))
    texts += [mutation.text for mutation in islice(drawn, 6)]
    return [exercise.answer_in_cell(lesson, text) for text in texts]


@pytest.mark.long
@pytest.mark.parametrize("number", PYTHON)
def test_all_changes_together_give_the_solution(number, rng):
    lesson = LESSONS[number]
    for answer in answers(number, rng):
        changes = repair_python.differences(lesson, answer)
        assert {change.cause for change in changes} <= set(repair.CAUSES)
        whole = repair.changed(answer, changes)
        assert repair_python.differences(lesson, whole) == [], "\n".join(
            [*answer.lines, "became", *whole.lines]
        )


@pytest.mark.parametrize("number", PYTHON)
def test_the_solution_differs_in_nothing_whatever_its_names(number):
    lesson = LESSONS[number]
    answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    assert repair_python.differences(lesson, answer) == []


def test_the_one_change_that_matters_is_found():
    """Another way to write the sum is right; the order of two operands is not."""
    lesson = LESSONS[5]
    text = exercise.region(lesson.exercise).text
    text = text.replace("l = l * rescale + p", "l = p + l * rescale").replace("m - m_ref", "m_ref - m")
    answer = exercise.answer_in_cell(lesson, text)
    assert len(repair_python.differences(lesson, answer)) > 1
    tried = []

    def is_right(other: Answer) -> bool:
        tried.append(other)
        return "math.exp(m - m_ref)" in other.text

    (change,) = repair_python.smallest(lesson, answer, is_right)
    assert answer.source(change.line) == "rescale = math.exp(m_ref - m)" and tried
    assert "`rescale = math.exp(m_ref - m)`" in repair.told(answer, [change], "it is right")


def test_nothing_is_claimed_where_no_experiment_succeeds():
    lesson = LESSONS[5]
    text = exercise.region(lesson.exercise).text.replace("m - m_ref", "m_ref - m")
    answer = exercise.answer_in_cell(lesson, text)
    assert repair_python.smallest(lesson, answer, lambda _: False) == ()


def test_names_of_the_answers_own_are_no_mistake():
    lesson = LESSONS[1]
    text = exercise.region(lesson.exercise).text
    for old, new in (("row_max", "biggest"), ("score ", "acc "), ("score\n", "acc\n"), ("score)", "acc)")):
        text = text.replace(old, new)
    answer = exercise.answer_in_cell(lesson, text)
    assert repair_python.differences(lesson, answer) == []


def test_a_line_is_quoted_whole_and_without_its_comment():
    answer = exercise.answer_in_cell(LESSONS[5], "half = tile // 2  # rounded down\n")
    missing = repair.Change("missing", answer.first, "assignment left out", "a statement", ((1, 1, "x = 0"),))
    assert "`half = tile // 2`:" in repair.told(answer, [missing], "it is right")


def test_an_object_is_not_called_the_function_that_is_taken_of_it():
    lesson = LESSONS[0]
    text = exercise.region(lesson.exercise).text.replace("p.sum()", "k.sum()")
    answer = exercise.answer_in_cell(lesson, text)
    (change,) = repair_python.differences(lesson, answer)
    assert (change.cause, change.shown) == ("value", "what `.sum` is taken of, `k`")


@pytest.mark.parametrize("number", [1, 13])
def test_what_the_region_begins_with_is_missing_before_its_first_line(number):
    lesson = LESSONS[number]
    first, _, text = exercise.region(lesson.exercise).text.partition("\n")
    answer = exercise.answer_in_cell(lesson, text)
    module = repair_cuda if is_cuda(lesson.exercise.file) else repair_python
    (change,) = module.differences(lesson, answer)
    said = repair.told(answer, [change], "it is right")
    assert said.startswith("Something is missing before line 1 of your answer, `for "), (first, said)
