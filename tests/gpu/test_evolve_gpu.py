"""A candidate is timed beside its parent and the stage; what is wrong there, or never ends, has no time."""

import pytest

from flashcore_numba.course.lessons import find
from flashcore_numba.evolve import clock, region

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
LESSON = find("12")
OWN = region.own(LESSON)
SUM = "            sum[r] += p0;\n"


def test_the_stage_itself_is_as_fast_as_the_stage():
    found = clock.clock(LESSON)(OWN + "    // the same\n", OWN)
    assert found["right"] and 0.9 < found["fitness"] <= 1.02 and 0.9 < found["of_parent"] <= 1.02


def test_a_wrong_sum_has_no_time():
    assert OWN.count(SUM) == 1
    found = clock.clock(LESSON)(OWN.replace(SUM, ""), OWN)
    assert not found["right"] and "wrong" in found["failed"]


def test_what_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(clock, "SECONDS", 45.0)
    endless = "    for (volatile int turn = 0; turn < 1; turn *= 2) {}\n"
    found = clock.clock(LESSON)(endless + OWN, OWN)
    assert not found["right"] and "does not end" in found["failed"]
