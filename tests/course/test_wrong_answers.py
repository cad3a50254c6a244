"""Every exercise: the starter is empty, the solution passes with margin, a wrong answer gets help."""

import re

import pytest
from matrix import few

from flashcore_numba.checks.forward import operation
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import exercise
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.judge import cuda_probe, grade, process
from flashcore_numba.course.lessons import EVERY, LESSONS
from flashcore_numba.course.spec import FunctionsExercise
from flashcore_numba.stages import edited
from flashcore_numba.stages.files import is_cuda

from . import kill_table, sample_mutations
from .wrong_answers import text_of

SMALLEST_MARGIN = 1.3
TIGHT = {22: 1.0}  # in 8 bits the RMSE of all outputs may be 1.25 times what quantising alone gives
FEWEST = 5
LEAST_OF_ALL = 80  # over the whole course
NAMED_SHARE = 0.8  # of all wrong answers; none is noticed only
WRONG = {key: kill_table.wrongs(key) for key in EVERY}
KEPT = kill_table.kept()
CUDA = [key for key, lesson in EVERY.items() if is_cuda(lesson.exercise.file)]
# The first of each lesson, at once of the warm-up and of some. `make kills` judges all of them, which takes
# longer than all other tests.
CASES = [
    pytest.param(
        *(key, wrongs[0]),
        id=kill_table.named(key, wrongs[0].name).replace(" ", "-"),
        marks=() if key in ("warm-up", 0, 5, 14) else pytest.mark.long,
    )
    for key, wrongs in WRONG.items()
]


@pytest.mark.parametrize("key, wrong", CASES)
def test_a_wrong_answer_is_told_what_is_wrong_and_where(key, wrong):
    lesson = EVERY[key]
    answer = exercise.answer_in_cell(lesson, text_of(wrong, lesson.exercise))
    result = grade.check(lesson, answer)
    assert not result.passed and result.status in ("failed", "refused"), result
    for pattern in wrong.says:
        assert re.search(pattern, result.message, re.DOTALL), f"{pattern!r} is not in:\n{result.message}"
    assert sample_mutations.unknown_names(answer, result) == [], result.message
    if wrong.line:
        assert result.line_text == wrong.line, result.message
        assert answer.lines[result.line - 1].strip() == wrong.line
    known = KEPT.get(kill_table.named(key, wrong.name))
    assert known, f"it is not in the kill table yet: make kills N={key}"
    assert kill_table.killer(result) == known["killer"], result
    assert kill_table.grade(wrong, result) == known["grade"], result


@pytest.mark.parametrize("key", EVERY)
def test_enough_wrong_answers(key):
    assert len({wrong.name for wrong in WRONG[key]}) >= FEWEST


def test_the_kill_table_is_published_whole():
    assert {name: kill["mistake"] for name, kill in KEPT.items()} == {
        kill_table.named(key, wrong.name): wrong.mistake for key, some in WRONG.items() for wrong in some
    }
    assert len(KEPT) >= LEAST_OF_ALL
    assert kill_table.graded(KEPT) in kill_table.INDEX.read_text()
    assert kill_table.TABLE.read_text() == kill_table.full_table(KEPT)
    assert list(kill_table.MISCONCEPTIONS) == list(EVERY)
    assert all(2 <= len({name for name, *_ in some}) <= 3 for some in kill_table.MISCONCEPTIONS.values())
    assert kill_table.misconceptions(KEPT) in kill_table.INSTRUCTOR.read_text()


def test_most_mistakes_are_named_and_every_one_is_placed():
    grades = [kill["grade"] for name, kill in KEPT.items() if name[:2].isdigit()]
    assert set(grades) <= {"named", "placed"}
    assert grades.count("named") >= NAMED_SHARE * len(grades)


@pytest.mark.parametrize("key", few(EVERY, 0, 7))
def test_the_solution_passes_with_margin(key):
    reply = process.run({"job": "check", "lesson": key})
    result = reply["result"]
    assert reply["status"] == "passed", result or reply
    of_functions = isinstance(EVERY[key].exercise, FunctionsExercise)  # which have a verdict and no error
    if EVERY[key].name or of_functions:  # a copy is exact
        assert result["margin"] is None
    else:
        assert result["margin"] >= TIGHT.get(key, SMALLEST_MARGIN)
    for gate in result["gates"]:
        assert gate["value"] == gate["right"], (
            f"{gate['what']}: the lesson does not say what the solution has"
        )
        assert gate["right"] <= gate["bar"]


@pytest.mark.parametrize("number", [number for number in LESSONS if number > 1])
def test_a_gate_quotes_the_stage_below(number):
    for gate in LESSONS[number].exercise.gates:
        stage = edited.original(LESSONS[number].exercise.stage)
        ladder = operation(stage).ladder()
        at = ladder.index(stage)
        if at == 0:  # the first of a branch
            assert gate.before is None
            continue
        below = Evidence().counted(ladder[at - 1].key, gate.shape)
        assert gate.value(below.launches) == gate.before, gate.what


@pytest.mark.parametrize("key", few(CUDA, *CUDA[::4]))
def test_what_is_wanted_of_a_kernel_has_a_value(key, rng):
    task = EVERY[key].exercise
    solution = exercise.answer_in_cell(EVERY[key], exercise.region(task).text)
    wanted = cuda_probe.usable(solution, task.wanted)
    assert wanted == list(task.wanted)
    if wanted:
        inputs = operation(edited.original(task.stage)).draw(parse("1x1x70x64"), False, rng)
        visits = cuda_probe.values(EVERY[key], solution, wanted, inputs)
        assert visits and all(len(values) == len(wanted) for _, _, values in visits)


@pytest.mark.long
@pytest.mark.parametrize("key", EVERY)
def test_the_starter_is_empty(key):
    lesson = EVERY[key]
    reply = process.run({"job": "check", "lesson": key, "answer": exercise.starter_cell(lesson)})
    assert reply["status"] == "empty"
    assert lesson.exercise.task.strip() in reply["result"]["message"]
    whole = grade.check(lesson, exercise.answer_in_file(lesson, exercise.starter(lesson), "mine"))
    assert whole.status == "empty" and whole.message == reply["result"]["message"]


@pytest.mark.parametrize("key", EVERY)
def test_a_region_has_5_to_25_lines(key):
    lines = [line for line in exercise.region(EVERY[key].exercise).text.splitlines() if line.strip()]
    assert 5 <= len(lines) <= 25


@pytest.mark.long
@pytest.mark.parametrize(
    "number, changes, says, no_longer",
    [
        (0, [("out[row]", "out[j]")], "A query row that sees no key", "It is 0 in every element"),
        (2, [("p = math.exp", "weight = math.exp")], "a name that nothing assigns: p", "have this name"),
        (2, [("math.exp(", "math.exp2(")], "They should be powers of e", "They are powers of e"),
        (6, [("row + 1, c", "row - 1, c")], "it starts at 0", "at the last rows"),
        (6, [("(col + COLS", "(fma4 + COLS")], "the CUDADispatcher fma4 as a value", "fma4: fma4"),
        (
            5,
            [("else float32(0)", "else 0"), ("l * rescale + p", "l * rescale - p")],
            "float32 combined with an integer",
            "float64 in a kernel; float32",
        ),
    ],
)
def test_sentences_that_were_false_of_a_mutation(number, changes, says, no_longer):
    """What sampled mutations of right answers were told, and how it reads now."""
    lesson = LESSONS[number]
    text = exercise.region(lesson.exercise).text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    result = grade.check(lesson, exercise.answer_in_cell(lesson, text))
    assert says in str(result) and no_longer not in str(result), str(result)
