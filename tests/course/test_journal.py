"""Progress in the user's data folder: kept, shared by two processes, never lost, never in the way."""

import json
import os
import subprocess
import sys

import pytest

from flashcore_numba.course.session.journal import FILE, Journal


def set_hints(count):
    return lambda record: record.update(hints=count)


def test_what_is_kept_is_read_by_another(tmp_path):
    Journal(tmp_path / "new").change(5, set_hints(2))
    other = Journal(tmp_path / "new")
    assert other.lesson(5)["hints"] == 2 and other.lesson(4)["hints"] == 0
    other.lesson(5)["hints"] = 9
    assert other.lesson(5)["hints"] == 2, "a copy was changed, not the record"
    assert json.loads((tmp_path / "new" / FILE).read_text())["lessons"]["5"]["hints"] == 2


def test_the_folder_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    Journal().change(1, set_hints(1))
    assert (tmp_path / "flashcore" / FILE).is_file()


@pytest.mark.long
def test_two_processes_lose_nothing(tmp_path):
    program = (
        "import pathlib, sys\n"
        "from flashcore_numba.course.session.journal import Journal\n"
        "own = Journal(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(100):\n"
        "    own.change(3, lambda record: record.update(attempts=record['attempts'] + 1))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in running] == [0, 0]
    assert Journal(tmp_path).lesson(3)["attempts"] == 200
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 99, "lessons": {}}', '{"version": 1, "lessons": {"5": {"attempts": "x"}}}'],
)
def test_a_broken_file_is_set_aside_once(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    own = Journal(tmp_path)
    with pytest.warns(UserWarning, match="is no progress file of this version: it is kept as"):
        own.change(5, set_hints(1))
    (aside,) = tmp_path.glob("progress-broken-*.json")
    assert aside.read_text() == text
    own.change(5, set_hints(2))  # a warning would be an error
    assert Journal(tmp_path).lesson(5)["hints"] == 2


def test_without_a_folder_it_lasts_as_long_as_the_process(tmp_path):
    (tmp_path / "file").write_text("in the way")
    own = Journal(tmp_path / "file" / "below")
    with pytest.warns(UserWarning, match="progress cannot be kept in .*: it lasts until this Python ends"):
        own.change(5, set_hints(1))
    own.change(5, set_hints(3))
    assert own.lesson(5)["hints"] == 3 and own.lesson(4)["hints"] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    own = Journal(tmp_path)
    own.change(5, set_hints(1))
    before = (tmp_path / FILE).read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        own.change(5, set_hints(2))
    assert own.lesson(5)["hints"] == 2
    assert (tmp_path / FILE).read_text() == before and not list(tmp_path.glob("*.part"))
