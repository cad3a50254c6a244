"""The ledger of lesson 14: its model of an mbarrier, and what the executor says of a wrong entry."""

import numpy as np
import pytest

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import ledger
from flashcore_numba.course.judge.killing import kill
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.find import find


def test_the_model_has_the_sizes_of_the_stage():
    evidence = Evidence()
    assert evidence.constant(14, "STAGES") == ledger.STAGES
    assert evidence.part(14, "k_smem", "bytes") == ledger.STAGES * ledger.TILE_BYTES
    assert evidence.part(14, "q_smem", "bytes") == ledger.Q_BYTES


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_phase_ends_with_its_last_byte_and_a_wait_names_its_parity(rng, pieces):
    full = ledger.Mbarrier()
    for phase in range(5):
        cuts = sorted(int(n) for n in rng.integers(1, 1000, pieces - 1))
        full.arrive_expect(1000)
        for first, stop in zip([0, *cuts], [*cuts, 1000], strict=True):
            assert full.phase == phase and not full.passes(phase % 2) and full.passes(1 - phase % 2)
            full.deliver(stop - first)
        assert full.phase == phase + 1 and full.passes(phase % 2)


def test_a_second_arrival_is_refused():
    full = ledger.Mbarrier()
    full.arrive_expect(16)
    with pytest.raises(AssertionError, match="more arrivals"):
        full.arrive_expect(16)


@pytest.mark.long
def test_every_frame_is_told_and_the_last_one_counts():
    figure = ledger.draw(LESSONS[14], find(14), "stage 14")
    assert len({frame.png for frame in figure.frames}) >= len(figure.frames) - 1
    assert "72 arrivals announce 72 copies" in figure.frames[-1].caption
    assert "wait(k_full[0], 1) waits" in figure.frames[-2].alt


@pytest.mark.long
@pytest.mark.parametrize(
    "old, new, kind",
    [
        ("k_full + slot, TILE * 2", "k_full + slot, TILE", "deadlock"),
        ("k_full + slot, TILE * 2", "k_full + slot, TILE * 4", "deadlock"),
        ("ptx::fence_mbarrier_init();", "", "missing fence"),
    ],
)
def test_the_executor_reports_a_wrong_entry(old, new, kind):
    assert ledger.reports(old, new)[0].startswith(kind)


@pytest.mark.long
@pytest.mark.parametrize("keys, causal, dies", [(128, False, False), (70, True, False), (70, False, True)])
def test_zeros_weigh_something(rng, keys, causal, dies):
    """The wrong kernel to kill: right on whole tiles and on causal ones, wrong on others."""
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(np.float16) for n in (70, keys, keys))
    assert kill(LESSONS[14], LESSONS[14].given[0], q, k, v, causal).killed == dies
