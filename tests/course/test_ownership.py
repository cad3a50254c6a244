"""The picture before the code: its data are the stage's own, and follow an edited constant."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
from matrix import few

from flashcore_numba.checks.mutation import Mutant, loaded
from flashcore_numba.core.problem import Problem
from flashcore_numba.course import lessons
from flashcore_numba.course.book.notebooks import lesson_files, root
from flashcore_numba.course.figures import canvas, division, fragments, ownership
from flashcore_numba.course.figures.division import Facts
from flashcore_numba.course.figures.recording import record
from flashcore_numba.course.session.session import Session
from flashcore_numba.predict import predict
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.stages import LADDER, edited
from flashcore_numba.stages.edited import Edit
from flashcore_numba.stages.find import find

NUMBA = [stage for stage in LADDER if stage.language == "Numba"]
of, facts = functools.cache(division.of), functools.cache(Facts)
WITH_TILES = [stage for stage in LADDER if 4 <= stage.number <= 14]
EVERY = [edited.original(0), *LADDER]
# Of an edited stage: what changes, and a number of the picture that must follow.
EDITED = {
    "rows of a block": (
        4,
        Edit("ROWS = 16 ", "ROWS = 8 "),
        lambda d: (d.rows, d.warps, d.row_tiles),
        (8, 8, 64),
    ),
    "keys in a dictionary": (
        6,
        Edit("64: (8, 64)", "64: (4, 32)"),
        lambda d: (d.rows, d.walk.tile, d.owners[0].per_lane),
        (16, 32, 4),
    ),
    "a constant of the .cu file": (
        10,
        Edit("ROWS = 48, KEYS = 64", "ROWS = 48, KEYS = 32", "stage10_pipeline.cu"),
        lambda d: (d.walk.tile, d.tiles, d.owners[0].sheets[0].shape),
        (32, 16, (48, 32)),
    ),
    "the launcher's table": (
        12,
        Edit('"small": (1, 2, 128, 1, False)}', '"small": (1, 4, 64, 1, False)}', "stage12_tiles"),
        lambda d: (d.rows, d.walk.tile, d.warps, d.owners[0].per_lane),
        (64, 64, 4, 32),
    ),
    "the split of a cluster": (
        16,
        Edit(
            "TWO_BLOCKS = {64: Split(2, 2, 128, 2)", "TWO_BLOCKS = {64: Split(1, 2, 128, 2)", "stage16_tiles"
        ),
        lambda d: (d.cluster, len(d.owners[1].sheets)),
        (1, 2),
    ),
}


def stored(stage, array, columns, width=None):
    """[rows, columns] Which thread of block 0 stored each element of an array; -1 for none."""
    threads = np.full((64, columns), -1)
    for event in record(stage).events:
        if event.op == "store" and event.array == array and width in (None, event.width):
            for part in range(event.width):
                threads.ravel()[event.element[event.active] + part] = event.thread[event.active]
    return threads


@pytest.mark.parametrize("stage", NUMBA, ids=lambda stage: stage.label)
def test_the_owner_of_an_output_is_the_thread_that_stores_it(stage):
    (owners,) = of(stage).owners[-1].sheets
    np.testing.assert_array_equal(stored(stage, "out", 64)[: len(owners)], owners)


@pytest.mark.parametrize(
    ("number", "array", "columns"),
    [(1, "scores", 64), (3, "scores", 64), (4, "scores", 64), (5, "p_smem", 32), (6, "k_smem", 68)],
)
def test_the_owner_of_a_weight_is_the_thread_that_stores_it(number, array, columns):
    (owners,) = of(find(number)).owners[0].sheets
    rows, keys = owners.shape
    np.testing.assert_array_equal(stored(find(number), array, columns, 1)[:rows, :keys], owners)


def in_the_kernel(stage, name, **values):
    """What a variable of the kernel is, at these numbers of the thread and its warp."""
    (text,) = re.findall(rf"\b{name} = ([^,;]+)[,;]", facts(stage).launch.kernel.text())
    constants = {key: value for key, value in facts(stage).n.items() if key not in values}
    return eval(text.replace("/", "//").replace("threadIdx.x", "thread"), constants | values)


@pytest.mark.parametrize(
    ("number", "matrix", "row", "column"),
    [
        (7, "S", "s_tile", "s_col"),
        (8, "S", "s_row", "s_col"),
        (8, "O", "o_row", "o_col"),
        (9, "S", "s_row", "s_col"),
        (9, "O", "o_row", "o_col"),
        (10, "S", "tile_row", "tile_col"),
        (10, "O", "tile_row", "tile_col"),
        (11, "S", "warp_row", "warp_col"),
        (11, "O", "warp_row", "warp_col"),
    ],
)
def test_the_warp_of_a_fragment_is_the_kernels(number, matrix, row, column):
    stage = find(number)
    (owners,) = (each for each in of(stage).owners if each.matrix == matrix)
    for warp in owners.warps:
        r, c = (in_the_kernel(stage, name, warp=warp) for name in (row, column))
        assert (owners.sheets[0][r : r + 16, c : c + 16] // 32 == warp).all()
    assert len(owners.warps) * 256 == owners.sheets[0].size


@pytest.mark.parametrize("number", [7, 8, 9, 10])
def test_the_lane_of_a_row_of_p_is_the_kernels(number):
    stage = find(number)
    (sheet,) = of(stage).owners[1].sheets
    for thread in range(32 * of(stage).warps):
        row, part = (in_the_kernel(stage, name, thread=thread) for name in ("row", "part"))
        assert (sheet[row, 4 * part : 4 * part + 4] == thread).all()


@pytest.mark.parametrize("number", few([12, 13, 14, 15, 16], 12))
def test_the_lane_of_a_result_is_the_probes(number):
    """Lesson 12's probe asks the instruction itself which lane holds which element of a 16 x 8 result."""
    _, _, held = fragments.held()
    for owners in of(find(number)).owners:
        for sheet in owners.sheets:
            for lane in range(32):
                assert {int(sheet[tuple(place)]) % 32 for place in held[lane]} == {lane}


@pytest.mark.parametrize("stage", few(WITH_TILES, find(5), find(12)), ids=lambda stage: stage.label)
def test_barriers_of_a_turn_are_those_of_the_formula(stage):
    """One turn more of keys costs every warp the barriers that are drawn from one turn to the next."""
    d = of(stage)
    turn = d.owners[0].sheets[0].shape[1]

    def barriers(keys):
        q, kv = (np.zeros((1, d.shape.heads, rows, 64), np.float16) for rows in (d.shape.seq, keys))
        return predict(stage, None, Problem(q, kv, kv), sm_count=EXAMPLE_SM_COUNT).barriers

    more = (barriers(d.shape.seq + turn) - barriers(d.shape.seq)) / (math.prod(d.grid) * d.warps)
    starts = sorted({op.start for op in d.walk.ops if op.text.startswith("S ")})
    begin, end = (
        start + 2 * division.CLOSE for start in starts[:2]
    )  # what is at the head of a turn included
    assert sum(begin < x <= end for x in d.walk.barriers) * len(d.walk.passes) == more > 0


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.label)
def test_places_account_for_the_shared_memory_of_a_block(stage):
    d = of(stage)
    named = sum(place.bytes for place in d.places if place.memory == division.SHARED and not place.over)
    assert 0 <= d.shared_bytes - named < 512, "what is not named are mbarriers"
    assert (stage.number < 4) == (d.shared_bytes == 0)


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.label)
def test_every_element_of_a_matrix_has_an_owner_in_the_block(stage):
    d = of(stage)
    for owners in d.owners:
        for sheet in owners.sheets:
            assert sheet.shape[0] == d.rows and sheet.min() >= 0
            assert sheet.max() < 32 * d.warps * d.cluster
        lanes = np.unique(np.concatenate([sheet.ravel() for sheet in owners.sheets]), return_counts=True)[1]
        assert len(set(lanes)) == 1, f"{owners.matrix}: some lanes have more than others"


@pytest.mark.long
@pytest.mark.parametrize("what", EDITED)
def test_an_edited_constant_changes_the_picture(what):
    number, edit, data, wanted = EDITED[what]
    with loaded(Mutant(number, "drawn", "", (edit,))) as stage:
        d, figure = division.of(stage), ownership.draw(None, stage, "stage")
    before = of(find(number))
    assert data(d) == wanted != data(before)
    (frame,), (old,) = figure.frames, ownership.draw(None, find(number), "stage").frames
    assert frame.png != old.png and frame.alt != old.alt


@pytest.mark.long
@pytest.mark.parametrize("stage", EVERY, ids=lambda stage: stage.label)
def test_the_picture_is_small_and_its_text_inside(stage):
    d = of(stage)
    figure = ownership.painted(d)
    data = canvas.png(figure)  # draws it, so that extents are known
    assert len(data) <= 60_000
    for text in figure.findobj(lambda artist: hasattr(artist, "get_text") and artist.get_text()):
        box = text.get_window_extent()
        across, up = (
            box.x0 >= 0 and box.x1 <= figure.bbox.width + 1,
            box.y0 >= 0 and box.y1 <= figure.bbox.height,
        )
        assert across and up, f"{text.get_text()!r} leaves the picture"


@pytest.mark.parametrize("stage", few(LADDER, find(5), find(15)), ids=lambda stage: stage.label)
def test_the_picture_in_words_has_its_numbers(stage):
    d, words = of(stage), ownership.in_words(of(stage))
    for place in d.places:
        assert (f"over {place.over}" if place.over else f"{place.bytes:,} bytes") in words
    assert f"owns {d.rows}" in words and f"{d.tiles} tiles of" in words
    assert all(op.text in words for op in d.walk.ops)


def test_a_stage_that_nobody_described_is_refused():
    with pytest.raises(ValueError, match=r"stage 99 scalar is not described; those that are: 0, 1, 2"):
        division.of(dataclasses.replace(find(1), number=99))


@pytest.mark.parametrize("lesson", lesson_files(root()), ids=lambda path: path.stem)
def test_a_lesson_shows_its_picture_before_its_code(lesson):
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```", lesson.read_text(), re.MULTILINE | re.DOTALL)
    shown = [n for n, cell in enumerate(cells) if cell.strip() == "course.picture()"]
    code = re.compile(r"%%write \d|.*course\.source\(\)", re.DOTALL)
    first = next(n for n, cell in enumerate(cells) if code.match(cell))
    assert len(shown) == 1 and shown[0] < first


@pytest.mark.long
def test_a_lesson_shows_the_stage_and_not_the_readers_kernel():
    """Before the reader has written anything, and after: no journal is asked."""
    course = Session(lessons.find(5), None)
    assert course.picture().alt.startswith("Who owns what: stage 05. 1x8x512x64: 32 work tiles x 8 heads")
