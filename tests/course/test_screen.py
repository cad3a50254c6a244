"""What is said about an answer before it runs."""

import re

import pytest

from flashcore_numba.course import exercise
from flashcore_numba.course.judge.screen import screen
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.files import is_cuda

RIGHT = {number: exercise.region(lesson.exercise).text for number, lesson in LESSONS.items()}


def look(number, text):
    answer = exercise.answer_in_cell(LESSONS[number], text)
    found = screen(LESSONS[number], answer)
    line = None if found is None or found.line is None else answer.number(found.line)
    return found, line


@pytest.mark.parametrize("number", LESSONS)
def test_a_solution_is_let_through(number):
    assert look(number, RIGHT[number])[0] is None
    file = LESSONS[number].exercise.file
    name = "mine.cu" if is_cuda(file) else "mine.py"
    whole = exercise.answer_in_file(LESSONS[number], exercise.source_text(file), name)
    assert screen(LESSONS[number], whole) is None


@pytest.mark.parametrize("text", ["", "...", "pass", "# a thought\n", "'nothing'\n...\n"])
def test_nothing_written_is_empty(text):
    assert look(5, text)[0].status == "empty"


WRONG = {
    "a bracket left open": ("m = max(m, 0\n", 1, "never closed"),
    "no colon": ("for part in range(PARTS)\n    o_rmem[part] = 0\n", 1, "':'"),
    "no indentation": ("for part in range(PARTS):\no_rmem[part] = 0\n", 2, "four spaces"),
    "a typing error": ("rescal = 1\np_smem[warp, lane] = rescale\n", 2, "`rescale`.*Did you mean `rescal`"),
    "a name of nowhere": ("p_smem[warp, lane] = zebra\n", 1, "`zebra` is not defined.*Given are"),
    "too early": ("l = l * rescale\nrescale = math.exp(m)\n", 1, "`rescale` is read before.*line 2 of your"),
    "changed before set": ("mine += score\n", 1, "`mine` is changed before"),
    "a list": ("for n in [16, 8]:\n    l += 1\n", 1, "a list.*tuple"),
    "a dict": ("x = {}\n", 1, "a dict"),
    "an f-string": ("x = f'{m}'\n", 1, "an f-string"),
    "try": ("try:\n    l += 1\nexcept ValueError:\n    pass\n", 1, "try"),
    "print": ("print(m)\n", 1, "print"),
    "a function": ("def f(x):\n    return x\nl = f(l)\n", 1, "a function inside a function"),
    "matrix product": ("l = l @ l\n", 1, "operator @"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_with_its_line(name):
    text, line, says = WRONG[name]
    found, at = look(5, text)
    assert (found.status, at) == ("refused", line)
    assert re.search(says, f"{found.what} {found.look}", re.DOTALL), found


@pytest.mark.parametrize("number, name", [(1, "row_sum"), (2, "o_rmem"), (3, "row_max"), (4, "row_max")])
def test_what_later_lines_need_has_to_be_set(number, name):
    text = re.sub(rf"\b{name}\b", f"{name}_", RIGHT[number])
    found, _ = look(number, text)
    assert found.status == "refused" and f"never sets `{name}`" in found.what


def test_a_file_may_not_change_its_launch():
    lesson = LESSONS[5]
    text = exercise.source_text(lesson.exercise.file).replace("(KEYS, ROWS), p.q", "(KEYS, 8), p.q")
    found = screen(lesson, exercise.answer_in_file(lesson, text, "mine.py"))
    assert found.status == "refused" and "`launch`" in found.what


def test_a_file_may_lose_its_markers():
    lesson = LESSONS[5]
    lines = exercise.source_text(lesson.exercise.file).splitlines()
    text = "\n".join(line for line in lines if "exercise>" not in line)
    assert screen(lesson, exercise.answer_in_file(lesson, text, "mine.py")) is None
    starter = "\n".join(line for line in exercise.starter(lesson).splitlines() if "exercise>" not in line)
    assert screen(lesson, exercise.answer_in_file(lesson, starter, "mine.py")).status == "empty"
