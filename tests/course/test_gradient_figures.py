"""The figures of lesson 17: who adds to which gradient, what the variants move, and what an order changes."""

import re

import numpy as np
import pytest

from flashcore_numba.course.evidence import COUNTED, Evidence
from flashcore_numba.course.figures import gradients
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages import edited

KEY = LESSONS[17].exercise.stage


@pytest.fixture
def stage():
    return edited.original(KEY)


def test_two_passes_share_the_gradients_and_one_adds_to_all_rows_of_dq(stage):
    first, second = gradients.passes(stage, gradients.BY_ROWS)
    (one,) = gradients.passes(stage, gradients.ADDING)
    assert first.by_rows and not second.by_rows and not one.by_rows
    assert set(first.written) == {"dQ"} and set(second.written) == {"dK", "dV"} and len(one.written) == 3
    assert first.products + second.products == 7 and one.products == 5
    alone = [*first.written.values(), *second.written.values(), one.written["dK"], one.written["dV"]]
    assert all(len(warps) == 1 for rows in alone for warps in rows.values())
    assert {len(warps) for warps in one.written["dQ"].values()} == {4} and len(one.written["dQ"]) == 64
    for each in (first, second.pairs.T, one.pairs.T):
        pairs = getattr(each, "pairs", each)
        assert [set(row) for row in pairs[:5]] == [{0}, {1}, {2}, {3}, {-1}]


def test_the_picture_in_words_has_its_numbers(stage):
    (frame,) = gradients.draw(LESSONS[17], stage, "stage").frames
    assert "Variant rows, 7 products" in frame.alt and "Variant atomics, 5 products" in frame.alt
    assert "P in float16, if it were kept 524,288" in frame.alt and len(frame.png) <= 60_000


@pytest.mark.long
@pytest.mark.parametrize("variant", ["rows", "atomics", "tiles"])
def test_traffic_is_what_is_counted(stage, variant):
    (frame,) = gradients.draw_traffic(LESSONS[17], stage, "stage").frames
    (said,) = re.findall(rf"{variant}: ([^.]*)\.", frame.alt)
    total = sum(int(size.replace(",", "")) for size in re.findall(r"([\d,]+) bytes", said))
    assert total == Evidence().count(KEY, "global_bytes", COUNTED, variant)


@pytest.mark.long
def test_only_atomics_depend_on_the_order(stage):
    inputs = gradients.shifted_keys()
    assert not gradients.differences(stage, gradients.BY_ROWS, inputs).any()
    steps = gradients.differences(stage, gradients.ADDING, inputs)
    assert 0 < (steps != 0).sum() < steps.size / 4 and np.abs(steps).max() <= 8
