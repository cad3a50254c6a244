"""Is a file valid, and how fit is it? One function for a search, an agent or a person."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.evidence import MISSION
from flashcore_numba.course.judge import answer_times, process
from flashcore_numba.course.judge.layers import CHECKS, COMPILE, CUBIN, FIRST, GATES, ORDER, SCREEN, Layer
from flashcore_numba.course.judge.verdict import CheckResult, GateResult, no_result
from flashcore_numba.course.spec import Key, Lesson
from flashcore_numba.evolve import source
from flashcore_numba.evolve.floor import Timed, too_fast
from flashcore_numba.predict.limits import Device
from flashcore_numba.records import environment
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import edited
from flashcore_numba.stages.files import is_cuda
from flashcore_numba.tune.funnel import SERIALISED

FLOOR = "floor"
LAYERS = {
    SCREEN: "a look at the region's text: no asm, no preprocessor, nothing outside the region",
    COMPILE: "the host's compiler, or Python's",
    FIRST: "the simulator or the CPU executor, on one input",
    CHECKS: "the same on all inputs and properties",
    GATES: "the structural counters of the lesson",
    CUBIN: "the GPU's compiler: registers, spills, shared memory, warnings",
    FLOOR: "a time on a GPU, against what the hardware allows",
}
"""What a file goes through, the cheapest first."""
TIME_LIMIT = 180.0  # seconds: a right answer takes 2 to 30, more on a machine that does other things too
BY_COUNTERS = "counters: the solution's over these, the geometric mean over the gates; no time was measured"
BY_TIME = "time: the stage's own microseconds over these, both medians of one run"
NOT_JUDGED = "nothing: a layer refused it, or not all counters were asked for"
SPILLS_ADVICE = "Fewer values alive at once, or a loop that is unrolled less, need fewer registers."


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
    device: bool | Timed = False,
    through: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> Evaluation:
    """Judge a file that answers the exercise of a lesson, in a process of its own.

    path: a file as `flashcore check` takes it, or the stage's own with EVOLVE-BLOCK-START and
    EVOLVE-BLOCK-END around the region. lesson: its number or name; None for that whose file it is. seed: of
    the random inputs, fresh and secret when None. device: also time it on the GPU; or the times that somebody
    has measured. through: the last layer to run, a key of `LAYERS`. time_limit: seconds for all layers but
    the last.

    An answer that is endless, crashes or floods its output is an `Evaluation` with a layer. Raises
    ArgumentError for a file that is missing, no text, or none of the lesson, UnsupportedError for a time
    where there is no GPU, and MachineError where this machine cannot compile it.
    """
    if through is not None and through not in LAYERS:
        raise ArgumentError(f"through: {through!r} is none of {', '.join(LAYERS)}")
    if device is True and not gpu.available():
        raise UnsupportedError(f"device: times need a GPU; {gpu.why_not()}")
    path = Path(path)
    text = source.read(path)
    of = source.of_kernel(lesson) if lesson is not None else source.lesson_of(path.name, text)
    return of_text(of, path.name, text, seed=seed, device=device, through=through, time_limit=time_limit)


def of_text(
    lesson: Lesson,
    name: str,
    text: str,
    *,
    seed: int | None = None,
    device: bool | Timed = False,
    through: str | None = None,
    time_limit: float = TIME_LIMIT,
) -> Evaluation:
    """`evaluate` for a text that messages call `name`."""
    file = {"name": name, "text": source.marked(text, lesson)}
    if not is_cuda(lesson.exercise.file) and (host := source.outside(file["text"], lesson)) is not None:
        line, message = host
        advice = "Only the lines between the two markers may change."
        return Evaluation(lesson.key, False, SCREEN, message, line, advice, basis=NOT_JUDGED)
    job: dict[str, Any] = {"job": "check", "lesson": lesson.key, "file": file, "seed": seed}
    if through in ORDER:
        job["through"] = through
    found = _of_check(lesson, process.run(job, time_limit))
    if not found.valid or through in ORDER:
        return found
    if device is False:
        return found
    timed = measured(lesson, file) if device is True else device
    return _refused(found, timed) if isinstance(timed, str) else _of_time(lesson, found, timed)


def _of_check(lesson: Lesson, reply: Mapping[str, Any]) -> Evaluation:
    """The evaluation without a time."""
    result = CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(lesson.key, reply)
    message = "\n".join(part for part in result.parts if part != result.look)
    layer, advice = (None if result.passed else result.layer), result.look
    if layer is None and result.cubin and (refused := refused_cubin(result.cubin)):
        layer, message, advice = CUBIN, refused, SPILLS_ADVICE
    whole = layer is None and len(result.gates) == len(lesson.exercise.gates)
    fitness = _of_counters(result.gates) if whole else 0.0
    return Evaluation(
        lesson=lesson.key,
        valid=layer is None,
        layer=layer,
        message=message,
        line=result.line,
        advice=advice,
        layers=result.layers,
        counters={gate.what: gate.value for gate in result.gates},
        gates=result.gates,
        cubin=result.cubin,
        fitness=fitness,
        basis=BY_COUNTERS if whole else NOT_JUDGED,
        seed=result.seed,
    )


def refused_cubin(cubin: Mapping[str, Any]) -> str:
    """Why machine code is refused before it is timed, in a sentence; empty where it is not."""
    if cubin["spill_bytes"]:
        return f"Registers are spilled to local memory: {cubin['spill_bytes']} bytes per thread."
    for warning in cubin["warnings"]:
        if any(code in warning for code in SERIALISED):
            return f"The assembler serialises what should overlap: {warning}"
    return ""


def _of_counters(gates: Sequence[GateResult]) -> float:
    """The geometric mean of the solution's counters over these, each plus 1: a counter may be 0."""
    return math.prod((gate.right + 1) / (gate.value + 1) for gate in gates) ** (1 / max(1, len(gates)))


def _of_time(lesson: Lesson, found: Evaluation, timed: Timed) -> Evaluation:
    start = time.perf_counter()
    stage = edited.original(lesson.exercise.stage)
    work = stand_in_for(stage, parse(timed.shape))
    refused = too_fast(timed.us, work, timed.device, stage.kernels.unit)
    layers = (*found.layers, Layer(FLOOR, time.perf_counter() - start))
    if refused is not None:
        return _refused(replace(found, layers=layers), refused)
    return replace(found, layers=layers, fitness=timed.stage_us / timed.us, basis=BY_TIME)


def _refused(found: Evaluation, message: str) -> Evaluation:
    return replace(found, valid=False, layer=FLOOR, message=message, fitness=0.0, basis=NOT_JUDGED)


def measured(lesson: Lesson, file: Mapping[str, str]) -> Timed | str:
    """A candidate that is right on the CPU, and the lesson's stage, timed in turns.

    A sentence for a candidate that does not end there, or whose timed output is wrong. Raises
    UnsupportedError for a lesson without a stage to compare with.
    """
    labels = answer_times.own_labels(lesson)
    if not labels:
        raise UnsupportedError(f"lesson {lesson.key}: its stage is on no ladder")
    reply = process.run({"job": "measure", "lesson": lesson.key, "file": file}, TIME_LIMIT)
    if not reply["result"]:
        return f"It is right on the CPU, and was not timed: {reply['why']}"
    us = {row["label"]: row["us"] for row in reply["result"]["rows"]}
    if not all(row["right"] for row in reply["result"]["rows"] if row["label"] == answer_times.YOURS):
        return "It is right on the CPU, and its timed output is wrong."
    here = environment.gpu()
    device = Device(
        tuple(here["compute_capability"]), here["sm_count"], here["max_sm_mhz"], here["bandwidth_gbs"]
    )
    return Timed(us[answer_times.YOURS], us[labels[-1]], MISSION, device)
