"""The figures of the lessons: their numbers are the counters', and another kernel gives another picture."""

import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from matrix import few

from flashcore_numba.checks.mutation import Mutant, loaded
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import figures
from flashcore_numba.course.evidence import MISSION, Evidence
from flashcore_numba.course.figures import roofline, softmax
from flashcore_numba.course.figures.recording import record
from flashcore_numba.course.figures.tiles import KEYS
from flashcore_numba.simulator import SimulationError
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.edited import Edit
from flashcore_numba.stages.find import find

WITH_TILES = (4, 5, 6)
OF_NUMBA = ("sectors", "banks", "tiles", "timeline", "softmax", "roofline")
NUMBA = [stage for stage in LADDER if stage.language == "Numba"]


@functools.lru_cache(maxsize=64)
def draw(name, stage, whose="your kernel"):
    return figures.draw(SimpleNamespace(number=stage.number, figures={}), name, stage, whose)


def mutant(number, *edits):
    return loaded(Mutant(number, "drawn", "", tuple(edits)))


def number(pattern, text):
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in {text!r}"
    return int(found[1].replace(",", ""))


def test_unknown_figure_is_refused():
    with pytest.raises(ArgumentError, match=r"name: there is no figure 'sector'; accepted are ownership,"):
        draw("sector", find(1))


@pytest.mark.long
@pytest.mark.parametrize("name", OF_NUMBA)
def test_every_figure_is_small_and_says_whose(name, rng):
    """Of any stage: the notebooks have those that the lessons show."""
    figure = draw(name, NUMBA[rng.integers(len(NUMBA))])
    assert figure.title.endswith(": your kernel")
    assert len(figure.html()) <= 700_000
    assert max(len(frame.png) for frame in figure.frames) <= 60_000
    for frame in figure.frames:
        assert frame.png.startswith(b"\x89PNG") and len(frame.alt) > 30 and frame.caption
    assert len({frame.png for frame in figure.frames}) == len(figure.frames)


@pytest.mark.parametrize("stage", NUMBA, ids=lambda stage: stage.label)
def test_lines_of_a_recording_add_up_to_the_counters(stage):
    recording = record(stage)
    rows = [row for launch in recording.launches for row in launch.lines() if row.space]
    assert rows
    for space in ("global", "shared"):
        lines = recording.lines(space)
        for row in (row for row in rows if row.space == space):
            place = (row.file, row.line, row.text), row.op
            mine = [line for line in lines if (line.site[:3], line.op) == place]
            assert sum(line.requests for line in mine) == row.requests
            if space == "global":
                assert sum(int(line.sectors().sum()) for line in mine) == row.sectors
                assert sum(int(line.used().sum()) for line in mine) == row.bytes_needed
            else:
                took, ideal = (sum(int(line.wavefronts()[k].sum()) for line in mine) for k in (0, 1))
                assert (took, took - ideal) == (row.wavefronts, row.conflicts)


def named(lines):
    """By what a frame says of a line in words."""
    return {(line.site.line, line.site.text, line.array, line.op): line for line in lines}


def line_of(frame, lines):
    found = re.match(r"[\w. ]*line (\d+):  (.*?)\. One ", frame.alt)
    array, verb = (
        re.search(r"requests? to (\w+):", frame.alt)[1],
        re.search(r" (reads|writes) ", frame.caption),
    )
    return lines[int(found[1]), found[2], array, {"reads": "load", "writes": "store"}[verb[1]]]


@pytest.mark.long
@pytest.mark.parametrize("stage", NUMBA, ids=lambda stage: stage.label)
def test_sectors_in_words_are_those_counted(stage):
    lines = named(record(stage).lines("global"))
    frames = draw("sectors", stage).frames
    assert 1 < len(frames) == min(8, len(lines))
    for frame in frames:
        line = line_of(frame, lines)
        worst = int(line.sectors().max())
        assert number(r"in ([\d,]+) sectors? of 32", frame.alt) == worst
        assert number(r"so ([\d,]+) bytes move", frame.alt) == 32 * worst
        assert number(r": ([\d,]+) sectors, ", frame.caption) == line.sectors().sum()
        assert f"{line.requests:,} request" in frame.caption


@pytest.mark.long
def test_first_frame_shows_what_the_lesson_is_about():
    one, two = (draw("sectors", find(n)).frames[0].alt for n in (1, 2))
    assert number(r"in (\d+) sectors", one) == 32 and "6% of them are used" in one
    assert "to q:" in one and "to scores:" in two
    assert number(r"in (\d+) sectors", two) == 4 and "100% of them are used" in two


@pytest.mark.long
def test_a_wrong_kernel_gives_another_picture():
    old = draw("sectors", find(2))
    edits = [
        Edit("scores[b, h, j, row] = score", "scores[b, h, row, j] = score"),
        Edit("math.exp(scores[b, h, j, row]", "math.exp(scores[b, h, row, j]"),
    ]
    with mutant(2, *edits) as stage:
        new = draw("sectors", stage)
    assert number(r"in (\d+) sectors", new.frames[0].alt) == 32
    assert new.frames[0].png != old.frames[0].png


@pytest.mark.long
@pytest.mark.parametrize("number_", WITH_TILES)
def test_banks_in_words_are_those_counted(number_):
    stage = find(number_)
    lines = named(record(stage).lines("shared"))
    for frame in draw("banks", stage).frames:
        line = line_of(frame, lines)
        took, ideal = line.wavefronts()
        assert number(r"([\d,]+) wavefronts?, \d+ without", frame.alt) in took
        assert number(r": ([\d,]+) wavefronts, ", frame.caption) == took.sum()
        assert number(r"([\d,]+) of them conflicts", frame.caption) == (took - ideal).sum()


@pytest.mark.long
def test_unpadded_tiles_show_their_conflicts():
    with mutant(4, Edit("STRIDE = D // KEYS, D + PAD", "STRIDE = D // KEYS, D"),
                Edit("q_smem.shape[1] - PAD", "q_smem.shape[1]"),
                Edit("(tile.shape[1] - PAD) // 8", "tile.shape[1] // 8", "common")) as stage:  # fmt: skip
        frame = draw("banks", stage).frames[0]
    padded = draw("banks", find(4)).frames[0]
    assert number(r"(\d+) wavefronts, 4 without", frame.alt) == 32
    assert number(r"(\d+) wavefronts, 4 without", padded.alt) == 4
    assert number(r"([\d,]+) of them conflicts", padded.caption) == 0


def test_banks_of_a_kernel_without_shared_memory_say_so():
    (frame,) = draw("banks", find(1)).frames
    assert frame.alt == "Block 0 made no access to shared memory."


@pytest.mark.long
def test_what_the_simulator_reports_stands_below_the_picture():
    with mutant(1, Edit("scores[b, h, row, j] = score", "scores[b, h, row, j + 64] = score")) as stage:
        figure = draw("sectors", stage)
    assert "The simulator reports a problem at line" in figure.frames[0].caption
    assert "out of bounds" in figure.frames[0].caption


@pytest.mark.long
def test_drawing_leaves_the_readers_matplotlib_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw("sectors", find(3))
    assert dict(matplotlib.rcParams) == before
    assert np.geterr()["divide"] == "warn"


@pytest.mark.long
@pytest.mark.parametrize("stage", NUMBA, ids=lambda stage: stage.label)
def test_walk_ends_with_the_bytes_counted(stage):
    figure = draw("tiles", stage)
    recording = record(stage, KEYS.get(stage.number, 64))
    for array in "qkv":
        lines = [line for line in recording.lines("global") if line.array == array]
        moved = number(rf"{array.upper()} ([\d,]+) bytes", figure.frames[-1].alt)
        assert moved == 32 * sum(int(line.sectors().sum()) for line in lines) > 0


@pytest.mark.long
def test_walk_says_what_is_in_shared_memory():
    steps = [frame.alt for frame in draw("tiles", find(5)).frames]
    assert "fetches Q rows 0 to 15, K rows 0 to 31, V rows 0 to 31" in steps[0]
    assert "reads from shared memory Q rows 0 to 15, K rows 32 to 63, V rows 32 to 63" in steps[3]
    assert "In shared memory at its end: Q rows 0 to 15, K rows 64 to 95, V rows 64 to 95" in steps[-1]
    # In stage 06 P takes the first rows of the K tile.
    third = draw("tiles", find(6)).frames[2].alt
    assert "stores computed values in k_smem" in third and "Q rows 0 to 31, K rows 32 to 63, V" in third


@pytest.mark.long
def test_walk_of_a_wrong_kernel_is_its_own():
    edit = Edit("load_tile(v[b, h_kv], first_key, v_smem", "load_tile(v[b, h_kv], 0, v_smem")
    with mutant(5, edit) as stage:
        steps = [frame.alt for frame in draw("tiles", stage).frames]
    assert "K rows 32 to 63, V rows 0 to 31" in steps[3]


@pytest.mark.parametrize("stage", few(NUMBA, NUMBA[1]), ids=lambda stage: stage.label)
def test_timeline_counts_what_the_counters_count(stage):
    told = " ".join(frame.alt for frame in draw("timeline", stage).frames)
    launches = record(stage).launches
    totals = {
        key: sum(launch.totals()[key] for launch in launches)
        for key in launches[0].totals()
        if key != "footprint_bytes"
    }
    words = {"shuffles?": "shuffle", "syncwarps?": "syncwarp"}
    for space in ("global", "shared"):
        words[f"loads? from {space} memory"] = f"{space}_load_requests"
        words[f"stores? to {space} memory"] = f"{space}_store_requests"
    for word, key in words.items():
        assert sum(int(n.replace(",", "")) for n in re.findall(rf"([\d,]+) {word}", told)) == totals[key]
    assert told.count("then the barrier at line") == totals["barriers"] / record(stage).warps


@pytest.mark.long
def test_timeline_loses_a_phase_with_a_barrier():
    with mutant(
        5, Edit("cuda.syncthreads()  # Q and the tiles are whole", "pass  # Q and the tiles are whole")
    ) as stage:
        wrong = draw("timeline", stage)
    barriers = [
        "".join(f.alt for f in figure.frames).count("barrier at")
        for figure in (wrong, draw("timeline", find(5)))
    ]
    assert barriers == [2, 4]


def test_softmax_rows_are_those_of_the_running_kernel():
    rows = softmax.rows_of(find(5))
    assert [len(row.tiles) for row in rows] == [4, 4, 4]
    for row in rows:
        np.testing.assert_allclose(row.weights, row.right, atol=1e-5)
        seen = np.array([tile.scores for tile in row.tiles])
        np.testing.assert_array_equal([tile.m[1] for tile in row.tiles], np.maximum.accumulate(seen.max(1)))
        for tile, before in zip(row.tiles[1:], row.tiles, strict=False):
            assert tile.m[0] == before.m[1] and tile.l[0] == before.l[1]
            np.testing.assert_allclose(tile.rescale, np.exp(tile.m[0] - tile.m[1]), rtol=1e-5)
    assert rows[0].tiles[-1].m[1] > rows[0].tiles[0].m[1] + 3, "the running max must really move"
    assert np.isneginf(rows[2].tiles[2].scores).any() and np.isneginf(rows[2].tiles[3].scores).all()


@pytest.mark.long
def test_softmax_in_words_is_what_was_read():
    rows, frames = softmax.rows_of(find(5)), draw("softmax", find(5)).frames
    for at, frame in enumerate(frames[:-1]):
        for row in rows:
            tile = row.tiles[at]
            assert (
                f"O times {tile.rescale:.3g}, l from {tile.l[0]:.3g} to {tile.l[1]:.3g}" in frame.alt
                or at == 0
            )
            assert f"to {tile.m[1]:.3g}, O" in frame.alt
    assert frames[-1].alt.count("as in exact softmax") == 3
    assert ", ".join(f"{weight:.1%}" for weight in rows[1].weights) in frames[-1].alt


@pytest.mark.long
def test_softmax_shows_a_rescaling_that_is_missing():
    with mutant(5, Edit("o_rmem[part] *= rescale", "o_rmem[part] *= float32(1)")) as stage:
        wrong, frames = softmax.rows_of(stage), draw("softmax", stage).frames
    assert all(tile.rescale == 1 for tile in wrong[0].tiles)
    row = wrong[0]
    assert (row.weights[:-1] > row.right[:-1]).all() and row.weights[-1] == pytest.approx(
        row.right[-1], abs=1e-5
    )
    with mutant(5, Edit("l = l * rescale + p", "l = l + p")) as stage:
        row = softmax.rows_of(stage)[0]
    assert (row.weights > 0).all() and (row.weights < row.right).all(), "l is too large, and nothing else"
    assert "exact: " in frames[-1].alt


def test_softmax_of_a_kernel_without_running_max_says_so():
    (frame,) = draw("softmax", find(4)).frames
    assert "No loop of this kernel carries m and l" in frame.alt


@pytest.mark.parametrize(
    "stage", few([*NUMBA, find(12), find(15)], NUMBA[4], find(12)), ids=lambda stage: stage.label
)
def test_traffic_of_the_roofline_is_what_a_whole_count_gives(stage):
    counted = Evidence().count(stage.number, "global_bytes", "1x1x192x64")
    assert roofline.bytes_moved(stage, heads=1, seq=192) == counted


@pytest.mark.long
def test_roofline_in_words_is_computed_from_counts_and_the_recorded_run():
    evidence, (frame,) = Evidence(), draw("roofline", find(5)).frames
    flops = evidence.flops(MISSION)
    for stage in LADDER[:5]:
        name = "your kernel, at stage 05's time" if stage.number == 5 else f"stage {stage.number:02d}"
        per_byte, speed = flops / roofline.bytes_moved(stage), flops / evidence.us(stage.number) / 1e6
        assert f"{name}: {per_byte:.3g} FLOPs per byte, {speed:.3g} TFLOP/s" in frame.alt
    assert "stage 06" not in frame.alt
    assert f"SDPA cuDNN {flops / evidence.us('SDPA cuDNN') / 1e6:.3g}" in frame.alt
    assert "The time is the recorded one of 05 online_softmax" in frame.caption


@pytest.mark.long
def test_roofline_is_of_the_kernel_handed_in():
    line = "load_tile(v[b, h_kv], first_key, v_smem, thread, THREADS)"
    with mutant(5, Edit(line, f"{line}; {line}")) as stage:
        more = roofline.bytes_moved(stage) / roofline.bytes_moved(find(5))
    rows = 16  # a block; Q and O move once a block, K and V once a tile, lse is small
    assert more == pytest.approx((3 * 512 + 2 * rows) / (2 * 512 + 2 * rows), rel=0.01)
    past_the_end = Edit("scores[b, h, j, row] = score", "scores[b, h, row, j] = score")
    with mutant(2, past_the_end) as stage, pytest.raises(SimulationError, match="out of bounds"):
        draw("roofline", stage)


@pytest.mark.long
def test_roofline_takes_a_live_time():
    live = Evidence(live={"02 coalesced": 100.0})
    figure = roofline.draw(SimpleNamespace(number=2), find(2), "your kernel", live)
    speed = live.flops(MISSION) / 100.0 / 1e6
    assert f"{speed:.3g} TFLOP/s" in figure.frames[0].caption


def test_lesson_00_shows_the_problem_and_stage_01():
    (frame,) = figures.draw(SimpleNamespace(number=0, figures={}), "roofline", find(1), "stage 00").frames
    assert "stage 01: 0.1" in frame.alt and "stage 02" not in frame.alt and "256 FLOPs per byte" in frame.alt
