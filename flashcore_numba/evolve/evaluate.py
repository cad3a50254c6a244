"""Is a file valid, and how fit is it? One function for a search, an agent or a person."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flashcore_numba.course.judge.verdict import GateResult
from flashcore_numba.course.spec import Key

LAYERS = {
    "screen": "a look at the region's text: no asm, no preprocessor, nothing outside the region",
    "compile": "the host's compiler, or Python's",
    "first case": "the simulator or the CPU executor, on one input",
    "checks": "the same on all inputs and properties",
    "gates": "the structural counters of the lesson",
    "cubin": "the GPU's compiler: registers, spills, shared memory, warnings",
    "floor": "a time on a GPU, against what the hardware allows",
}
"""What a file goes through, the cheapest first."""


@dataclass(frozen=True)
class Layer:
    """A layer that looked at a file, and the seconds that it took."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Evaluation:
    """What became of a file.

    valid: every layer that was asked for let it pass. layer: a key of `LAYERS`, the one that refused it; None
    where none did. message: why, in sentences; advice: what to look at; line: of the file, counted from 1,
    None where none can be named. layers: those that looked, in order. counters: the lesson's counters by
    name; gates: the same with the bar, the solution's value and that of the stage before. cubin: registers of
    a thread, spill_bytes, shared_bytes of a block and warnings of the dearest kernel; None where there is no
    compiler, or an earlier layer refused. fitness: 0.0 when not valid, or when not all layers were asked for;
    1.0 for the stage's own lines, more for what is better; basis: what it is made of, in words.
    """

    lesson: Key
    valid: bool
    layer: str | None
    message: str
    line: int | None = None
    advice: str = ""
    layers: tuple[Layer, ...] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    gates: tuple[GateResult, ...] = ()
    cubin: Mapping[str, Any] | None = None
    fitness: float = 0.0
    basis: str = ""
    seed: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Numbers, texts, lists and dicts: docs/search.md says what each means."""
        return asdict(self)


def evaluate(
    path: Path,
    lesson: Key | None = None,
    *,
    seed: int | None = None,
    device: bool = False,
    through: str | None = None,
) -> Evaluation:
    """Judge a file that answers the exercise of a lesson, in a process of its own.

    path: a file as `flashcore check` takes it, or the stage's own with EVOLVE-BLOCK-START and EVOLVE-BLOCK-END
    around the region. lesson: its number or name; None for that whose file it is. seed: of the random inputs,
    fresh and secret when None. device: also time it on the GPU, where there is one. through: the last layer to
    run, a key of `LAYERS`.

    An answer that is endless, crashes or floods its output is an `Evaluation` with a layer. Raises
    ArgumentError for a file that is missing, no text, or none of the lesson, and MachineError where this
    machine cannot compile it.
    """
    raise NotImplementedError
