"""`flashcore lab`, `course` and `lessons` as commands."""

import json
import os
import shutil
from pathlib import Path

import pytest

from flashcore_numba.cli import main
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import lessons
from flashcore_numba.course.book import notebooks
from flashcore_numba.course.session import lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone with lessons and notebooks of its own, and a data folder of its own."""
    folder = tmp_path / "clone"
    for name in ("lessons", "notebooks"):
        shutil.copytree(ROOT / name, folder / name)
    monkeypatch.setattr(notebooks, "root", lambda: folder)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return folder


@pytest.fixture
def started(monkeypatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(lab, "start", lambda command: commands.append(command) or 0)
    return commands


def test_a_working_copy_is_never_overwritten(clone, capsys, started, monkeypatch):
    monkeypatch.chdir(clone)
    assert main(["lab", "5"]) == 0
    mine = clone / lab.FOLDER / notebooks.notebook_file(clone / "lessons" / f"{lessons.find(5).file}.md").name
    book = json.loads(mine.read_text())
    assert all(not cell.get("outputs") for cell in book["cells"])
    assert len(list(mine.parent.glob("*.ipynb"))) == len(notebooks.lesson_files(clone))
    mine.write_text(json.dumps(book | {"mine": True}))
    assert main(["lab", "5"]) == 0
    assert "mine" in json.loads(mine.read_text())
    assert "going on with workspace/" in capsys.readouterr().out
    assert main(["lab", "--again", "5"]) == 0
    assert "mine" not in json.loads(mine.read_text())
    (kept,) = mine.parent.glob(f"{mine.stem}.*T*.ipynb")
    assert "mine" in json.loads(kept.read_text())
    assert f"your former copy is workspace/{kept.name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given, rest",
    [(["5"], []), (["5", "--", "--no-browser", "--port", "1"], ["--no-browser", "--port", "1"]),
     (["5", "--again", "--", "--version"], ["--version"]), (["5", "--", "6", "--"], ["6", "--"]),
     (["--", "--no-browser"], ["--no-browser"]), (["--"], []), ([], [])],
)  # fmt: skip
def test_what_is_started(clone, started, given, rest, monkeypatch):
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert main(["lab", *given]) == 0
        command = started.pop()
        file = lessons.find(5 if "5" in given else 0).file
        assert command[1:3] == ["-m", "jupyterlab"]
        assert f"--LabApp.default_url=/lab/tree/workspace/{file}.ipynb" in command
        assert f"--ServerApp.root_dir={clone}" in command
        assert ("--allow-root" in command) == (user == 0)
        assert command[len(command) - len(rest) :] == rest


def test_what_cannot_be_started_is_said_in_a_sentence(clone, started, capsys, monkeypatch):
    for words in (["77"], ["foo"], ["1", "2"], ["1", "foo", "--", "--version"]):
        assert main(["lab", *words]) == 2
        assert f"lesson '{' '.join(words[:2])}': accepted are 0 " in capsys.readouterr().err
    monkeypatch.setattr("flashcore_numba.cli.lab.find_spec", lambda name: None)
    assert main(["lab", "5"]) == 1
    assert "jupyterlab is not installed: run make lab-env" in capsys.readouterr().err
    assert not started and not (clone / lab.FOLDER).exists()


def test_the_copy_is_named_from_the_current_folder(clone, started, capsys, monkeypatch):
    for folder in (clone, clone / "lessons", clone.parent):
        monkeypatch.chdir(folder)
        assert main(["lab", "5", "--again"]) == 0
        said = capsys.readouterr().out.removeprefix("flashcore lab: ").split()
        assert Path(said[0]).samefile(clone / lab.FOLDER / f"{lessons.find(5).file}.ipynb")
        assert folder == clone or Path(said[-1]).exists()


def test_outside_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "__file__", str(tmp_path / "a/b/notebooks.py"))
    with pytest.raises(ArgumentError, match="not part of an installed package: clone the repository"):
        notebooks.root()


def test_course_lists_every_lesson(clone, capsys):
    assert main(["course", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["lesson"] for row in shown["lessons"]] == list(lessons.EVERY) and shown["next"] == 0
    assert main(["course"]) == 0
    out = capsys.readouterr().out
    assert all(spec.title.split()[0] in out for spec in lessons.LESSONS.values())


def test_lessons_check_names_what_differs(clone, capsys):
    page = min((clone / "lessons").glob("05_*.md"))
    for other in (*clone.glob("lessons/*.md"), *clone.glob("notebooks/*.ipynb")):
        if other.stem != page.stem:  # they have tests of their own
            other.unlink()
    before = page.read_text()
    page.write_text(before + "\nIt is <!--limit fp32-->1.23<!---->.\n")
    assert main(["lessons", "--check"]) == 1
    out = capsys.readouterr().out
    assert "1.23" in out and "its cells are not those of lessons/05_" in out
    assert main(["lessons", "5"]) == 0
    assert "1.23" not in page.read_text()
    book = json.loads(notebooks.notebook_file(page).read_text())
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] or cell["execution_count"] for cell in code), "outputs were dropped"
    assert main(["lessons", "--check", "--execute"]) == 2
    assert main(["lessons", "99"]) == 2
    assert "lesson 99: accepted are 5" in capsys.readouterr().err
