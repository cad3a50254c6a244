"""The smallest change that makes an answer right: what is compared, what is tried, what is said."""

import pytest

from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import repair, repair_cuda
from flashcore_numba.course.judge.pins import unpinned
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.stages.edited import Edit, applied
from flashcore_numba.stages.files import is_cuda

CUDA = [number for number, lesson in LESSONS.items() if is_cuda(lesson.exercise.file)]


def answer(number: int, *edits: tuple[str, str]) -> Answer:
    lesson = LESSONS[number]
    text = applied(
        exercise.region(lesson.exercise).text, [Edit(old, new) for old, new in edits], "the region"
    )
    return exercise.answer_in_cell(lesson, text)


def changes(number: int, *edits: tuple[str, str]) -> list[repair.Change]:
    return repair_cuda.differences(LESSONS[number], answer(number, *edits))


@pytest.mark.parametrize("number", CUDA)
def test_the_solution_differs_in_nothing(number):
    assert changes(number) == []


@pytest.mark.parametrize(
    "number, edit, line, cause, shown",
    [
        (7, ("p[i] * v[c]", "p[0] * v[c]"), 8, "index", "the index of `p`, `0`"),
        (7, ("o[c] += p", "o[c] = p"), 8, "operator", "the sign `=` behind `o[c]`"),
        (7, ("c < 8", "c < 4"), 8, "loop bound", "what ends the loop, `c < 4`"),
        (8, ("mma_sync(o, p, v, o)", "mma_sync(o, v, p, o)"), 9, "arguments", "`v, p`"),
        (8, ("row_major> v;", "col_major> v;"), 6, "template argument", "`wmma::col_major`"),
        (9, ("__syncthreads();          //", "__syncwarp();  //"), 5, "function", "`__syncwarp`"),
        (13, ("ptx::ex2(m_of(i) - m)", "ptx::ex2(m - m_of(i))"), 4, "argument", "`m - m_of(i)`"),
        (14, ("threadIdx.x == 0 && ", ""), 19, "condition", "`tile + STAGES < tiles.end`"),
        (11, ("if constexpr (ASYNC)", "if constexpr (!ASYNC)"), 5, "condition", "the condition, `!ASYNC`"),
        (14, ("        ptx::wgmma_wait<0>();  // S is whole\n", ""), 3, "wait left out", "a wait"),
        (15, ("            end_turn();\n", ""), 7, "call left out", "a call of `end_turn`"),
        (16, ("rank ^ 1);", "1);"), 13, "argument", "the fourth argument of `store_async`, `1`"),
        (
            19,
            ("        issue_pv(dk_rmem, ds_rmem, q_tile, step > 0);\n", ""),
            7,
            "call left out",
            "issue_pv`",
        ),
    ],
)
def test_a_change_is_a_place_and_a_part_of_a_statement(number, edit, line, cause, shown):
    (change,) = changes(number, edit)
    place = answer(number, edit)
    assert place.number(change.line) == line and change.cause == cause and shown in change.shown
    assert cause in repair.CAUSES
    assert repair_cuda.smallest(LESSONS[number], place, lambda tried: tried.lines is not None) == (change,)


def test_another_condition_is_not_called_a_condition_left_out():
    edit = ("threadIdx.x == 0 && tile + STAGES < tiles.end", "true")
    place = answer(14, edit)
    (change,) = repair_cuda.smallest(LESSONS[14], place, lambda tried: "threadIdx.x == 0" in tried.text)
    assert (place.number(change.line), change.cause) == (19, "condition")
    assert change.shown == "the condition, `true`"


def test_names_of_ones_own_and_braces_around_one_statement_are_no_difference():
    names = (("key", "k"),)
    text = exercise.region(LESSONS[8].exercise).text
    for old, new in names:
        text = text.replace(f"{old} ", f"{new} ").replace(f" {old}", f" {new}")
    assert repair_cuda.differences(LESSONS[8], exercise.answer_in_cell(LESSONS[8], text)) == []
    braced = (
        ("if (warp < 6) multiply_qk(", "if (warp < 6) {\n multiply_qk("),
        ("k_tile + s_col * KV_LD);", "k_tile + s_col * KV_LD);\n }"),
    )
    assert changes(9, *braced) == []


def test_of_several_changes_the_harmless_ones_are_left_out():
    edits = ("p[i] * v[c]", "p[0] * v[c]"), ("i < 4", "i <= 3"), ("c < 8", "c <= 7")
    tried = []

    def is_right(version: Answer) -> bool:
        tried.append(version)
        return "p[0]" not in "\n".join(version.lines)

    (found,) = repair_cuda.smallest(LESSONS[7], answer(7, *edits), is_right)
    assert found.cause == "index" and "`0`" in found.shown
    assert len(tried) <= 6


def test_where_two_changes_are_needed_both_are_told():
    edits = ("s[0] * scale_log2 - m[r]", "s[0] - m[r]"), ("sum[r] += p1", "sum[r] = p1")

    def is_right(version: Answer) -> bool:
        return "s[0] - m[r]" not in version.text and "sum[r] = p1" not in version.text

    found = repair_cuda.smallest(LESSONS[12], answer(12, *edits), is_right)
    assert len(found) == 2 and repair.cause_of(found) == "several places"
    said = repair.told(answer(12, *edits), found, "it is right")
    assert "in 2 places" in said and "With all of them changed, it is right." in said


def test_a_version_that_fails_is_not_right_and_nothing_is_claimed():
    def is_right(version: Answer) -> bool:
        raise RuntimeError("it does not compile")

    edits = ("p[i] * v[c]", "p[0] * v[c]"), ("i < 4", "i < 3"), ("c < 8", "c < 7"), ("o[c] +=", "o[c] =")
    assert repair_cuda.smallest(LESSONS[7], answer(7, *edits), is_right) == ()


def test_an_answer_that_is_far_from_the_solution_is_tried_with_well_known_slips():
    text = """\
RowState sum = {};
for (int k = 0; k < BLOCK_N / 16; k++)
    for (int i = 0; i < ROW_TILES; i++)
        for (int j = 0; j < 4; j++) {
            const int r = 2 * i + j % 2;
            const float* s = &s_rmem[i][2 * k + j / 2][j % 2 * 2];
            const float a = expf(s[0] * scale_log2 - m[r]), b = ptx::ex2(s[1] * scale_log2 - m[r]);
            sum[r] += a + b;
            p_rmem[i][k][j] = ptx::pack_pair(b, a);
        }
"""
    own = exercise.answer_in_cell(LESSONS[12], text)
    (found,) = repair_cuda.smallest(LESSONS[12], own, lambda version: "pack_pair(a, b)" in version.text)
    assert found.cause == "arguments" and own.number(found.line) == 9


@pytest.mark.parametrize("number", [14, 15, 16, 19])
def test_the_solutions_pin_what_they_wait_for(number):
    assert unpinned(answer(number), LESSONS[number].exercise.under_way) is None


@pytest.mark.parametrize(
    "number, left_out, name",
    [
        (14, "        ptx::wgmma_pin(s_rmem);\n", "s_rmem"),
        (14, "        ptx::wgmma_pin(o_rmem);\n", "o_rmem"),
        (16, "    ptx::wgmma_pin(o_rmem);\n", "o_rmem"),
    ],
)
def test_a_pin_that_is_left_out_is_seen_in_the_source(number, left_out, name):
    own = answer(number, (left_out, ""))
    line, found = unpinned(own, LESSONS[number].exercise.under_way)
    assert found == name and "wgmma_wait<0>" in own.source(line)


@pytest.mark.parametrize(
    "pin",
    [
        "if (tile < 0) ptx::wgmma_pin(s_rmem);",
        "if (tile < 0) { ptx::wgmma_pin(s_rmem); }",
        "tile < 0 ? ptx::wgmma_pin(s_rmem) : ptx::wgmma_pin(o_rmem);",
        "for (; false; ptx::wgmma_pin(s_rmem));",
        "auto later = [&] { ptx::wgmma_pin(s_rmem); };",
    ],
)
def test_a_pin_that_need_not_run_is_none(pin):
    own = answer(14, ("ptx::wgmma_pin(s_rmem);", pin))
    line, found = unpinned(own)
    assert found == "s_rmem" and "wgmma_wait<0>" in own.source(line)


def test_a_pin_in_braces_of_its_own_runs():
    pinned = "{ { ptx::wgmma_pin(s_rmem); } }"
    assert unpinned(answer(14, ("ptx::wgmma_pin(s_rmem);", pinned))) is None


def test_another_name_of_an_array_is_the_array():
    own = answer(
        14,
        ("        issue_qk(", "        auto& again = s_rmem;\n        issue_qk("),
        ("        ptx::wgmma_pin(s_rmem);\n", ""),
        ("raise_max(s_rmem", "ptx::wgmma_pin(s_rmem); raise_max(s_rmem"),
        ("            mask_tile(s_rmem", "            mask_tile(again"),
    )
    assert unpinned(own)[1] == "s_rmem"
    alias = ("        issue_qk(", "        auto& again = s_rmem;\n        issue_qk(")
    assert unpinned(answer(14, alias, ("wgmma_pin(s_rmem)", "wgmma_pin(again)"))) is None


def test_a_wait_for_some_products_is_no_wait_for_the_others():
    wait = "ptx::wgmma_wait<1>();  // dV and dK"
    assert unpinned(answer(19, (wait, "ptx::wgmma_wait<2>();  // dV"))) is None  # S and dK are under way
    for name in ("dv_rmem", "dk_rmem"):
        own = answer(19, (f"        ptx::wgmma_pin({name});\n", ""))
        line, found = unpinned(own)
        assert found == name and wait in own.source(line)
    line, found = unpinned(answer(19, (wait, "ptx::wgmma_wait<0>();  // dV and dK")))
    assert found == "s_rmem"
