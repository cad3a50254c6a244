"""The figures of lessons 12 and 13: the map of lanes, the swizzle, and the model of schedules."""

import numpy as np
import pytest

from flashcore_numba.core.shapes import parse
from flashcore_numba.course.figures import fragments, parts, schedules, swizzle
from flashcore_numba.stages.find import find


def test_the_probe_finds_the_map_of_the_isa():
    a, b, d = fragments.held()
    g, t = np.divmod(np.arange(32), 4)
    rows = np.stack([g, g, g + 8, g + 8], axis=1)
    columns = np.stack([2 * t, 2 * t + 1] * 2, axis=1)
    assert (d == np.stack([rows, columns], axis=-1)).all()
    assert (a[:, :4] == d).all()
    assert (a[:, 4:] == d + np.array([0, 8])).all()
    assert (
        b == np.stack([np.stack([2 * t, 2 * t + 1, 2 * t + 8, 2 * t + 9], 1), np.stack([g] * 4, 1)], -1)
    ).all()


@pytest.mark.long
def test_fragments_say_that_the_lanes_agree():
    figure = fragments.draw(None, find(12), "stage 12")
    assert "same lane" in figure.frames[0].alt and "lane 9" in figure.frames[1].alt


@pytest.mark.long
def test_the_swizzle_takes_every_conflict_away():
    rows = swizzle.wavefronts(find(12))
    quotients = sorted(before / after for _, before, after in rows)
    assert quotients[0] == 1 and quotients[-1] == 8
    figure = swizzle.draw(None, find(12), "stage 12")
    assert all(figure.frames[-1].alt.count(f"{name}:") == 1 for name in swizzle.NAMES.values())
    assert [frame.alt.split()[-2] for frame in figure.frames[:2]] == ["8", "1"]


@pytest.mark.parametrize("order", schedules.ORDERS)
def test_every_block_runs_once_and_no_place_has_two(order):
    steps = schedules.work(parse("1x3x1024x64"), order)
    place, start = schedules.ends(steps, 5, order)
    for p in range(5):
        mine = np.flatnonzero(place == p)
        assert (start[mine][1:] >= (start + steps)[mine][:-1]).all()
    assert len(place) == len(steps) and steps.sum() == 3 * 2 * sum(range(1, 9))
    assert (start + steps).max() >= steps.sum() / 5


def test_longest_first_ends_first():
    shape = parse("4x32x4096x64")
    stop = {}
    for order in schedules.ORDERS:
        steps = schedules.work(shape, order)
        stop[order] = (schedules.ends(steps, 264, order)[1] + steps).max()
    assert min(stop, key=stop.get) == "longest first"
    assert stop["longest first"] < 1.01 * steps.sum() / 264


@pytest.mark.long
def test_parts_name_who_works():
    figure = parts.draw(None, find(13), "stage 13")
    assert "2 of the 4 schedulers" in figure.frames[0].alt
    assert "4 of the 4 schedulers" in figure.frames[1].alt
