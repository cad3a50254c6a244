"""Bars by source line: the whole statement beside a bar, and never a bar alone."""

from types import SimpleNamespace

import pytest

from flashcore_numba.course.figures import cuda
from flashcore_numba.stages.find import find


def test_a_label_folds_and_keeps_the_whole_statement():
    text = "ptx::stmatrix_x4(panel_smem + d / 4 * ROWS * 64 + lane_row * 64 + (chunk ^ lane_row % 8) * 8);"
    folded = cuda._folded(cuda.Bar("warpgroup_rows.cuh:170", text, 128))
    assert folded.split() == [*text.split(), "warpgroup_rows.cuh:170"]
    assert folded.count("\n") == 1


@pytest.mark.long
def test_a_kernel_with_one_line_is_drawn_beside_the_stage_before():
    lesson = SimpleNamespace(
        number=14, exercise=SimpleNamespace(stage=14, variant=None, file="stage14_tma_wgmma.cu")
    )
    (frame,) = cuda.draw_wavefronts(lesson, find(14), "your kernel").frames
    before = sum(bar.value for bar in cuda._bars(find(13), None, ("load", "store", "atomic")))
    assert f"stage 13, all its lines together {before:,}; warpgroup_rows.cuh" in frame.alt
