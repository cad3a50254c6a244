"""The times of a lesson on a real GPU: an answer is set beside the run that it is."""

import pytest

from flashcore_numba.course.judge.answer_times import YOURS, own_labels, time_answer
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages import edited

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("number", [12, 13, 17])
def test_the_stage_as_an_answer_takes_as_long_as_the_row_beside_it(number):
    stage = edited.original(LESSONS[number].exercise.stage)
    rows = time_answer(LESSONS[number], stage)["rows"]
    us = {row["label"]: row["us"] for row in rows}
    default, written = own_labels(LESSONS[number])
    assert all(row["right"] for row in rows)
    assert us[YOURS] == pytest.approx(us[written], rel=0.1)
    assert us[written] > 1.15 * us[default]  # it is not what fits the mission shape
