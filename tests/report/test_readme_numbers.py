"""Every number in the README is from a record, or follows from the code: none is typed and left alone.

What stands between markers is held against the records here without the code that wrote it. In the rest, each
number is part of a statement below whose value is computed; what is left must have no digits.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from cuda_reference.cpu.build import NEEDED
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.evidence.reconcile import MOST_APART
from flashcore_numba.records import artifact
from flashcore_numba.simulator.count import SECTOR
from flashcore_numba.stages import LADDER

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PLACE = re.compile(r"<!-- (picture|table|text|check):(?!end)([^>]+) -->\n(.*?)<!-- \1:end -->", re.DOTALL)
PLACES = {f"{place[1]}:{place[2]}": place[3] for place in PLACE.finditer(README)}
PEERS = ("SDPA flash", "SDPA cuDNN", "FlexAttention", "FA4")
# A number, not the digits of a name such as H200, float16 or FlashAttention-2.
NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?")


def entries() -> dict[str, dict]:
    """The entries of the mission shape in the newest run of the ladder, as the file has them."""
    files = [json.loads(path.read_text()) for path in artifact.recorded_dir().glob("nvidia-*.json")]
    files = [f for f in files if "rounds" in f and f.get("operation", "forward") == "forward"]
    runs = [f for f in files if f["label"] is None and not f["shapes"][0]["causal"]]
    (shape,) = (s for s in max(runs, key=lambda f: f["date"])["shapes"] if s["shape"] == "1x8x512x64")
    return {entry["label"]: entry for entry in shape["entries"]} | {"": shape}


RECORD = entries()
US = {label: entry["gpu_us"]["p50"] for label, entry in RECORD.items() if label}


def agrees(text: str, value: float) -> bool:
    """Is `text` the value, to the digits that it shows?"""
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5 * 10**-digits * 1.0001


# The places


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in PLACES["table:ladder"].splitlines() if "| " in line]
    return {cells[0].strip("*"): cells for cells in lines[1:]}


def test_the_table_has_every_stage_and_four_peers() -> None:
    assert list(rows()) == [*(stage.label for stage in LADDER), *PEERS]


@pytest.mark.parametrize("label", [*(stage.label for stage in LADDER), *PEERS])
def test_a_row_is_the_records(label: str) -> None:
    _, _, us, faster, share = rows()[label]
    time = US[label]
    unit = RECORD[label]["unit"]
    limits = [RECORD[""]["limits_us"][name] for name in (unit, "exp", "memory")]
    assert agrees(us, time)
    assert agrees(faster, US["01 scalar"] / time)
    assert agrees(share.removesuffix("%"), 100 * max(limits) / time)


def test_the_result_is_the_records() -> None:
    text = PLACES["text:result"]
    best = min((stage.label for stage in LADDER), key=US.__getitem__)
    peers = sorted(US[label] for label in PEERS)
    overlapped = US["16 overlapped"]
    shown = [float(number) for number in re.findall(r"([\d.]+) µs", text)]
    assert f"stage {best[:2]}" in text
    for said, value in zip(shown, [US[best], *peers[:2], overlapped], strict=True):
        assert said == pytest.approx(value, rel=0.005)
    known = {*(str(number) for number in shown), "8", "512", "64", "1", best[:2]}
    assert {f"{float(n):g}" for n in NUMBER.findall(text)} <= {f"{float(n):g}" for n in known}


def test_the_table_of_the_backward_pass_is_the_records() -> None:
    head, _, *lines = [line for line in PLACES["table:backward"].splitlines() if line.startswith("|")]
    names = [cell.partition(",")[0].strip() for cell in head.strip("|").split("|")][2:]
    files = [json.loads(path.read_text()) for path in artifact.recorded_dir().glob("nvidia-*-backward*.json")]
    found: dict[tuple[str, str, bool], set[str]] = {}
    for shape in (shape for file in files for shape in file["shapes"]):
        for entry in shape["entries"]:
            us = entry["gpu_us"]["p50"]
            shown = {f"{us:.2f}", f"{us:.1f}", f"{us:.0f}", f"{shape['flops'] / us / 1e6:.0f}"}
            found.setdefault((entry["label"], shape["shape"], shape["causal"]), set()).update(shown)
    for line in lines:
        label, _, *cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        for name, cell in zip(names, cells, strict=True):
            for causal, number in enumerate(cell.split(" / ")):
                assert number == "-" or number in found[label, name, bool(causal)], (label, name)
    assert len(lines) >= 7


def test_what_is_said_of_features_is_the_records() -> None:
    """Without the code that wrote it: the window and the ragged batch, in files of the folder."""
    text = PLACES["text:feature-costs"]
    at, masked, share, faster = re.search(
        r"batch of (\S+)( with a causal mask)? reaches (\d+)% .* is ([\d.]+) times as fast", text
    ).groups()
    seen, of_time, keys, there = re.search(
        r"window of (\d+) keys takes (\d+)% of the time of all (\d+) at (\S+) with a causal mask;", text
    ).groups()
    rest = text.replace(at, "").replace(there, "")
    assert len(NUMBER.findall(rest)) == 5, "no other number is said"
    files = [json.loads(path.read_text()) for path in artifact.recorded_dir().glob("nvidia-*.json")]
    ((bare, windowed),) = (
        [
            min(e["gpu_us"]["p50"] for e in s["entries"] if e["kind"] == "stage" and e["default"])
            for s in sorted(file["shapes"], key=lambda s: "features" in s)
        ]
        for file in files
        if file.get("label") == "window" and file["operation"] == "forward"
    )
    assert there.split("x")[2] == keys and agrees(of_time, 100 * windowed / bare)
    assert any(
        s["shape"] == there and s["causal"] and s.get("features", {}).get("window") == [int(seen) - 1, 0]
        for file in files
        for s in file.get("shapes", [])
    )
    ((ragged, equal),) = (
        (s, next(o for o in file["shapes"] if o["shape"] == s["equal_lengths"]))
        for file in files
        for s in file.get("shapes", [])
        if s["shape"] == at and s["causal"] == bool(masked)
    )
    us = [{e["label"]: e["gpu_us"]["p50"] for e in s["entries"]} for s in (ragged, equal)]
    label = min((each for each in us[0] if each[0] in "01"), key=us[0].__getitem__)
    assert agrees(share, 100 * ragged["flops"] / us[0][label] / (equal["flops"] / us[1][label]))
    assert agrees(faster, us[0]["FA3"] / us[0][label])


def test_what_the_first_paragraph_claims_is_so() -> None:
    assert "runs faster than cuDNN at short lengths" in " ".join(README.split())
    assert min(US[stage.label] for stage in LADDER) < US["SDPA cuDNN"]


# The rest


def prose() -> str:
    """Without what is generated, code that tests run, targets of links and code in lines."""
    text = PLACE.sub("", README)
    text = re.sub(r"^```(?:python|console).*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(re.sub(r"`[^`]*`", "``", text).split())


def versions() -> list[str]:
    """3.11, ... of `requires-python` to the last one that constraints.txt knows."""
    first = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    found = sorted(set(re.findall(r"3\.\d\d", workflow)))
    assert first == f">={found[0]}"
    return found


def span(language: str = "", capability: tuple[int, int] | None = None) -> str:
    """`01 to 06`, or `13`: those of a language or of a compute capability, with no others between them."""
    some = [
        stage.place
        for stage in LADDER
        if language in ("", stage.language) and capability in (None, stage.compute_capability)
    ]
    assert some == list(range(some[0], some[-1] + 1))
    return " to ".join(f"{number:02d}" for number in dict.fromkeys((some[0], some[-1])))


def statements() -> list[str]:
    first, *others, last = versions()
    return [
        f"in {len(LADDER)} stages of one file",
        f"In each of {len(LESSONS)} lessons",
        f"Python {', '.join([first, *others])} or {last}",
        f"stages in CUDA C ({span('CUDA C')}) also need `` {NEEDED['g++']} or clang {NEEDED['clang']},",
        f"Stages {span('Numba')} are in Numba, {span('CUDA C')} in CUDA C",
        f"counts what a GPU would count: requests, {SECTOR}-byte sectors",
        f"differ by more than {100 * MOST_APART:.0f} %",
        "compute capability 7.0 or newer",
        f"{span(capability=(7, 0))} on any, {span(capability=(7, 5))} from 7.5 on, "
        f"{span(capability=(8, 0))} from 8.0 on, {span(capability=(9, 0))} on Hopper, 9.0",
        "exits with status 0",  # cli.check, held by the tests of that command
        "a driver for CUDA 12 or newer",  # the oldest extra of pyproject.toml
        *(f"lesson {number:02d}" for number in LESSONS),
        *(f"lesson {number}'s {part}" for number in LESSONS for part in ("exercise", "questions")),
        *(f"next hint of lesson {number}" for number in LESSONS),
        "Apache License 2.0",
        "CC BY 4.0",
    ]


def unexplained(text: str) -> list[str]:
    """The numbers of `text` that are in no statement."""
    for statement in statements():
        text = text.replace(statement, "")
    return NUMBER.findall(text)


def test_no_number_outside_the_places_is_left_alone() -> None:
    assert unexplained(prose()) == []


@pytest.mark.parametrize("typed", ["takes 4.0 µs", "17 stages", "up to 1,893 times", "2.6x", "in 20 minutes"])
def test_a_typed_number_is_found(typed: str) -> None:
    assert unexplained(f"{prose()} It {typed}.")


def test_oldest_driver_is_that_of_the_oldest_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert min(int(name[4:]) for name in extras if re.fullmatch(r"cuda\d+", name)) == 12
