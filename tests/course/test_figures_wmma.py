"""The figures of lessons 07 and 08: two languages side by side, and who holds what of a fragment."""

from pathlib import Path

import numpy as np
import pytest

from flashcore_numba.course import exercise, figures, lessons
from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import round_trip, twin, wmma
from flashcore_numba.stages import edited
from flashcore_numba.stages.find import find

ROOT = Path(__file__).resolve().parents[2]


def with_answer(number, *edits):
    """The lesson's stage with edits in its region."""
    lesson = lessons.find(number)
    text = exercise.region(lesson.exercise).text
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return lesson, edited.load(number, {lesson.exercise.file: exercise.answer_in_cell(lesson, text).text})


@pytest.mark.long
def test_twins_ask_for_the_same_and_the_figure_shows_the_readers_lines():
    lesson, stage = with_answer(7)
    first, second = figures.draw(lesson, "twin", stage, "your kernel").frames
    assert all(name in first.alt for name in ("m_new", "m_ref", "rescale = math.exp", "rescale = ptx::ex2"))
    assert "the same requests" in second.caption and second.caption.count("40 requests, 144 wavefronts") == 2


@pytest.mark.long
def test_a_kernel_that_loads_twice_is_no_twin():
    load = "tile::load8(v, v_smem + (key + i) * LD);"
    lesson, stage = with_answer(7, (load, load + " " + load))
    caption = figures.draw(lesson, "twin", stage, "your kernel").frames[1].caption
    assert "not the same requests" in caption and "72 requests, 272 wavefronts" in caption


@pytest.mark.long
def test_the_solution_is_not_shown_before_it_is_written():
    drawn = figures.draw(lessons.find(7), "twin", find(7), "stage 07")
    assert "reinterpret_cast" not in str(drawn) and "load8(v, " not in str(drawn)


def test_the_notebook_has_the_figures_twin():
    cell = (ROOT / "lessons" / "07_wmma_qk.md").read_text()
    missing = [line for line in twin.source_of(twin.twin) if line.strip() not in cell]
    assert not missing


def test_lanes_in_pairs_halve_the_wavefronts_of_v():
    lane = np.arange(32)
    assert twin.counted(lane // 8, lane % 8) == {"p_smem": (8, 16), "v_smem": (32, 128)}
    assert twin.counted(lane // 16 * 2 + lane % 2, lane % 16 // 2) == {"p_smem": (8, 16), "v_smem": (32, 64)}


@pytest.mark.parametrize("run", wmma.RUNS)
def test_every_lane_holds_eight_elements_of_an_accumulator(run):
    assert np.bincount(wmma.lane_of(run).ravel(), minlength=32).tolist() == [8] * 32


@pytest.mark.long
def test_runs_differ_and_the_words_say_what_is_drawn():
    one, two = (wmma.lane_of(run) for run in wmma.RUNS)
    assert (one != two).any()
    frames = figures.draw(lessons.find(8), "wmma", find(8), "stage 08").frames
    for held, frame in zip((one, two), frames, strict=True):
        assert f"row 3 is held by {len(set(held[3].tolist()))} lanes" in frame.caption


def test_the_round_trip_adds_up_to_the_counters():
    stage = find(8)
    every = [leg for group in round_trip.legs(stage) for leg in group]
    assert sum(leg.wavefronts for leg in every if leg.trip) == 416
    # Once a block: tiles come in (Q too), O is cleared and goes out; the rest is the 608 of a tile.
    evidence = Evidence()
    once = evidence.wavefronts(8, "tile_smem + row * LD") + evidence.wavefronts(8, "make_float4(0, 0, 0, 0)")
    once += evidence.wavefronts(8, "float4 a =") + evidence.wavefronts(8, "float4 b =")
    assert 16 * sum(leg.wavefronts for leg in every) + once == evidence.count(8, "shared_wavefronts")


@pytest.mark.long
def test_a_trip_for_each_product_shows():
    load = "wmma::load_matrix_sync(o, o_smem, O_LD, wmma::mem_row_major);"
    lesson, stage = with_answer(8, (load, load + " " + load))
    caption = figures.draw(lesson, "round_trip", stage, "your kernel").frames[0].caption
    assert caption.startswith("672 wavefronts a tile of a block, 480 of them")
