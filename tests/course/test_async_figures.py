"""The figures of lessons 09 to 11: rows and banks, the timetable of a ring, and roles between barriers."""

from itertools import pairwise

import pytest

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures import cuda, in_flight, steps, strides
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.find import find

LINES = {  # array -> one line of stage 09 that moves a fragment of it
    "Q": ("load_matrix_sync(q_rmem[i]", "load"),
    "K and V": ("load_matrix_sync(k_transposed", "load"),
    "S": ("store_matrix_sync(s_smem", "store"),
    "P": ("load_matrix_sync(p, p_smem", "load"),
    "O": ("load_matrix_sync(o, o_smem", "load"),
}


@pytest.mark.parametrize("array", strides.ARRAYS)
def test_rows_need_the_wavefronts_that_are_counted(array):
    length, _, size, piece = strides.ARRAYS[array]
    evidence = Evidence()
    turns = strides.wavefronts_of(evidence.constant(9, length) * size, piece)
    least = -(-8 * piece // 128)
    assert (max(turns) + 1) / least == evidence.degree(9, *LINES[array])


@pytest.mark.long
def test_every_array_has_a_frame():
    figure = strides.draw(LESSONS[9], find(9), "stage 09")
    assert [frame.alt.split(",")[0] for frame in figure.frames] == list(strides.ARRAYS)


@pytest.mark.parametrize("turn, latency", [(1.0, 0.2), (1.0, 1.5), (1.0, 2.5), (0.3, 2.0)])
def test_the_timetable_is_the_formula_of_lesson_10(turn, latency):
    for stages in range(1, in_flight.DEEPEST + 1):
        rows = in_flight.timetable(stages, turn, latency)
        for asked, arrived, start, end in rows:
            assert asked + latency == arrived <= start and end == pytest.approx(start + turn)
        for (_, _, _, before), (_, _, after, _) in pairwise(rows):
            assert after >= before  # one turn at a time
        for tile in range(stages, len(rows)):  # a buffer is copied to when its last tile has been multiplied
            assert rows[tile][0] >= rows[tile - stages][3] - 1e-9
        round_of_the_ring = rows[-1][3] - rows[-1 - stages][3]
        assert round_of_the_ring / stages == pytest.approx(max(turn, (turn + latency) / stages))


def test_no_two_roles_meet_in_one_step():
    columns = steps.together()
    written = [{part for part in column.get("multiply", []) if part[0] == "S"} for column in columns]
    for n, column in enumerate(columns):
        softmax = {tile for _, tile in column.get("softmax", [])}
        assert not softmax & {tile for _, tile in written[n]}
        assert not softmax & {tile for what, tile in column.get("multiply", []) if what == "P V"}
    order = [("multiply", "S"), ("softmax", "P"), ("multiply", "P V")]
    for tile in range(steps.TILES):
        at = [
            next(n for n, column in enumerate(columns) if (what, tile) in column.get(role, []))
            for role, what in order
        ]
        assert at == [tile + 1, tile + 2, tile + 3]


@pytest.mark.long
def test_barriers_are_those_counted():
    stage = find(11)
    assert steps.passed(stage, "0") == 4 * steps.TILES + 1 == len(steps.taking_turns()) + 1
    assert steps.passed(stage, None) == steps.TILES + 4 == len(steps.together()) + 1


@pytest.mark.long
@pytest.mark.parametrize("variant, groups", [("1", 5), ("2", 1), ("3", 1), ("4", 1)])
def test_groups_of_copies_that_nothing_hides(variant, groups):
    """Stage 10 waits at once for Q, and with one stage for each of its four tiles too."""
    blocks, threads = 6, 384
    counted = Evidence().count(10, "wait_at_once", "1x1x256x64", variant)
    assert counted == groups * blocks * threads


@pytest.mark.long
def test_parts_too_narrow_for_a_name_are_named_below_the_map():
    (frame,) = cuda.draw_memory(LESSONS[9], find(9), "stage 09").frames
    assert frame.caption == "49,536 bytes per block. Too narrow for a name: m 192, l 192."
