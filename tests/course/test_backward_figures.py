"""The figures of lessons 18 and 19, and the wrong kernels that their readers kill."""

from itertools import pairwise

import numpy as np
import pytest

from flashcore_numba.branches.find import find
from flashcore_numba.course.figures import late, transposed, turns
from flashcore_numba.course.judge.killing import kill
from flashcore_numba.course.lessons import LESSONS


@pytest.mark.parametrize("blocks, tiles", [(1, 1), (4, 4), (8, 8), (4, 12), (32, 32)])
@pytest.mark.parametrize("shifted", [False, True])
def test_no_two_blocks_add_to_a_tile_at_the_same_time(blocks, tiles, shifted):
    at = turns.times(blocks, tiles, shifted)
    assert (at >= 0).all()
    assert all(len(set(column)) == blocks for column in at.T)  # of a tile
    assert all(len(set(row)) == tiles for row in at)  # of a block
    assert turns.finished(blocks, tiles, shifted) == (tiles if shifted else tiles + blocks - 1)


def test_dq_one_tile_late_leaves_the_tensor_cores_less_time_to_rest():
    at_once, later = late.spans(False), late.spans(True)
    assert late.busy(at_once) < late.busy(later) <= 1 + 1e-9
    for found in (at_once, later):
        products = sorted((s.start, s.stop) for s in found if s.group == late.GROUPS)
        assert all(stop <= start for (_, stop), (start, _) in pairwise(products))
        assert sum(s.what == "dV" for s in found if s.group == late.GROUPS) == late.GROUPS * 8


@pytest.mark.long
def test_the_frames_say_what_they_show():
    figure = transposed.draw(None, find("backward/mma_sync"), "stage backward/mma_sync")
    assert "no number changes lanes" in figure.frames[0].alt
    assert "32 halves apart: 4 wavefronts" in figure.frames[1].alt
    assert "40 halves apart: 1 wavefront" in figure.frames[1].alt
    (frame,) = transposed.draw_owners(None, None, "x").frames
    assert "a warp that owns keys: P\u1d40 in registers and dV in registers" in frame.alt
    assert "31 units" in turns.draw(None, None, "x").frames[2].alt


def _killers(number, rng):
    if number == 18:  # every score low, and keys past the end
        return (
            np.full((1, 1, 64, 64), 4.0),
            np.full((1, 1, 70, 64), -1.0),
            rng.standard_normal((1, 1, 70, 64)),
        )
    return (rng.standard_normal((1, heads, 64, 64)) for heads in (2, 1, 1))  # heads that share their keys


@pytest.mark.long
@pytest.mark.parametrize("number", [18, 19])
def test_a_backward_kernel_dies_of_its_own_input_alone(number, rng):
    lesson = LESSONS[number]
    (given,) = lesson.given
    ordinary = (rng.standard_normal((1, 1, rows, 64)) for rows in (64, 70, 70))
    assert not kill(lesson, given, *ordinary).killed
    assert kill(lesson, given, *_killers(number, rng)).killed
