"""The notebooks: each runs fresh from top to bottom, and what is committed is what the lessons say."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import nbformat
import pytest
from matrix import few

from flashcore_numba.course import lessons
from flashcore_numba.course.book import notebooks

ROOT = Path(__file__).resolve().parents[2]
FILES = [notebooks.notebook_file(path) for path in notebooks.lesson_files(ROOT)]
SECONDS = 60
PNG = re.compile("iVBORw0KGgo[A-Za-z0-9+/=]+")  # in base64
MACHINE = re.compile(r"/(?:root|home/\w+|Users/\w+|tmp|opt|usr)/\w|site-packages|ipykernel_\d")


def outputs(book):
    """(source, output) of every output of a code cell."""
    return [(c.source, o) for c in book.cells if c.cell_type == "code" for o in c.outputs]


def as_text(output) -> str:
    return str(output.get("text", "")) + "".join(map(str, output.get("data", {}).values()))


def html(book, call):
    """The HTML outputs of the cells that have `call`."""
    return [o["data"].get("text/html", "") for s, o in outputs(book) if call in s and "data" in o]


def check_outputs(book):
    """What every executed notebook has, wherever it ran."""
    for source, output in outputs(book):
        assert output["output_type"] != "error", f"{source}: {output.get('evalue')}"
        assert output.get("name") != "stderr", f"{source}: {output['text']}"
    for cell in book.cells:
        streams = [o.name for o in cell.get("outputs", ()) if o.output_type == "stream"]
        assert len(streams) == len(set(streams)), f"{cell.source}: its text came in {len(streams)} pieces"
    watched = html(book, "course.watch(")
    assert watched
    replaced = [source for source, output in outputs(book) if "is not drawn" in as_text(output)]
    assert not replaced, f"{replaced}: an answer is judged where the starter was handed in: run it again"
    pictures = Counter(PNG.findall("".join(as_text(output) for _, output in outputs(book))))
    twice = sum(count > 1 for count in pictures.values())
    assert pictures and not twice, f"{twice} of {len(pictures)} pictures are stored more than once"
    for shown in watched:
        alts = re.findall(r'<img [^>]*alt="([^"]*)"', shown)
        assert alts and all(len(alt) > 40 for alt in alts), shown[:500]
    measured = html(book, "course.measure(")
    untimed = any("not timed at" in shown for shown in measured)  # no run of the stage is recorded
    assert untimed != any("<table" in shown and "<caption" in shown for shown in measured)
    assert any("You made no prediction" in shown for shown in html(book, "course.measure("))
    assert any(
        "not yet: the region is still empty" in as_text(o) for s, o in outputs(book) if "course.check(" in s
    )


def test_every_lesson_has_a_notebook():
    assert [path.stem for path in FILES] == [lesson.file for lesson in lessons.LESSONS.values()]


@pytest.mark.long
def test_committed_notebooks_are_made_from_the_lessons():
    assert notebooks.notebook_differences(ROOT) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_committed_notebook_was_executed(path):
    book = nbformat.read(path, 4)
    nbformat.validate(book)
    check_outputs(book)
    found = [MACHINE.search(as_text(output)) for _, output in outputs(book)]
    assert not any(found), found
    counts = [cell.execution_count for cell in book.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not any("<!--" in cell.source for cell in book.cells)


@cache
def starters():
    from flashcore_numba.course.exercise import starter_cell

    return {f"%%write {key}\n{starter_cell(lesson)}".strip() for key, lesson in lessons.EVERY.items()}


@pytest.mark.parametrize("path", few(FILES, FILES[0]), ids=lambda path: path.stem)
def test_notebook_runs_fresh(path, tmp_path):
    book = nbformat.read(path, 4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    assert {cell.source for cell in book.cells if cell.source.startswith("%%write")} <= starters()
    seconds = notebooks.execute(book, tmp_path)
    check_outputs(book)
    assert seconds <= SECONDS, f"{seconds:.0f} s"


def links(text: str) -> list[tuple[str, str]]:
    """(file, anchor) of every relative link."""
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text)
    return [(file, anchor) for file, anchor in found if file or anchor]


def anchors(page: Path) -> set[str]:
    """The anchors of a Markdown file's headings, as a forge and JupyterLab make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "lessons").glob("*.md")), *FILES],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_links_hold(path):
    """Of workspace/, which lies beside lessons/ and notebooks/, too."""
    if path.suffix == ".md":
        text = path.read_text()
    else:
        text = "\n".join(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
    every = links(text)
    assert every
    for file, anchor in every:
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{file} does not exist"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{file}#{anchor} is no heading"
