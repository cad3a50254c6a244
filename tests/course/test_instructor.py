"""The instructor's page: its commands do what it says, and its wrong answers can be handed out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashcore_numba.course import exercise
from flashcore_numba.course.lessons import EVERY

from . import kill_table
from .misconceptions import MISCONCEPTIONS
from .wrong_answers import text_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = kill_table.INSTRUCTOR.read_text()


def run(*command: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        command, cwd=cwd, input=stdin, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )


@pytest.mark.long
def test_a_whole_class_is_marked_by_the_commands_of_the_page(tmp_path):
    (folder := tmp_path / "handed_in").mkdir()
    lesson = EVERY[0]
    (folder / "ann.py").write_text(exercise.source_text(lesson.exercise.file))
    (folder / "bob.py").write_text(exercise.starter(lesson))
    loop, marks = (
        re.search(rf"^```{name}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1] for name in ("bash", "python")
    )
    ran = run(
        "bash",
        "-eu",
        cwd=tmp_path,
        stdin=f'flashcore() {{ {sys.executable} -m flashcore_numba "$@"; }}\n{loop}',
    )
    assert ran.returncode == 0, ran.stderr
    assert "Lesson 00: passed" in (folder / "ann.txt").read_text()
    assert "still empty" in (folder / "bob.txt").read_text()
    table = run(sys.executable, "-", cwd=tmp_path, stdin=marks)
    assert table.stdout.splitlines() == ["ann,7,passed,", "bob,0,empty,"], table.stderr


@pytest.mark.long
def test_a_wrong_answer_is_printed_as_a_cell(rng):
    """The same answer that test_wrong_answers judges."""
    key = list(MISCONCEPTIONS)[rng.integers(len(MISCONCEPTIONS))]
    name = rng.choice([name for name, *_ in MISCONCEPTIONS[key]])
    cell = run(sys.executable, "-m", "course.wrong_answers", str(key), name, cwd=ROOT / "tests").stdout
    (wrong,) = (wrong for wrong in kill_table.wrongs(key) if wrong.name == name)
    magic, _, text = cell.partition("\n")
    assert magic == f"%%write {key}"
    judged, printed = (
        exercise.answer_in_cell(EVERY[key], each).text for each in (text_of(wrong, EVERY[key].exercise), text)
    )
    assert judged.split() == printed.split()


def test_without_a_name_the_wrong_answers_are_listed():
    listed = run(sys.executable, "-m", "course.wrong_answers", "4", cwd=ROOT / "tests")
    assert listed.returncode == 1 and "no_second_barrier" in listed.stderr
