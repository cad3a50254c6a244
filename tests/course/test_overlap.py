"""Lesson 15's model of chains in time, its stamps and counters, and the wrong kernel to kill."""

import itertools

import numpy as np
import pytest

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import overlap
from flashcore_numba.course.judge.killing import kill
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.find import find


def test_the_model_has_the_numbers_of_the_stage():
    evidence = Evidence()
    keys, rows = evidence.constant(15, "BLOCK_N"), evidence.constant(15, "ROWS")
    assert 4 * rows * keys * 64 / 4096 == overlap.PRODUCTS
    assert rows * keys / 16 == overlap.EXPONENTIALS


@pytest.mark.parametrize("chains", [1, 2, 3, 4, 5, 6, 7, 9])
def test_turns_fill_the_tensor_cores_as_far_as_chains_go(rng, chains):
    """min(1, n T / L), whenever they begin; six share the exponentials for 26 clocks of a round."""
    starts = rng.uniform(0, 2000, chains)
    share = overlap.busy(overlap.spans(starts, tiles=60))
    length = overlap.PRODUCTS + overlap.SOFTMAX
    assert share == pytest.approx(min(1, chains * overlap.PRODUCTS / length), rel=0.005)


def test_sharing_keeps_step_and_turns_leave_it():
    length = overlap.PRODUCTS + overlap.SOFTMAX
    evenly = np.arange(4) * length / 4
    shared = [overlap.busy(overlap.spans(starts, turns=False, tiles=20)) for starts in ((0, 0, 0, 0), evenly)]
    assert shared[0] == pytest.approx(4 * overlap.PRODUCTS / (4 * overlap.PRODUCTS + overlap.SOFTMAX))
    assert shared[1] == pytest.approx(4 * overlap.PRODUCTS / length)


def test_units_are_never_used_twice(rng):
    found = overlap.spans(rng.uniform(0, 500, 4), softmax=300, exponentials=256, tiles=8)
    products = sorted((span.start, span.stop) for span in found if span.what == "products")
    assert all(stop <= start + 1e-6 for (_, stop), (start, _) in itertools.pairwise(products))
    assert all(stop - start == pytest.approx(overlap.PRODUCTS) for start, stop in products)
    weighed = sum(span.what == "softmax" for span in found)
    assert max(span.stop for span in found) >= overlap.EXPONENTIALS * weighed


@pytest.mark.long
def test_every_frame_is_told_and_the_turns_are_counted():
    figure = overlap.draw(LESSONS[15], find(15), "stage 15")
    assert len({frame.png for frame in figure.frames}) == len(figure.frames)
    assert "64 waits for a turn, 68 turns handed on, 64 of them while" in figure.frames[3].caption
    assert f"{sum(overlap.STAMPS.values()):,} clocks" in figure.frames[-1].alt


@pytest.mark.parametrize("shape, blocks, idle", [("1x1x256x64", 1, 0), ("1x1x256x128", 2, 2)])
def test_turns_are_handed_on_under_products_but_by_those_who_have_none(shape, blocks, idle):
    """A block's first turn, and those of warpgroups without rows: four warps each, four tiles."""
    evidence = Evidence()
    handed_on = evidence.barriers(15, "bar_arrive", shape)
    assert handed_on - evidence.count(15, "arrive_under_way", shape) / 32 == 4 * blocks + 4 * 4 * idle


@pytest.mark.long
@pytest.mark.parametrize("factor, dies", [(1, False), (30, True)])
def test_a_reference_kept_for_good(rng, factor, dies):
    """The wrong kernel to kill: right as long as no earlier key outgrows the last tile's."""
    q, k, v = (rng.standard_normal((1, 1, 128, 64)).astype(np.float16) for _ in range(3))
    k[..., :64, :] *= factor
    assert kill(LESSONS[15], LESSONS[15].given[0], q, k, v).killed == dies
