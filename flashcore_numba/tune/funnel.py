"""From all combinations to the few that are measured best: rules, compiler, short timing, long timing, check.

Each step is dearer than the one before and sees fewer configurations. A configuration that the compiler
gives local memory or serialised wgmma never reaches a GPU; one that does not end there is stopped.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuda_reference.compile import CompileError
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.runner import check_stage
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.output import LSE
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.workload import Workload
from flashcore_numba.run import pool
from flashcore_numba.run.progress import Progress
from flashcore_numba.tune import record as records
from flashcore_numba.tune.spaces import SPACES, Config, Space, name_of

SM_REGISTERS = 1 << 16
SERIALISED = ("C7508", "C7512")  # the assembler could not keep setmaxnreg, or wgmma in flight
CHUNK = 32  # configurations that take turns in one run, beside the shipped one
SAVED_EACH = 64
SHORT_ROUNDS, LONG_ROUNDS = 5, 20
FINALISTS = 16

Timing = Callable[[int | str, Workload, Sequence[Config], int], list[dict[str, dict[str, Any]]]]
"""(a key of SPACES, workload, configurations, rounds) -> of each run, by name, what `timing.timing` says."""


def space_of(selector: str) -> Space:
    """The space of a stage, by number or name. Raises ArgumentError."""
    for key, space in SPACES.items():
        if selector in (str(key), f"{key:0>2}") or (space.stage.number and selector == space.stage.name):
            return space
    known = ", ".join(space.stage.label for space in SPACES.values())
    raise ArgumentError(f"stage {selector!r} has no space to search: those that have are {known}")


def stand_in(space: Space, workload: Workload) -> Any:
    """The problem of the space's operation, of arrays that nothing reads. Raises ArgumentError."""
    of = operation(space.stage)
    if of.stand_in is None:
        return Problem(*workload.shape.untouched(workload.element), workload.causal)
    if workload.element.name != FLOAT16.name:  # another process has an object of its own
        raise ArgumentError(f"--element {workload.element.name}: {space.stage.label} is searched in float16")
    return of.stand_in(workload.shape, workload.causal)


def search(
    space: Space,
    workload: Workload,
    progress: Progress,
    path: Path | None = None,
    timing: Timing | None = None,
    device: records.Device = records.NONE,
    elite: int = 3,
    changes: int | None = None,
) -> dict[str, Any]:
    """The record of a search, written to `path` as it grows, and gone on with where that has one.

    timing: how configurations are timed, on `device`; None where there is no GPU, and the search ends with
    the compiler. elite: so many are checked on the CPU executor in the end. changes: of a space that is too
    large, only configurations that differ from the shipped one in at most so many values. Raises
    ArgumentError.
    """
    problem = stand_in(space, workload)
    if (limit := space.stage.why_not(problem)) is not None:
        raise ArgumentError(f"stage {space.stage.label} {limit}")
    record = records.new(space, workload, device, changes)
    if path is not None:
        record = records.resumed(path, record)
    legal, shipped = _legal(space, problem, record, device.sm_count)
    _compile(space, workload, legal, record, progress, path)
    able = [config for config in legal if "dropped" not in record["cache"][name_of(config)]]
    record["funnel"]["compiled"] = len(able)
    record["funnel"]["dropped"] = dict(
        Counter(each["dropped"] for each in record["cache"].values() if "dropped" in each)
    )
    record["shipped"] = name_of(shipped)
    records.save(path, record)
    if timing is not None:
        _time(space, workload, able, shipped, record, progress, path, timing)
        _elite(space, workload, problem, shipped, record, progress, timing, elite)
        records.save(path, record)
    return record


def _legal(
    space: Space, problem: Problem, record: dict[str, Any], sm_count: int
) -> tuple[list[Config], Config]:
    """The configurations that keep the rules, what the stage launches and what its rule says among them; and
    what it launches.
    """
    shipped = space.shipped(problem, sm_count)
    points = list(space.points(problem))
    if (changes := record.get("changes")) is not None:  # none in older records
        points = [each for each in points if _changes(each[0], shipped) <= changes]
    legal = [config for config, broken in points if broken is None]
    for config in (shipped, space.rule(problem, sm_count)):
        if name_of(config) not in map(name_of, legal):
            legal.append(config)
    broken = Counter(says for _, says in points if says is not None)
    record["funnel"] |= {"combinations": len(points), "legal": len(legal), "broken": dict(broken)}
    return legal, shipped


def _changes(config: Config, other: Config) -> int:
    return sum(config[name] != other[name] for name in other)


def _compile(
    space: Space,
    workload: Workload,
    legal: Sequence[Config],
    record: dict[str, Any],
    progress: Progress,
    path: Path | None,
) -> None:
    jobs = [(space.key, workload, dict(config)) for config in legal if name_of(config) not in record["cache"]]
    for begin in range(0, len(jobs), SAVED_EACH):
        some = jobs[begin : begin + SAVED_EACH]

        def told(done: int, total: int, what: str, begin: int = begin) -> None:
            progress.count(f"compiling {space.stage.label}", begin + done, len(jobs), what)

        found = pool.run(compiled, some, None, told, lambda job: name_of(job[2]))
        for (_, _, config), each in zip(some, found, strict=True):
            record["cache"][name_of(config)] = records.entry(config, **each)
        records.save(path, record)


def compiled(key: int | str, workload: Workload, config: Config) -> dict[str, Any]:
    """Registers, spilled bytes and shared bytes of a configuration, of its dearest kernel; `dropped` says why
    it need not be timed.
    """
    from flashcore_numba.run.compiler import Compiler

    space, compiler = SPACES[key], Compiler(records.CAPABILITY)
    problem = stand_in(space, workload)
    written = (each for each in operation(space.stage).outputs if each is not LSE)
    outputs = {each.name: compiler.empty(each.shape(problem), each.dtype(problem)) for each in written}
    try:
        space.run(problem, compiler, config, **outputs)
    except UnsupportedError:
        return {"time": records.FAILED[0], "dropped": "a block needs more shared memory than there is"}
    except CompileError:
        return {"time": records.FAILED[0], "dropped": "it does not compile"}
    kernels = compiler.kernels
    found: dict[str, Any] = {
        "registers": max(each.registers or 0 for each in kernels),
        "spill_bytes": max(each.spill_bytes or 0 for each in kernels),
        "shared_bytes": max(each.shared_bytes or 0 for each in kernels),
    }
    blocks = config.get("blocks", 1)
    reasons = {
        "registers are spilled to local memory": found["spill_bytes"] > 0,
        "the assembler serialises what should overlap": any(
            code in warning for each in kernels for warning in each.warnings for code in SERIALISED
        ),
        "the blocks of an SM need more registers than it has": any(
            (each.registers or 0) * each.threads * (blocks if each is kernels[0] else 1) > SM_REGISTERS
            for each in kernels
        ),
    }
    dropped = next((says for says, true in reasons.items() if true), None)
    return found if dropped is None else found | {"time": records.FAILED[0], "dropped": dropped}


def _time(
    space: Space,
    workload: Workload,
    able: Sequence[Config],
    shipped: Config,
    record: dict[str, Any],
    progress: Progress,
    path: Path | None,
    timing: Timing,
) -> None:
    """Every configuration in a few rounds, each run beside the shipped one, to which its ratio is kept."""
    left = [config for config in able if "time" not in record["cache"][name_of(config)]]
    for begin in range(0, len(left), CHUNK):
        some = left[begin : begin + CHUNK]
        progress.count(f"timing {space.stage.label}", begin, len(left), name_of(some[0]))
        runs = timing(space.key, workload, _beside(some, shipped), SHORT_ROUNDS)
        for config in some:
            found = next((run for run in runs if name_of(config) in run), {})
            yardstick = found.get(name_of(shipped), {}).get("time")
            each = _verdict(found.get(name_of(config), {"failed": "it was not timed"}))
            if yardstick and "failed" not in each:
                each["of_shipped"] = each["time"] / yardstick
            record["cache"][name_of(config)] |= each
        records.save(path, record)
    record["funnel"]["timed"] = len(records.timed(record))


def _beside(some: Sequence[Config], shipped: Config) -> list[Config]:
    return [*(each for each in some if name_of(each) != name_of(shipped)), shipped]


def _verdict(found: dict[str, Any]) -> dict[str, Any]:
    """A wrong output has no time."""
    if "failed" in found:
        return {"time": records.FAILED[1], "failed": found["failed"]}
    if not found["right"]:
        return {"time": records.FAILED[1], "failed": "its timed output was wrong"}
    return {name: value for name, value in found.items() if name != "right"}


def _elite(
    space: Space,
    workload: Workload,
    problem: Problem,
    shipped: Config,
    record: dict[str, Any],
    progress: Progress,
    timing: Timing,
    wanted: int,
) -> None:
    """The best again, in more rounds and all in one run with the shipped one and the rule's; of those, the
    first that the CPU executor finds right.
    """
    if len(record["elite"]) >= wanted:  # a finished record, gone on with
        return
    record["elite"] = []  # its rounds must be those of the run that follows
    timed = sorted(records.timed(record), key=lambda each: each.get("of_shipped", each["time"]))
    by_ratio = [records.config_of(record, each) for each in timed]
    finalists = by_ratio[:FINALISTS]
    if not finalists:
        return
    rule = name_of(space.rule(problem, record["sm_count"]))
    finalists += [config for config in by_ratio[FINALISTS:] if name_of(config) == rule]
    progress.step(f"timing the best {len(finalists)} again, {LONG_ROUNDS} rounds")
    runs = timing(space.key, workload, _beside(finalists, shipped), LONG_ROUNDS)
    if len(runs) > 1:  # those that ended once more: only times of one run are ranked
        failed = {name for run in runs for name, each in run.items() if "failed" in each}
        finalists = [config for config in finalists if name_of(config) not in failed]
        runs = timing(space.key, workload, _beside(finalists, shipped), LONG_ROUNDS)
    found = max(runs, key=len)
    ranked = [
        (each["time"], config)
        for config in _beside(finalists, shipped)
        if name_of(config) in found and "failed" not in (each := _verdict(found[name_of(config)]))
    ]
    record["finalists"] = {name_of(config): found[name_of(config)]["rounds_us"] for _, config in ranked}
    yardstick = found.get(name_of(shipped), {}).get("rounds_us")
    if yardstick is None:  # there is nothing to compare an elite with
        return
    for time, config in sorted(ranked, key=lambda pair: pair[0]):
        if len(record["elite"]) == wanted:
            break
        name = name_of(config)
        progress.step(f"checking {name} on the CPU executor")
        report = check_stage(space.configured(config, problem), stop_at_first=True)
        record["cache"][name]["checked"] = report.passed
        if report.passed:
            record["elite"].append(
                {"config": name, "time": time, "rounds_us": found[name]["rounds_us"]}
                | {"shipped_rounds_us": yardstick}
            )
