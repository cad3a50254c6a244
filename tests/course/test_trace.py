"""What a region did: the line that set a value is the one that ran, not the last one of the text."""

import pytest

from flashcore_numba.checks.cases import normal
from flashcore_numba.course import exercise
from flashcore_numba.course.judge import divergence, grade, trace
from flashcore_numba.course.lessons import LESSONS

GUARDED = """\
m_new = max(m, warp_max(score))
if m == float32(-math.inf):
    factor = float32(0)
    p = float32(0)
else:
    factor = math.exp(m - m_new)
    p = math.exp(score - m_new)
p_smem[warp, lane] = p
l = l * factor + p
for part in range(PARTS):
    o_rmem[part] *= factor
m = m_new
cuda.syncwarp()
"""


def test_a_branch_that_did_not_run_set_nothing(rng):
    lesson = LESSONS[5]
    answer = exercise.answer_in_cell(lesson, GUARDED)
    found = divergence.find(lesson, answer, normal(rng, 1, 1, 32, 64, 64))
    assert found.expression == "p_smem[warp, lane]"
    assert [(name, answer.source(line)) for name, line in found.setters] == [
        ("p_smem", "p_smem[warp, lane] = p"),
        ("p", "p = float32(0)"),
    ]
    assert answer.source(found.line) == "p = float32(0)"


def test_statements_of_inner_loops_are_not_noted_and_nothing_is_said_of_them():
    lesson = LESSONS[1]
    answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    noted = {answer.source(line) for line in trace.kept(answer)}
    assert "score *= scale" in noted and "row_max = float32(-math.inf)" in noted
    assert not any(text.startswith("score += ") for text in noted)


def test_a_trail_has_what_ran_in_order(rng):
    lesson = LESSONS[5]
    answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    visits = trace.of_kernel(
        lesson, answer, ["m", "l"], ["score"], ["row", "lane"], normal(rng, 1, 1, 16, 64, 64)
    )
    assert [visit.number for visit in visits] == [0, 1]
    lines = [answer.source(event.line).partition(" =")[0] for event in visits[0].trail]
    assert lines[:7] == ["m_new", "m_ref", "rescale", "p", "l", "m", "p_smem[warp, lane]"]
    before, after = visits
    assert (before.state.end["m"] == after.state.start["m"]).all()
    assert (before.trail[0].values["m_new"] == before.values[0]).all()


def test_a_plain_row_says_which_lines_ran(rng):
    lesson = LESSONS[0]
    answer = exercise.answer_in_cell(lesson, exercise.region(lesson.exercise).text)
    rows = trace.of_rows(lesson, answer, normal(rng, 1, 1, 3, 4, 64))
    assert len(rows) == 3
    held, lines = rows[0]
    assert answer.source(lines[-1]).startswith("out[row] =") and held["scores"].shape == (4, 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "line, cause",
    [
        ("l = (l + p) * rescale", "weight rescaled too"),
        ("score = l * rescale + p", "target"),  # l is 0 after the first tile, as in the other
        ("l = l + p", "l not rescaled"),
    ],
)
def test_a_variable_that_nothing_sets_shows_no_slip(line, cause):
    lesson = LESSONS[5]
    text = exercise.region(lesson.exercise).text.replace("l = l * rescale + p", line)
    result = grade.check(lesson, exercise.answer_in_cell(lesson, text))
    assert result.cause == cause, result


@pytest.mark.long
def test_a_report_is_reached_from_no_line_of_another_report():
    """Rows that become one are written by many threads, behind the region and in it: these are two races."""
    lesson = LESSONS[1]
    head, loop, rest = exercise.region(lesson.exercise).text.rpartition("for j in range(visible):")
    text = head + loop.replace(" j ", " row ") + rest
    result = grade.check(lesson, exercise.answer_in_cell(lesson, text))
    assert result.kind == "race" and "stage01_scalar.py:61" in result.what, result
    assert "line 7" not in result.where, result
