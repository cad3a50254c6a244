"""Files that the project writes: whole or not at all, and one clear sentence where that cannot be."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cuda_reference.files import write
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.records import artifact

ROOT = Path(__file__).resolve().parents[1]
PNG = b"\x89PNG" + bytes(100)


def limited(program, *arguments):
    """A process in which no file may grow beyond 4 KB, as on a full disk."""
    begin = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-B", "-c", begin + textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o640)
    link.symlink_to(file)
    write(link, "after")
    assert file.read_text() == "after" and link.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    write(tmp_path / "new", b"\0")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "new"]


def test_a_new_file_takes_nobodys_place(tmp_path):
    file = tmp_path / "file"
    write(file, "mine", new=True)
    with pytest.raises(FileExistsError) as raised:
        write(file, "other", new=True)
    assert raised.value.filename == str(file)
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_the_former_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")
    done = limited(
        """
        from pathlib import Path
        from cuda_reference.files import write
        try:
            write(Path(sys.argv[1]), "after" * 10_000)
        except OSError as error:
            print(error.filename, error.strerror)
        """,
        file,
    )
    assert done.stdout == f"{file} File too large\n", done.stderr
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interruption_leaves_the_former_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("before")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(file, "after")
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["stages", "--json", "FOLDER/result.json"],
        ["pictures", "--save", "FOLDER"],
        ["starter", "5", "FOLDER/lesson05.py"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_says_that_the_disk_is_full(command, tmp_path):
    arguments = [word.replace("FOLDER", str(tmp_path)) for word in command]
    done = limited(f"from flashcore_numba.cli import main; sys.exit(main({arguments!r}))")
    assert done.returncode in (1, 2), done.stderr
    assert "File too large" in done.stderr and str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["png", "html"])
def test_a_figure_in_a_folder_that_is_none(ending, tmp_path):
    figure = Figure("title", (Frame(PNG, "caption", "alt"),), 0)
    blocked = tmp_path / "file"
    blocked.touch()
    path = blocked / f"figure.{ending}"
    with pytest.raises(OSError, match="Not a directory") as raised:
        figure.save(path)
    assert raised.value.filename == str(path)
    assert figure.save(tmp_path / f"figure.{ending}").stat().st_size > 0


@pytest.mark.long
def test_a_saved_run_in_a_folder_that_is_none(tmp_path):
    (_, run), *_ = artifact.recorded()
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        artifact.save(run, blocked / "run.json")
    artifact.save(run, tmp_path / "run.json")
    assert artifact.load(tmp_path / "run.json") == run
