"""The warm-up of lesson 07: an exercise that is not attention, addressed by its name everywhere."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba.checks import check_stage
from flashcore_numba.checks.forward import operation
from flashcore_numba.cli import main
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import exercise, figures, lesson, lessons
from flashcore_numba.course.judge import grade
from flashcore_numba.course.session import begin
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER, edited
from flashcore_numba.stages.warm_up_transpose import STAGE, TRANSPOSE, Matrix

WARM_UP = lessons.find("warm-up")
SOLUTION = exercise.region(WARM_UP.exercise).text


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_the_stage_is_off_the_spine_and_right():
    assert STAGE.number is None and STAGE not in LADDER and operation(STAGE) is TRANSPOSE
    assert edited.original("warm_up") is STAGE and TRANSPOSE.ladder() == (STAGE,)
    report = check_stage(STAGE)
    assert report.passed and len(report.results) == 6, report.failures


def test_it_transposes_and_its_problem_says_what_moves(rng):
    inputs = TRANSPOSE.draw(parse("1x2x50x64"), False, rng)
    problem = inputs.problem(inputs.arrays)
    assert (problem.x.shape, problem.min_bytes, problem.on_gpu) == ((100, 64), 2 * 4 * 6400, False)
    out = STAGE.run(problem, Simulator())["out"]
    assert np.array_equal(out, inputs.x.T)


def test_a_matrix_whose_indices_do_not_fit_is_refused():
    x = np.broadcast_to(np.float32(0), (1 << 16, 1 << 15))
    assert STAGE.why_not(Matrix(x)) == "does not serve 2,147,483,648 elements, only up to 2,147,483,647"
    assert STAGE.why_not(Matrix(x[1:])) is None


def test_a_wrong_element_is_judged_with_its_place(rng):
    x = rng.standard_normal((3, 5), np.float32)
    right = np.ascontiguousarray(x.T)
    (output,) = TRANSPOSE.outputs
    assert TRANSPOSE.judge(output, right, x.T, None).passed
    wrong = right.copy()
    wrong[4, 1] = np.nan
    verdict = TRANSPOSE.judge(output, wrong, x.T, None)
    assert (verdict.passed, verdict.where, verdict.margin) == (False, (4, 1), 0)
    assert output.shape(Matrix(x)) == (5, 3)


def test_it_comes_before_its_lesson():
    keys = list(lessons.EVERY)
    assert keys[keys.index("warm-up") + 1] == 7 and "warm-up" not in lessons.LESSONS
    assert lessons.find(" warm-up ") is WARM_UP and lessons.find("07").key == lessons.find(7).key == 7
    with pytest.raises(ArgumentError, match="7 Half on the tensor core"):
        lessons.find("warmup")


@pytest.mark.long
def test_without_padding_the_reply_names_the_line_and_the_counter():
    text = SOLUTION.replace("[TILE + 1]", "[TILE]")
    result = grade.check(WARM_UP, exercise.answer_in_cell(WARM_UP, text))
    assert (result.kind, result.cause, result.line) == ("gate", "bank conflicts", 1)
    assert "wavefronts of shared memory at x [128, 64] is 8,448" in result.what
    assert "stage before" not in str(result) and "1x1x128x64" not in str(result)
    assert "<td>-</td>" in result._repr_html_()


@pytest.mark.long
def test_a_reply_says_nothing_of_attention():
    edits = (("threadIdx.x][threadIdx.y]", "threadIdx.y][threadIdx.x]"), ("column < columns", "column < 64"),
             ("out_row < columns", "out_row < 32"))  # fmt: skip
    for old, new in edits:
        assert SOLUTION.count(old) == 1
        result = grade.check(WARM_UP, exercise.answer_in_cell(WARM_UP, SOLUTION.replace(old, new)))
        assert result.status == "failed"
        assert not {"query", "head", "key", "attention", "softmax"} & set(result.message.split()), result


def test_the_commands_take_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "warm-up", "sectors=32", "unpadded=32", "padded=2"]) == 0
    out = capsys.readouterr().out
    assert "Warm-up: your predictions" in out and "exact" in out and "flashcore starter warm-up" in out
    assert main(["starter", "warm-up"]) == 0
    path = tmp_path / "warm-up.cu"
    assert "flashcore check warm-up.cu --lesson warm-up" in capsys.readouterr().out
    assert main(["check", path.name, "--lesson", "warm-up"]) == 1
    assert "Warm-up: not yet: the region is still empty" in capsys.readouterr().out
    path.write_text(exercise.source_text(WARM_UP.exercise.file))
    assert main(["check", path.name, "--lesson", "warm-up", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["lesson"], shown["passed"], shown["margin"]) == ("warm-up", True, None)
    assert "lesson 07, Half on the tensor core" in shown["following"]
    assert main(["hint", "warm-up"]) == 0
    assert "Warm-up: hint 1 of 4" in capsys.readouterr().out
    record = Journal().lesson("warm-up")
    assert record["passed"] and record["hints"] == 1 and record["attempts"] == 1
    assert Journal().lesson(7)["attempts"] == 0


def test_a_cell_is_handed_in_by_its_name():
    warm_up = lesson("warm-up")
    begin._last[:] = [warm_up]
    begin._write("7", "float p[4];\n")
    begin._write("warm-up", SOLUTION)
    assert Journal().lesson("warm-up")["answer"] == SOLUTION
    assert Journal().lesson(7)["answer"] == "float p[4];\n"
    with pytest.raises(ArgumentError, match="a lesson's number is accepted"):
        begin._write("warm", SOLUTION)


def test_its_card_and_its_times():
    warm_up = lesson("warm-up")
    assert "Warm-up: A tile transposed" in repr(warm_up)
    assert "07 warm-up: A tile transposed" in str(warm_up.progress())
    shown = warm_up.measure()
    assert shown.data["measured"] == [] and "No GPU" not in str(shown)
    assert "`warm_up.predict(...)` first" in str(shown) and "course." not in str(shown)
    assert "`warm_up.hints(2)`" in str(warm_up.hints())


@pytest.mark.long
def test_the_pictures_show_the_banks():
    (frame,) = lesson("warm-up").picture().frames
    assert "Rows 32 floats apart: 32 wavefronts. Rows 33 floats apart: 1 wavefront" in frame.alt
    (own,) = figures.draw(WARM_UP, "columns", STAGE, "your kernel").frames
    assert "A column of `tile` is loaded: 1 wavefront" in own.alt
    with edited.edited("warm_up", edited.Edit("[TILE + 1]", "[TILE + 2]", WARM_UP.exercise.file)) as stage:
        (other,) = figures.draw(WARM_UP, "columns", stage, "your kernel").frames
        assert "A column of `tile` is loaded: 2 wavefronts" in other.alt
    flat = edited.Edit("tile[TILE][TILE + 1]", "tile[TILE]", WARM_UP.exercise.file)
    with edited.edited("warm_up", flat) as stage, pytest.raises(ValueError, match="no array"):
        figures.draw(WARM_UP, "columns", stage, "your kernel")


@pytest.mark.long
def test_a_gate_may_have_no_stage_before():
    gates = WARM_UP.exercise.gates
    assert all(gate.before is None for gate in gates)
    strict = replace(WARM_UP, exercise=replace(WARM_UP.exercise, gates=(replace(gates[2], bar=1.0),)))
    result = grade.check(strict, exercise.answer_in_cell(strict, SOLUTION))
    assert "is 512; the solution has 512, the bar is 1." in result.what


def test_a_file_of_the_other_language_is_refused_by_the_name_of_the_warm_up(tmp_path, capsys):
    file = tmp_path / "my_scalar.py"
    file.write_text("pass\n")
    assert main(["check", str(file), "--lesson", "warm-up", "--no-record"]) == 2
    assert "lesson warm-up is in CUDA C, so a .cu file is accepted" in capsys.readouterr().err
