"""The figures of lessons 20 and 21: who owns which keys, which slots are read, when the last SM is
done.
"""

import re

import numpy as np
import pytest

from flashcore_numba.branches.find import find
from flashcore_numba.course import exercise
from flashcore_numba.course.figures import keys, pages
from flashcore_numba.course.judge import grade
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.edited import Edit, edited


@pytest.fixture
def chunks():
    return find("decode/chunks")


def test_every_way_to_merge_has_all_parts_before_it_merges():
    for way in keys.ways():
        parts = [stop for _, _, stop, what in way.spans if what == "part"]
        merges = [start for _, start, _, what in way.spans if what == "merge"]
        assert len(parts) == len(keys.WORK) and min(merges) >= max(parts), way.name
    two, one, cluster = keys.ways()
    assert cluster.end < one.end < two.end
    assert not any(what == "waits" for *_, what in one.spans)


@pytest.mark.long
def test_the_frames_of_lesson_20_say_what_they_show(chunks):
    owners, filled = keys.draw(None, chunks, "x").frames
    assert "tile 5 warp 1" in owners.alt and "8 of 132 SMs" in filled.alt and "128 of 132 SMs" in filled.alt
    assert "Block 3 comes last" in keys.draw_arrivals(None, chunks, "x").frames[1].alt


@pytest.mark.long
def test_the_table_names_the_pages_that_hold_the_keys(chunks):
    x, (frame,) = pages.example(), pages.draw(None, chunks, "x").frames
    held = pages.holders(x)
    assert [int((held == n).sum()) for n in range(len(pages.LENGTHS))] == list(pages.LENGTHS)
    assert not np.isfinite(x.k_pool[held < 0].astype(float)).all()
    for row, length in enumerate(pages.LENGTHS):
        named = ", ".join(map(str, x.block_table[row, : -(-length // x.page)]))
        assert f"request {row}, {length} keys: pages {named}" in frame.alt


def test_the_stage_reads_every_key_and_nothing_else(chunks):
    x = pages.example()
    for array in ("k_pool", "v_pool"):
        assert (pages.touched(chunks, x, array) == (pages.holders(x) >= 0)).all()


@pytest.mark.long
def test_a_kernel_that_reads_whole_tiles_is_shown_to_read_garbage():
    edit = Edit("keys = min(LANES, end - first)", "keys = LANES", "decode_chunks_attend")
    with edited("decode/chunks", edit) as wrong:
        frames = pages.draw_read(None, wrong, "x").frames
    found = [int(re.search(r"and (\d+) of \d+ slots that hold no key", frame.alt)[1]) for frame in frames]
    assert all(count > 0 for count in found)


@pytest.mark.parametrize("lengths", [pages.RAGGED, (1,), (16, 17), (100, 100, 100)])
def test_no_tile_is_lost_where_requests_are_divided(lengths):
    tiles = sum(-(-n // 16) for n in lengths)
    for way in (pages.whole, pages.in_turn, pages.in_stretches):
        done = way(lengths)
        assert len(done) == pages.SMS and sum(n for some in done for _, n in some) == tiles
    rounded = sum(n for some in pages.in_clusters(lengths) for _, n in some)
    assert tiles <= rounded < tiles + pages.CLUSTER * len(lengths)


def test_parts_by_length_are_done_first_where_one_request_is_long():
    ways = (pages.in_stretches, pages.in_turn, pages.in_clusters, pages.whole)
    ends = [pages.end(way(pages.RAGGED)) for way in ways]
    assert ends == sorted(ends) and ends[-1] == max(pages.RAGGED) // 16
    even = sum(-(-keys // 16) for keys in pages.RAGGED) / pages.SMS
    assert ends[0] < 1.1 * even


@pytest.mark.long
def test_a_counter_that_is_left_over_is_said_to_be():
    """It is found after the launch, by no line that the executor saw."""
    lesson = LESSONS[20]
    text = exercise.region(lesson.exercise).text.replace("(arrived, count - 1)", "(arrived, count)")
    result = grade.check(lesson, exercise.answer_in_cell(lesson, text))
    assert result.kind == "counter" and "the next one must find the 0" in result.message
    assert "second argument of `arrive_wrapping`" in result.message
