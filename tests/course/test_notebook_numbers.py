"""What the committed notebooks show of recorded runs is what the records have now.

Cells whose outputs quote a record are run again, and the numbers that they show are compared. On a machine
with a GPU `course.measure()` times instead of quoting, so there its table is compared with the record alone.
"""

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from flashcore_numba.checks.forward import operation
from flashcore_numba.core import gpu
from flashcore_numba.course import lesson, lessons
from flashcore_numba.course.evidence import MISSION
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import percent, provenance, short_us, times
from flashcore_numba.stages import edited

ROOT = Path(__file__).resolve().parents[2]
FILES = {number: ROOT / "notebooks" / f"{each.file}.ipynb" for number, each in lessons.LESSONS.items()}
QUOTES = re.compile(
    r"course\.(?:predict|measure)\(|course\.watch\((?:\"(?:roofline|in_flight|budget|overlap|needed|timed)\")?\)"
    r"|\bEvidence\(|\bchain\(|\bwalks?\("
)
TIME = re.compile(r"µs|FLOP/s|GB/s|\d us\b|commit [0-9a-f]{7}")  # a figure that only a GPU gives
LIVE = {0: "import time"}  # cells that measure the CPU of the machine that runs them
NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e-?\d+)?")


def cells(number: int) -> list[Any]:
    return [cell for cell in nbformat.read(FILES[number], 4).cells if cell.cell_type == "code"]


def text_of(cell: Any) -> str:
    shown = [o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "\n".join(shown)


def quoting(number: int) -> list[Any]:
    """The cells whose outputs quote a record."""
    return [cell for cell in cells(number) if QUOTES.search(cell.source)]


def measured_table(number: int) -> str:
    (cell,) = (cell for cell in cells(number) if cell.source.startswith("course.measure("))
    return text_of(cell)


def recorded(number: int) -> list[dict[str, Any]]:
    """The recorded runs of what the lesson's stage computes."""
    of = operation(edited.original(lessons.LESSONS[number].exercise.stage))
    found = [record for _, record in artifact.recorded(operation=of.name)]
    return [
        record
        for record in found
        if any(artifact.find_shape(each, MISSION, causal) for each in found for causal in (False, True))
    ]


def mission(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The newest recorded run of the lesson's ladder and what it has of the mission shape, if need be with a
    causal mask, which hides nothing of one row.
    """
    found = (
        (record, artifact.find_shape(record, MISSION, causal))
        for causal in (False, True)
        for record in recorded(number)
    )
    return next((record, shape) for record, shape in found if shape)


@pytest.mark.parametrize("number", FILES)
def test_every_record_that_is_named_is_present(number: int) -> None:
    known = {provenance(record) for record in recorded(number)}
    text = "\n".join(str(output) for cell in cells(number) for output in cell.outputs)
    named = set(
        re.findall(r"NVIDIA \w+, \d{4}-\d\d-\d\d, commit [0-9a-f]+(?: with uncommitted changes)?", text)
    )
    assert named <= known, f"{FILES[number].name} was executed with another record: {named - known}"
    assert bool(named) == bool(known)


@pytest.mark.parametrize("number", FILES)
def test_the_table_of_times_is_the_records(number: int) -> None:
    text = measured_table(number)
    if not recorded(number):
        assert "not timed at" in text
        return
    record, shape = mission(number)
    assert f"{shape['shape']}, {provenance(record)}" in text
    entries = {entry["label"]: entry for entry in shape["entries"]}
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if "│" in line
    ]
    timed = [row for row in rows if row[0] in entries]
    assert len(timed) >= 2, text
    first = entries[timed[0][0]]["gpu_us"]["p50"]
    for label, us, faster, share, error in timed:
        entry = entries[label]
        time = entry["gpu_us"]["p50"]
        said = f"{entry['error']['max']:.1e}"
        assert [us, faster, share, error] == [
            short_us(time), times(first / time), percent(entry["share_of_limit"]), said,
        ], label  # fmt: skip


def test_every_cell_with_a_figure_of_a_gpu_is_run_again() -> None:
    for number in FILES:
        for cell in cells(number):
            if cell.source.startswith(("course.source(", LIVE.get(number, "course.source("))):
                continue
            figures = [line for line in text_of(cell).splitlines() if TIME.search(line)]
            assert not figures or QUOTES.search(cell.source), (
                f"{FILES[number].name}: {cell.source}: {figures[0]}"
            )


@pytest.mark.long
@pytest.mark.parametrize("number", list(FILES))
def test_what_is_quoted_is_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    names = {"course": lesson(number)}
    for cell in quoting(number):
        if cell.source.startswith("course.measure(") and gpu.available():
            continue
        shown = run(cell.source, names) + capsys.readouterr().out
        assert NUMBER.findall(shown) == NUMBER.findall(text_of(cell)), (
            f"{cell.source}\n{shown}\n{text_of(cell)}"
        )


def run(source: str, names: dict[str, Any]) -> str:
    """The text of a cell's last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    if not isinstance(last, ast.Expr):
        return ""
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    return "" if value is None else str(value)
