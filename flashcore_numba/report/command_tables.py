"""The commands that make the recorded runs again, read from the runs themselves."""

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flashcore_numba.branches.find import BRANCHES
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.core import workload
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.workload import CHOICES
from flashcore_numba.measure.compare import ROUNDS
from flashcore_numba.records import artifact
from flashcore_numba.stages import LADDER


def commands(folder: Path | None = None) -> str | None:
    """A console with a command per recorded run of `flashcore compare`; None without one.

    folder: of the recorded runs; the package's own by default.
    """
    found = [record for _, record in artifact.recorded_whole(folder)]
    found = [record for record in found if artifact.operation_of(record) in (FORWARD.name, *BRANCHES)]
    found.sort(key=lambda record: (artifact.operation_of(record) != FORWARD.name, record["label"] or ""))
    lines = dict.fromkeys(f"$ .venv/bin/{command(record)} --save runs" for record in found)
    return "\n".join(["```console needs=gpu", *lines, "```"]) if lines else None


def command(record: dict[str, Any]) -> str:
    """`flashcore compare ...` with the workloads, stages and peers of a run."""
    of = artifact.operation_of(record)
    shapes = _asked_for(record)
    words = ["flashcore", "compare", *_stages(record, of)]
    for name in dict.fromkeys(shape["shape"] for shape in shapes):
        words += ["--shape", name]
    words += ["--causal"] if shapes[0]["causal"] else []
    words += _varied("element", (shape.get("element", FLOAT16.name) for shape in shapes), FLOAT16.name)
    words += _varied("features", map(_features, shapes), "none")
    for name, usual in CHOICES.items():
        given = (_choice(shape, name, usual) for shape in shapes)
        words += _varied(name.replace("_", "-"), given, workload.word(name, usual))
    words += _peers(record, FORWARD if of == FORWARD.name else BRANCHES[of])
    words += ["--label", record["label"]] if record["label"] else []
    words += ["--rounds", str(record["rounds"])] if record["rounds"] != ROUNDS else []
    return shlex.join(words)


def _asked_for(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Without those that are there because a ragged batch is compared with equal lengths."""
    equal = {shape.get("equal_lengths") for shape in record["shapes"]}
    return [shape for shape in record["shapes"] if shape["shape"] not in equal]


def _entries(record: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [e for shape in record["shapes"] for e in shape["entries"] if e["kind"] == kind]


def _stages(record: dict[str, Any], of: str) -> list[str]:
    """Those that were timed, as the command line names them: all are meant where none is named."""
    ran = {entry["label"].split()[0] for entry in _entries(record, "stage")}
    if of != FORWARD.name:
        ladder = [stage.key for stage in BRANCHES[of].ladder()]
        return ["--operation", of] if ran >= {*ladder} else [key for key in ladder if key in ran]
    numbers = [stage.place for stage in LADDER if f"{stage.place:02d}" in ran]
    if len(numbers) == len(LADDER):
        return []
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return [f"{first}-{last}"]
    return [str(number) for number in numbers]


def _varied(option: str, values: Iterable[str], usual: str) -> list[str]:
    """What is interleaved, each with its option; nothing where all is as ever."""
    found = list(dict.fromkeys(values))
    return [] if found == [usual] else [word for value in found for word in (f"--{option}", value)]


def _features(shape: dict[str, Any]) -> str:
    features = {name: value for name, value in shape.get("features", {}).items() if name not in CHOICES}
    return workload.label(features) or "none"


def _choice(shape: dict[str, Any], name: str, usual: Any) -> str:
    return workload.word(name, shape.get("features", {}).get(name, usual))


def _peers(record: dict[str, Any], of: Any) -> list[str]:
    timed = dict.fromkeys(entry["label"] for entry in _entries(record, "peer"))
    refused = {name for shape in record["shapes"] for name in shape["absent"]}
    if {*of.peers()} <= {*timed, *refused}:
        return []
    return [word for label in timed or ["none"] for word in ("--peer", label)]


TABLES: dict[str, Callable[[Path | None], str | None]] = {"commands": commands}
