"""Nsight Compute on a real GPU: the three columns at a shape that nobody recorded. Needs ncu."""

import pytest

from flashcore_numba import cli
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence import nsight, profile, reconcile
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run

pytestmark = [pytest.mark.gpu, pytest.mark.alone]  # the counters are the GPU's, not a process's
CHOSEN = [
    Run(find(stage), variant)
    for stage, variant in (
        (3, None),
        (9, None),
        (12, "small"),
        (13, "two_splits"),
        (14, None),
        (15, "ping_pong"),
        (16, "cluster_split"),
        (16, "two_blocks"),
    )
]


def test_the_columns_agree_at_a_fresh_shape_or_the_reason_is_known(rng):
    assert nsight.why_not() is None
    shape = Shape(1, int(rng.integers(1, 4)), int(rng.integers(40, 180)), 64)
    extract = reconcile.measure(CHOSEN, shape, True)
    for run in CHOSEN:
        measured = profile.find(run, extract)
        assert measured["error"]["right"]
        for kernel in measured["kernels"]:
            assert [name for name, value in kernel.items() if value is None] == []
            assert kernel["stalls"], (run.label, shape, kernel)
    found = reconcile.blocks(CHOSEN, shape, True, extract)
    assert {block.run.label: block.unexplained for block in found if block.unexplained} == {}, shape


def test_a_report_is_kept(tmp_path, capsys):
    assert cli.main(["profile", "12", "--shape", "1x1x96x64", "--save", str(tmp_path)]) == 0
    assert (tmp_path / "12-mma_sync-1x1x96x64.ncu-rep").stat().st_size > 10_000
    said = capsys.readouterr().out
    assert "not measured" not in said and "stall 3" in said
