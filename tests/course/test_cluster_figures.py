"""The figures of lesson 16: its budget, and the messages that the executor counts between blocks."""

import re
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba.course.figures import budget, cluster
from flashcore_numba.course.judge import killing
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.edited import Edit, edited
from flashcore_numba.stages.find import find

LESSON = Path(__file__).resolve().parents[2] / "lessons" / "16_cluster_split.md"
WARPS = 8  # of a block of two warpgroups


def test_the_lesson_has_the_prediction_that_is_drawn():
    table = LESSON.read_text().partition("| part, in order of time |")[2].partition("| **sum**")[0]
    prices = re.findall(r"^\|[^|]+\| ([\d.]+)(?: to ([\d.]+))? \|", table, re.MULTILINE)
    assert [(float(a), float(b or a)) for a, b in prices] == [piece[1:3] for piece in budget.PREDICTED]


@pytest.mark.parametrize("run", [budget.AFTER, budget.EARLY])
@pytest.mark.parametrize("warpgroup", [0, 1])
def test_stamps_are_in_order_and_fill_a_period(run, warpgroup):
    times = [ns for *_, ns in run.ends(warpgroup)]
    assert all(a < b for a, b in pairwise([0.0, *times]))
    assert times[-1] == pytest.approx(run.period, abs=10)


def test_the_chain_adds_up():
    *lines, last = [[float(n) for n in re.findall(r"\d+\.\d\d", line)] for line in budget.chain()[1:]]
    least = [numbers[:1] + numbers[-2:] for numbers in lines]  # without the most of a range
    assert np.allclose(np.sum(least, axis=0), last, atol=0.05)


@pytest.mark.long
def test_each_block_sends_the_other_its_state_and_its_share():
    found = {(m.what, m.sender, m.receiver): m for m in cluster.sent(find(16))}
    pairs = ((0, 1), (1, 0))
    assert set(found) == {(what, *pair) for what in (cluster.STATE, cluster.SHARE) for pair in pairs}
    columns = 64 // 2 // 2  # that a warp keeps, of 16 rows in float32
    for pair in pairs:
        state, share = found[cluster.STATE, *pair], found[cluster.SHARE, *pair]
        assert (state.stores, state.bytes) == (WARPS * 8, WARPS * 8 * 16)
        assert (share.stores * 16, share.bytes) == (WARPS * 16 * columns * 4,) * 2


@pytest.mark.long
def test_the_arrows_are_those_of_the_kernel_at_hand():
    edit = Edit("share_full + box, rank ^ 1);", "share_full + box, 1);", cluster.KERNEL)
    with edited(16, edit) as stage:
        figure = cluster.draw(LESSONS[16], stage, "your kernel")
    assert "block 0 to block 1: O, 512 stores" in figure.frames[2].caption
    assert "block 1 to block 0: nothing" in figure.frames[2].caption
    assert "block 1 to block 1: O, 512 stores" in figure.frames[2].caption
    assert "your kernel" in figure.title and len({frame.png for frame in figure.frames}) == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "old, new",
    [("i, OWN * 128", "i, OWN * 64"), ("ptx::mbarrier_wait_cluster(share_full + box, 0);", "")],
)
def test_the_executor_reports_a_share_that_nobody_waits_for(old, new):
    assert cluster.reports(old, new)[0].startswith("missing wait: `share_smem`")


@pytest.mark.long
def test_a_mean_is_no_maximum(rng, monkeypatch):
    """The wrong kernel to kill: right where one part has all keys or references are close."""
    lesson, given = LESSONS[16], LESSONS[16].given[0]
    with edited(16, *given.edits) as wrong:
        compiled = {(16, *given.edits): wrong}  # once, for three inputs
        monkeypatch.setattr(killing, "edited", lambda *asked: nullcontext(compiled[asked]))
        for keys, far, dies in ((256, True, True), (128, True, False), (256, False, False)):
            q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (128, keys, keys))
            if far:
                k[:, :, :-128] = 0
                k[:, :, -128:] = 30 * q
            assert killing.kill(lesson, given, q, k, v).killed == dies, (keys, far)
