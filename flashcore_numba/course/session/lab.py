"""JupyterLab at a lesson, in a working copy that belongs to the reader."""

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from cuda_reference.files import write
from flashcore_numba.core import lean
from flashcore_numba.course.book.notebooks import lesson_files, notebook_file

FOLDER = "workspace"


def working_copy(root: Path, number: int, again: bool = False) -> tuple[Path, str]:
    """(the reader's notebook of a lesson, a sentence on what became of it). Never overwrites one.

    All lessons that have no working copy get one, so that links from lesson to lesson hold. again: begin
    this lesson anew; the old copy stays beside it under another name.
    """
    with lean.no_iri_grammars():
        import nbformat

    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    aside, before = "", set(folder.glob("*.ipynb"))
    (wanted,) = (notebook_file(path) for path in lesson_files(root) if int(path.name[:2]) == number)
    mine = folder / wanted.name
    if again and mine.exists():
        kept = mine.with_name(f"{mine.stem}.{datetime.now(UTC):%Y%m%dT%H%M%S}.ipynb")
        mine.rename(kept)
        aside = f"; your former copy is {os.path.relpath(kept)}"
    for source in (notebook_file(path) for path in lesson_files(root)):
        target = folder / source.name
        if target.exists() or not source.exists():
            continue
        book = nbformat.read(source, 4)
        for cell in book.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        write(target, nbformat.writes(book).rstrip("\n") + "\n", new=True)
    shown = os.path.relpath(mine)
    if mine in before and not again:
        return mine, f"going on with {shown}; `flashcore lab {number} --again` begins anew"
    return mine, f"{shown} is your copy{aside}"


def command(root: Path, notebook: Path, arguments: Sequence[str] = ()) -> list[str]:
    """What starts JupyterLab with `notebook` open; `arguments` are JupyterLab's own."""
    options = [f"--ServerApp.root_dir={root}"]
    options.append("--ServerApp.contents_manager_class=flashcore_numba.course.session.contents.Contents")
    options.append(f"--LabApp.default_url=/lab/tree/{notebook.relative_to(root).as_posix()}")
    if os.geteuid() == 0:
        options.append(
            "--allow-root"
        )  # JupyterLab refuses root without it; in a container there is nobody else
    return [sys.executable, "-m", "jupyterlab", *options, *arguments]


def start(command: Sequence[str]) -> NoReturn:
    """Become that command, so that Ctrl-C reaches JupyterLab alone."""
    os.execv(command[0], list(command))
