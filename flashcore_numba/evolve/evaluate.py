"""Is a file valid, and how fit is it? One function for a search, an agent or a person."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import CheckResult, no_result
from flashcore_numba.course.lessons import find
from flashcore_numba.course.spec import Key


@dataclass(frozen=True)
class Evaluation:
    """layer: what rejected it, "" when valid. fitness: above 0 when valid; basis: of what, in words."""

    lesson: Key
    valid: bool
    layer: str
    message: str
    line: int | None
    advice: str
    counters: Mapping[str, float] = field(default_factory=dict)
    cubin: Mapping[str, Any] | None = None
    fitness: float = 0.0
    basis: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    path: Path,
    lesson: Key | None = None,
    *,
    seed: int | None = None,
    device: bool = False,
    through: str | None = None,
) -> Evaluation:
    """Judge a file that answers the exercise of a lesson."""
    assert lesson is not None
    job = {"job": "check", "lesson": lesson, "file": {"name": path.name, "text": path.read_text()}}
    reply = process.run(job)
    key = find(str(lesson)).key
    result = CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(key, reply)
    fitness = 1.0
    for gate in result.gates:
        fitness *= ((gate.right + 1) / (gate.value + 1)) ** (1 / len(result.gates))
    return Evaluation(
        key,
        result.passed,
        "" if result.passed else result.kind or result.status,
        "\n".join(part for part in result.parts if part != result.look),
        result.line,
        result.look,
        {gate.what: gate.value for gate in result.gates},
        None,
        fitness if result.passed else 0.0,
        "counters of the lesson's gates, not time",
    )
