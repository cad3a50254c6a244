"""The lessons as files: `lessons/NN_name.md` is the source, `notebooks/NN_name.ipynb` is made from it."""

import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from cuda_reference.files import write
from flashcore_numba.core import lean
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.book import weave
from flashcore_numba.course.evidence import Evidence

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MOST_BYTES = 2_000_000  # of one notebook
CELL_SECONDS = 60


def root() -> Path:
    """The clone that this package runs from. Raises ArgumentError in an installation without lessons."""
    folder = Path(__file__).resolve().parents[3]
    if not (folder / "lessons").is_dir() or not (folder / "pyproject.toml").is_file():
        raise ArgumentError(
            "the lessons are not part of an installed package: clone the repository, then `make lab`"
        )
    return folder


def lesson_files(folder: Path) -> list[Path]:
    """`lessons/NN_name.md`, in order."""
    return sorted((folder / "lessons").glob("[0-9][0-9]_*.md"))


def pages(folder: Path) -> list[Path]:
    """The Markdown files whose numbers are woven: all of `lessons/` and of `docs/`."""
    return sorted([*(folder / "lessons").glob("*.md"), *(folder / "docs").glob("*.md")])


def notebook_file(lesson: Path) -> Path:
    """The notebook of a lesson's page."""
    return lesson.parents[1] / "notebooks" / f"{lesson.stem}.ipynb"


def notebook_of(text: str, file: str, before: Any = None) -> Any:
    """The notebook of a lesson's text. Cells whose source is that of a cell of `before` keep its outputs.

    Raises ArgumentError where the text has no jupytext header of the format myst.
    """
    with lean.no_iri_grammars():
        import jupytext

    if not re.match(r"---\n(?s:.*?)format_name: myst\n(?s:.*?)\n---\n", text):
        raise ArgumentError(f"{file}: needs a jupytext header that says format_name: myst")
    # From notebook to notebook: beside a notebook there are no lessons/*.md.
    linked = re.sub(r"\]\((?:\.\./lessons/)?(\d\d_\w+)\.md", r"](\1.ipynb", weave.plain(text))
    book = jupytext.reads(linked, fmt={"extension": ".md", "format_name": "myst"})
    book.metadata.clear()
    book.metadata.update(METADATA)
    book.nbformat, book.nbformat_minor = 4, 5
    kept = {cell["id"]: cell for cell in before.cells} if before else {}
    seen: dict[str, int] = {}
    for cell in book.cells:
        text = f"{cell.cell_type}\n{cell.source}"
        seen[text] = seen.get(text, -1) + 1
        cell["id"] = hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()[:12]
        cell.metadata.clear()
        if cell.cell_type == "code":
            old = kept.get(cell["id"], {})
            cell.outputs, cell.execution_count = old.get("outputs", []), old.get("execution_count")
    return book


def update(folder: Path, numbers: Collection[int] = (), evidence: Evidence | None = None) -> list[Path]:
    """Weave the Markdown files of `lessons/` and `docs/`, then make the notebooks: of the lessons with these
    numbers, of all files when there are none. Returns the files that changed.

    Raises ArgumentError, before anything is written, for a number or a comment that is wrong.
    """
    with lean.no_iri_grammars():
        import nbformat

    evidence, changed = evidence or Evidence(), []
    chosen = _chosen(folder, numbers)
    every = chosen if numbers else pages(folder)
    texts = {path: path.read_text() for path in every}
    woven = {path: weave.woven(text, _name(folder, path), evidence) for path, text in texts.items()}
    for path, new in woven.items():
        if new != texts[path]:
            write(path, new)
            changed.append(path)
    for path in chosen:
        target = notebook_file(path)
        before = nbformat.read(target, 4) if target.exists() else None
        book = notebook_of(path.read_text(), _name(folder, path), before)
        if before is None or book != before:
            target.parent.mkdir(exist_ok=True)
            write(target, nbformat.writes(book).rstrip("\n") + "\n")
            changed.append(target)
    return changed


def notebook_differences(folder: Path, evidence: Evidence | None = None) -> list[str]:
    """What `update` would change, one sentence each, and notebooks that were never executed."""
    with lean.no_iri_grammars():
        import nbformat

    evidence, found = evidence or Evidence(), []
    for path in pages(folder):
        found += weave.differences(path.read_text(), _name(folder, path), evidence)
    wanted = {notebook_file(path): path for path in lesson_files(folder)}
    for target, path in wanted.items():
        name = _name(folder, target)
        if not target.exists():
            found.append(f"{name}: is missing")
            continue
        before = nbformat.read(target, 4)
        if notebook_of(path.read_text(), _name(folder, path), before) != before:
            found.append(f"{name}: its cells are not those of {_name(folder, path)}")
        if target.stat().st_size > MOST_BYTES:
            found.append(f"{name}: has {target.stat().st_size} bytes; at most {MOST_BYTES} are accepted")
        if any(c.cell_type == "code" and c.execution_count is None for c in before.cells):
            found.append(f"{name}: has cells without outputs: flashcore lessons --execute {name[10:12]}")
    for extra in sorted(set((folder / "notebooks").glob("*.ipynb")) - set(wanted)):
        found.append(f"{_name(folder, extra)}: has no lesson")
    return found


def execute(book: Any, folder: Path, on_cell: Callable[[int, int], None] | None = None) -> float:
    """Run all cells in a fresh kernel that starts in `folder`, with an empty folder for the reader's data.

    `book` gets the outputs, without anything that differs from run to run. Returns the seconds.
    """
    with lean.no_iri_grammars():
        from nbclient import NotebookClient

    code = [n for n, cell in enumerate(book.cells) if cell.cell_type == "code"]

    def on_cell_start(cell: Any, cell_index: int) -> None:
        if on_cell and cell_index in code:
            on_cell(code.index(cell_index) + 1, len(code))

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flashcore-lesson-") as data:
        client = NotebookClient(
            book,
            timeout=CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            coalesce_streams=True,  # else the load of the machine says how many pieces a text comes in
            on_cell_start=on_cell_start,
        )
        client.execute(env=os.environ | {"XDG_DATA_HOME": data}, stderr=subprocess.DEVNULL)
    book.metadata.clear()
    book.metadata.update(METADATA)
    for n in code:
        book.cells[n].metadata.clear()
    return time.monotonic() - started


def execute_files(
    folder: Path, numbers: Collection[int], on_cell: Callable[[str, int, int], None] | None = None
) -> Mapping[str, float]:
    """Execute the notebooks of these lessons, all when there are none, and store them. Seconds by name.

    Raises ArgumentError, and stores nothing of that notebook, for a cell that raises.
    """
    with lean.no_iri_grammars():
        import nbformat
        from nbclient.exceptions import CellExecutionError, CellTimeoutError

    seconds = {}
    for path in map(notebook_file, _chosen(folder, numbers)):
        book = nbformat.read(path, 4)
        try:
            seconds[path.name] = execute(book, path.parent, _named(on_cell, path.name))
        except (CellExecutionError, CellTimeoutError) as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
            raise ArgumentError(f"{_name(folder, path)}: a cell did not run: {text}") from None
        write(path, nbformat.writes(book).rstrip("\n") + "\n")
    return seconds


def _chosen(folder: Path, numbers: Collection[int]) -> list[Path]:
    files = {int(path.name[:2]): path for path in lesson_files(folder)}
    if unknown := set(numbers) - set(files):
        raise ArgumentError(f"lesson {min(unknown)}: accepted are {', '.join(map(str, files))}")
    return [path for number, path in files.items() if number in numbers or not numbers]


def _named(on_cell: Callable[[str, int, int], None] | None, name: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: on_cell(name, done, total)) if on_cell else None


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
