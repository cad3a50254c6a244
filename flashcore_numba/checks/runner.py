"""Run every check of a stage and say what happened."""

import math
import secrets
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from cuda_reference.files import MachineError
from cuda_reference.shown import shown
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.trial import Failed, Trial, place
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.operation import Case, Inputs, Operation, Property
from flashcore_numba.core.problem import checked_time_limit
from flashcore_numba.run import pool
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import select

KINDS = {
    "value": "an element is farther from the float64 answer than its bound",
    "property": "two answers that must agree do not, or one leaves what is possible",
    "unwritten": "an element of the output was never written",
    "guard": "memory beside an array, or an input, was written",
    "race": "two threads touch one address without a barrier between",
    "barrier": "threads of a block wait at different barriers, or not at all",
    "memory": "an index out of bounds, a read of memory never written, a misaligned 128-bit access",
    "copy": "what an asynchronous copy or product works on is used without the wait or fence for it",
    "warp": "a warp collective names lanes that do not take part",
    "hang": "a loop that does not end",
    "order": "two ranks, or two streams of one, touch the same memory, and nothing orders them",
    "counter": "a counter that the next launch finds at another number than 0",
    "simulator": "another report of the simulator",
    "error": "the launch raised an exception",
    "time": "stopped, or not run: the time limit was reached",
}


@dataclass(frozen=True)
class CaseResult:
    """One case or property on one stage. `margin` is the smallest allowed / error; None: nothing compared.

    cause: the end of `message`, where it says what is probably wrong. raised: what the run raised, in the
    process that ran it alone.
    """

    name: str
    passed: bool
    seconds: float
    kind: str = ""  # a key of KINDS when it failed
    message: str = ""
    error: float | None = None
    bound: float | None = None
    margin: float | None = None
    cause: str = ""
    raised: Exception | None = field(default=None, compare=False, repr=False)

    @property
    def problem(self) -> Any:
        """What the simulator or the CPU executor reported, None where it reported nothing."""
        return self.raised.problem if isinstance(self.raised, Failed) else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite margin becomes None."""
        data = asdict(replace(self, raised=None))
        del data["raised"], data["cause"]
        finite = self.margin is None or math.isfinite(self.margin)
        return data if finite else data | {"margin": None}


@dataclass(frozen=True)
class CheckReport:
    """All results of one stage (and variant) on one back end."""

    stage: str
    key: str
    number: int | None  # of the spine
    variant: str | None
    backend: str
    seed: int
    results: tuple[CaseResult, ...]
    scaled: tuple[str, ...] = ()  # shapes that the simulator runs smaller, "mission 1x8x512x64 -> 1x1x160x64"
    seconds: float = field(default=0.0, compare=False)

    @property
    def passed(self) -> bool:
        return bool(self.results) and all(result.passed for result in self.results)

    @property
    def failures(self) -> list[CaseResult]:
        return [result for result in self.results if not result.passed]

    @property
    def margin(self) -> float:
        """The worst margin of the cases that compared numbers."""
        return min((r.margin for r in self.results if r.margin is not None), default=math.inf)

    @property
    def label(self) -> str:
        return self.stage if self.variant is None else f"{self.stage} ({self.variant})"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite margin becomes None."""
        data = asdict(replace(self, results=()))
        data["results"] = [result.as_dict() for result in self.results]
        margin = self.margin
        return data | {"passed": self.passed, "margin": margin if math.isfinite(margin) else None}


def default_backend() -> str:
    """`gpu` where kernels can run on one, otherwise `simulator`."""
    return "gpu" if gpu.available() else "simulator"


def check(
    stages: Sequence[Any] = (),
    *,
    variants: Sequence[str] | None = None,
    backend: str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[CheckReport]:
    """Check stages of the ladder with all their variants; no stage means all.

    stages: what `flashcore_numba.stages.find.select` takes. variants: only these. seed: of the random cases;
    fresh when None, and part of the report. workers: processes (simulator only), one a core when None.
    time_limit: seconds for everything, None for no limit: a launch on the simulator is then stopped and what
    is left is not run; both are reported as failed, with the kind "time". progress(done, total, label) is
    called after each part.

    Raises ArgumentError for an unknown stage, variant or back end, and a bad time limit, and MachineError
    where this machine cannot compile kernels, for example on a full disk.
    """
    backend = default_backend() if backend is None else _known_backend(backend)
    time_limit = checked_time_limit(time_limit)
    seed = fresh_seed() if seed is None else seed
    selected = select(*stages)
    _check_variants(selected, variants)
    chosen = [(stage, variant) for stage in selected for variant in _variants(stage, variants)]
    if backend == "gpu":
        within = [(_within(stage, variant), variant) for stage, variant in chosen]
        chosen = [(stage, variant) for stage, variant in within if stage is not None]
    deadline = None if time_limit is None else time.time() + time_limit
    # A worker imports a stage from its module; one that is not there is checked in this process.
    here = backend == "gpu" or any(_module(stage) is None for stage in selected)
    by_stage = {stage: stage if here else str(_module(stage)) for stage, _ in chosen}
    jobs = []
    for stage, variant in chosen:
        names = [item.name for item in _items(stage, backend)]
        parts = 1 if backend == "gpu" else 3
        jobs += [
            (by_stage[stage], variant, backend, seed, tuple(names[part::parts]), deadline)
            for part in range(parts)
        ]
    results = pool.run(_job, jobs, 1 if here else workers, progress, _job_label)
    reports = []
    for stage, variant in chosen:
        mine = [r for job, r in zip(jobs, results, strict=True) if job[:2] == (by_stage[stage], variant)]
        by_name = {result.name: result for part in mine for result in part}
        ordered = tuple(by_name[item.name] for item in _items(stage, backend))
        reports.append(_report(stage, variant, backend, seed, ordered))
    return reports


def check_stage(
    stage: Stage,
    variant: str | None = None,
    *,
    backend: str = "simulator",
    seed: int | None = None,
    names: Iterable[str] | None = None,
    stop_at_first: bool = False,
    launch_limit: float | None = None,
    deadline: float | None = None,
) -> CheckReport:
    """Check one stage, of the ladder or not, in this process.

    names: only these cases and properties, in the order of the check. stop_at_first: end at the first
    failure. launch_limit: seconds that a launch on the simulator may take. deadline: `time.time()` at which
    a launch on the simulator is stopped, and after which cases are not run: they fail with the kind "time".
    """
    seed = fresh_seed() if seed is None else seed
    trial = Trial(stage, variant, backend, launch_limit, deadline)
    wanted = None if names is None else set(names)
    results = []
    for item in _items(stage, backend):
        if wanted is not None and item.name not in wanted:
            continue
        if deadline is not None and time.time() > deadline:
            results.append(CaseResult(item.name, False, 0.0, "time", "not run: the time limit was reached"))
            continue
        results.append(check_item(trial, item, seed))
        if stop_at_first and not results[-1].passed:
            break
    return _report(stage, variant, backend, seed, tuple(results))


def names(stage: Stage, backend: str = "simulator") -> list[str]:
    """All cases and properties of a stage, in the order of the check."""
    return [item.name for item in _items(stage, backend)]


def inputs(stage: Stage, name: str, seed: int, backend: str = "simulator") -> Any:
    """What the case `name` runs on; None for a property, which makes several inputs."""
    case = next(item for item in _items(stage, backend) if item.name == name)
    return case.make(_drawn(case, seed)) if isinstance(case, Case) else None


def _items(stage: Stage, backend: str) -> list[Case | Property]:
    """All checks of a stage: ragged and extreme cases, properties, then the plan's shapes."""
    sampled = operation(stage).cases(stage, backend == "gpu")
    fresh = [case for case in sampled if case.seed is None]
    fixed = [case for case in sampled if case.seed is not None]
    return [*fresh, *operation(stage).properties(stage, backend), *fixed]


def check_item(trial: Trial, item: Case | Property, seed: int) -> CaseResult:
    """One case or property, which need be none of the stage's own.

    Whatever a stage under test throws is a failure of that stage. Raises MachineError, which is none.
    """
    start = time.perf_counter()
    try:
        outcome = _run_case(trial, item, seed) if isinstance(item, Case) else _run_property(trial, item, seed)
    except Failed as failure:
        outcome = {"passed": False, "kind": failure.kind, "message": failure.text, "raised": failure}
    except MachineError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
        outcome = {"passed": False, "kind": "error", "message": message, "raised": error}
    return CaseResult(item.name, seconds=time.perf_counter() - start, **outcome)


def _run_property(trial: Trial, item: Property, seed: int) -> dict:
    margin = item.holds(trial, _generator(item.name, seed))
    return {"passed": True, "margin": margin}


def _run_case(trial: Trial, case: Case, seed: int) -> dict:
    inputs = case.make(_drawn(case, seed))
    answer = trial(inputs, layout=case.layout)
    of = operation(trial.stage)
    ref = _reference(of, case, seed, inputs)
    verdicts = []
    for output in trial.stage.outputs:
        value = getattr(answer, output.name)
        verdict = of.judge(output, value, ref, case.gate)
        verdicts.append(verdict)
        if verdict.passed:
            continue
        finite = math.isfinite(verdict.error)
        off = f"off by {verdict.error:.3g}" if finite else "not finite"
        where = f"{output.symbol}{place(output.axes, verdict.where)}"
        cause = of.explain(inputs, output, value, ref, verdict)
        message = (
            f"{inputs.label}: {where} = {value[verdict.where]:.6g}, "
            f"expected {of.expected(output, ref)[verdict.where]:.6g}{output.note}, {off}, allowed "
            f"{verdict.bound:.3g}; {verdict.reason}. {cause}"
        )
        return {
            "passed": False,
            "kind": "value",
            "message": message.rstrip(),
            "error": verdict.error if finite else None,
            "bound": verdict.bound,
            "margin": verdict.margin if math.isfinite(verdict.margin) else 0.0,
            "cause": cause,
        }
    worst = min(verdicts, key=lambda verdict: verdict.margin)
    return {"passed": True, "error": worst.error, "bound": worst.bound, "margin": worst.margin}


def _generator(name: str, seed: int) -> np.random.Generator:
    """Every case has its own stream, so a part of the check draws what the whole check draws."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _drawn(case: Case, seed: int) -> np.random.Generator:
    return _generator(case.name, seed) if case.seed is None else np.random.default_rng(case.seed)


def fresh_seed() -> int:
    """What a check without a seed draws its random cases by."""
    return secrets.randbits(31)


@lru_cache(maxsize=2)
def _reference_store(seed: int) -> dict:
    """References of one seed: all stages and variants share them."""
    return {}


def _reference(of: Operation, case: Case, seed: int, inputs: Inputs) -> Any:
    store = _reference_store(seed)
    key = (of.name, case.name, inputs.label)
    if key not in store:
        store[key] = of.reference(inputs)
    return store[key]


def _report(
    stage: Stage, variant: str | None, backend: str, seed: int, results: tuple[CaseResult, ...]
) -> CheckReport:
    sampled = operation(stage).cases(stage, backend == "gpu")
    notes = dict.fromkeys(case.scaled for case in sampled if case.scaled)
    seconds = sum(result.seconds for result in results)
    return CheckReport(
        stage.label, stage.key, stage.number, variant, backend, seed, results, tuple(notes), seconds
    )


def _within(stage: Stage, variant: str | None) -> Stage | None:
    """The stage with the head dimensions at which a block of this variant fits the GPU; None where the first
    is not among them, which most cases have.
    """
    room = gpu.shared_limit()
    fit = tuple(dim for dim in stage.head_dims if stage.why_not_in(room, dim, variant) is None)
    if fit == stage.head_dims:
        return stage
    return replace(stage, head_dims=fit) if fit[:1] == stage.head_dims[:1] else None


def _job(
    stage: str | Stage,
    variant: str | None,
    backend: str,
    seed: int,
    names: tuple[str, ...],
    deadline: float | None,
) -> tuple[CaseResult, ...]:
    """One part of a stage's check, in a worker process."""
    report = check_stage(_stage(stage), variant, backend=backend, seed=seed, names=names, deadline=deadline)
    return tuple(replace(result, raised=None) for result in report.results)  # not all exceptions travel


def _job_label(job: tuple) -> str:
    label = _stage(job[0]).label
    return label if job[1] is None else f"{label} ({job[1]})"


def _module(stage: Stage) -> str | None:
    """The module whose STAGE it is, if any."""
    name = stage.launch.__module__
    return name if getattr(sys.modules.get(name), "STAGE", None) is stage else None


def _stage(chosen: str | Stage) -> Stage:
    return import_module(chosen).STAGE if isinstance(chosen, str) else chosen


def _variants(stage: Stage, wanted: Sequence[str] | None) -> list[str | None]:
    if not stage.variants:
        return [None]
    return [name for name in stage.variants if wanted is None or name in wanted]


def _check_variants(stages: Sequence[Stage], wanted: Sequence[str] | None) -> None:
    known = [name for stage in stages for name in stage.variants]
    for name in wanted or ():
        if not isinstance(name, str) or name not in known:
            raise ArgumentError(
                f"variant {shown(name)} is not one of the stages' variants: {', '.join(known) or 'none'}"
            )


def _known_backend(name: str) -> str:
    if not isinstance(name, str) or name not in ("gpu", "simulator"):
        raise ArgumentError(f"backend is {shown(name)}: accepted are 'gpu' and 'simulator'")
    return name
