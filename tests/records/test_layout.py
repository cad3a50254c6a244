"""How records are written: a line per entry, five significant digits; the committed ones are written so."""

import json
import re
from pathlib import Path

import pytest

from flashcore_numba.records import artifact, layout

TESTS = Path(__file__).resolve().parents[1]
RECORDS = [
    *sorted(
        path for path in artifact.recorded_dir().rglob("*.json") if not path.name.endswith(".schema.json")
    ),
    TESTS / "course/wrong_answers/kills.json",
    TESTS / "simulator/nsight_h200.json",
]
# What the entries of a record are called, by the name of its file.
ENTRIES = {
    r"nvidia-.*": ("entries",),
    r"nsight-.*": ("runs",),
    r"nsight_h200": ("cases",),
    r"resources": ("kernels",),
    r"ring-timeline-.*": ("pieces",),
    r"stamps-.*": ("stamps_ns",),
    r"time_operator": ("us",),
    r"train_gpt": ("runs",),
    r"train_gpt_kernels": ("runs",),
    r"vllm": ("answers", "step_ms", "eager_ms"),
    r"configurations": ("batches",),
    r"merge": ("us",),
    r"prepare": ("rows",),
    r"edits": ("controls", "edits"),
    r"evolution": ("candidates",),
    r"evolve-.*": ("fates",),
    r"fuzz-.*": ("differences",),
    r"fuzz": ("faults",),
    r"mutants": ("planted",),
    r"mutations-.*": ("mutations",),
    r"tune-.*": ("cache", "finalists"),
    r"kills": (),
}


def entries_of(path: Path) -> tuple[str, ...]:
    (found,) = (names for pattern, names in ENTRIES.items() if re.fullmatch(pattern, path.stem))
    return found


def called(value, names):
    """Every item of what is called one of `names`, at any depth."""
    found = []
    if isinstance(value, dict):
        for name, part in value.items():
            found += list(part.values() if isinstance(part, dict) else part) if name in names else []
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found += called(part, names)
    return found


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_committed_records_are_written_so(path):
    """Reading one and writing it again changes no byte."""
    text = path.read_text()
    assert layout.text(json.loads(text), *entries_of(path)) == text


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_every_entry_of_a_committed_record_is_one_line(path):
    text, names = path.read_text(), entries_of(path)
    entries = called(json.loads(text), names) if names else list(json.loads(text).values())
    lines = iter(text.splitlines())
    for entry in entries:  # in the order of the file
        assert any(line.rstrip(",").endswith(json.dumps(entry, ensure_ascii=False)) for line in lines), entry
    assert entries or path.stem.startswith("fuzz"), "no entry was found"


class Written(str):
    """A float as it is written."""

    @property
    def digits(self) -> int:
        return len(self.partition("e")[0].replace(".", "").strip("-0"))


def floats(value, most=layout.DIGITS):
    """(as it is written, the digits that it may have) of every float."""
    if isinstance(value, Written):
        yield value, most
    for name, part in value.items() if isinstance(value, dict) else ():
        yield from floats(part, layout.MORE_DIGITS.get(name, most))
    for part in value if isinstance(value, list) else ():
        yield from floats(part, most)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_committed_floats_have_few_digits(path):
    found = list(floats(json.loads(path.read_text(), parse_float=Written)))
    assert [number for number, most in found if number.digits > most] == []
    if path.stem.startswith("nvidia"):
        assert len(found) > 100, "the floats were not found"


def test_members_and_entries_are_lines():
    record = {
        "n": 1,
        "gpu": {"name": "X", "sizes": [1, 2]},
        "shapes": [{"of": "a", "runs": [{"x": 1}, {"x": []}]}],
    }
    assert layout.text(record, "runs") == (
        '{\n "n": 1,\n "gpu": {"name": "X", "sizes": [1, 2]},\n "shapes": [\n'
        '  {\n   "of": "a",\n   "runs": [\n'
        '    {"x": 1},\n    {"x": []}\n   ]\n  }\n ]\n}\n'
    )
    assert (
        layout.text({"runs": {"a": [1], "b": {}}}, "runs") == '{\n "runs": {\n  "a": [1],\n  "b": {}\n }\n}\n'
    )
    assert layout.text({"runs": [], "other": "µ"}, "runs") == '{\n "runs": [],\n "other": "µ"\n}\n'


def test_floats_are_rounded_and_nothing_else():
    record = {
        "time": 1234.56789,
        "small": [-1.23456789e-7],
        "p50": 1234.56789,
        "clock": {"p50": 0.1234567890123},
        "whole": 1980.0,
        "counter": 2**63 + 12345,
        "yes": True,
        "none": None,
        "hash": "1234.56789",
    }
    text = layout.text(record)
    assert (
        json.loads(text)
        == layout.rounded(record)
        == record
        | {
            "time": 1234.6,
            "small": [-1.2346e-7],
            "p50": 1234.568,
            "clock": {"p50": 0.1234568},
        }
    )
    assert layout.text(json.loads(text)) == text


@pytest.mark.parametrize("exponent", [-30, -1, 0, 3, 30])
def test_rounding_moves_a_float_by_no_more_than_it_says(rng, exponent):
    for value in rng.uniform(1, 10, 1000) * 10.0**exponent:
        assert abs(layout.rounded(float(value)) - value) <= layout.ROUNDING * value * (1 + 1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        layout.save({"entries": [{"us": value}]}, tmp_path / "record.json", "entries")
    assert list(tmp_path.iterdir()) == []
