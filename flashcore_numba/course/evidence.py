"""What questions and lessons may quote: counts of the simulator, recorded or live times, closed forms.

A lesson types neither a count nor a recorded time. A count is made by running the stage here and now; a time
comes from the recorded run that the repository keeps, or from this session's own GPU.
"""

import functools
import linecache
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flashcore_numba import predict
from flashcore_numba.branches.find import BRANCHES, find
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.mask import UNBOUNDED, Mask
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.course import experiments, launches, memory_map
from flashcore_numba.course.ranks import shares
from flashcore_numba.course.search import survey
from flashcore_numba.evidence import extracts, profile
from flashcore_numba.evidence.counts import Counted
from flashcore_numba.evidence.counts import count as run_counting
from flashcore_numba.records import artifact
from flashcore_numba.records.artifact import FORWARD
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.simulator.line_counts import LineCounts
from flashcore_numba.simulator.memory import GLOBAL, SHARED
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import Run, runs

MISSION = "1x8x512x64"
COUNTED = "1x1x128x64"

GLOBAL_FIELDS = ("sectors", "sectors/request", "bytes", "used")
SHARED_FIELDS = ("wavefronts", "wavefronts/request", "conflicts", "degree", "worst")
FIELDS = ("requests", "lanes", *GLOBAL_FIELDS, *SHARED_FIELDS)

ONE_ROW = "decode"  # the operation whose plain shapes have one row: the causal mask hides nothing of it


class Evidence:
    """Counted, measured and computed values by name.

    live: this session's own GPU times in microseconds by label ("05 online_softmax"), at the mission shape
    without a mask; they take the place of the recorded ones there. Shapes are BxHxSxD texts or names
    ("mission"). Stages are what `flashcore_numba.branches.find` takes: one of a branch is named by its key.
    What is about a whole shape takes the name of the operation. Every method raises ArgumentError that names
    what is unknown and lists what there is.
    """

    def __init__(self, live: Mapping[str, float] | None = None) -> None:
        self.live = dict(live or {})

    # Counted

    def counted(
        self, stage: int | str, shape: str = COUNTED, variant: str | None = None, causal: bool = False
    ) -> Counted:
        """The stage's run on the simulator, made once in a process. `variant` may be one of `experiments`."""
        found = find(stage)
        tried = [name for name, each in experiments.EXPERIMENTS.items() if each.stage == found.number]
        if variant is not None and variant not in (*found.variants, *tried):
            accepted = ", ".join(found.variants) or "none, this stage has no variants"
            raise ArgumentError(f"variant {variant!r} of stage {found.label}: accepted are {accepted}")
        chosen = variant or found.default_variant
        return _counted(found.key, chosen, parse(shape), bool(causal))

    def count(
        self,
        stage: int | str,
        key: str,
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """A total over the stage's launches: a key of `Counted.moved` or of `Launch.totals`."""
        counted = self.counted(stage, shape, variant, causal)
        known = counted.totals() | counted.moved()
        if key not in known:
            raise ArgumentError(f"count {key!r} of stage {stage}: accepted are {', '.join(sorted(known))}")
        return known[key]

    def line(
        self,
        stage: int | str,
        text: str,
        op: str,
        field: str,
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """The counter `field` of one access, named by its own text or by its source line's.

        text: part of the access ("scores[b, h, j, row]") or of its source line ("scores[b, h, j, row] =
        score"), enough to name one. op: load, store, atomic, barrier, shuffle, ... as `LineCounts.op`. field:
        one of FIELDS; sectors, bytes and `used` (the share of the bytes moved that a lane needs) of global
        memory, wavefronts, conflicts, degree and worst of shared memory.
        """
        if field not in FIELDS:
            raise ArgumentError(f"field {field!r}: accepted are {', '.join(FIELDS)}")
        counted = self.counted(stage, shape, variant, causal)
        rows = [row for launch in counted.launches for row in launch.lines() if row.op == op]
        return _value(_one_access(rows, text, f"{op} {text!r} of stage {stage}"), field)

    def lines(
        self, stage: int | str, shape: str = COUNTED, variant: str | None = None, causal: bool = False
    ) -> list[LineCounts]:
        """The counters of every access of all launches, by source line."""
        counted = self.counted(stage, shape, variant, causal)
        return [row for launch in counted.launches for row in launch.lines()]

    def barriers(
        self,
        stage: int | str,
        text: str = "",
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """Barriers that warps came to, at source lines with `text` in them."""
        return self._summed(stage, text, "barrier", "requests", (shape, variant, causal))

    def requests(
        self,
        stage: int | str,
        text: str = "",
        op: str = "",
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """Requests at source lines with `text` in them: of one op, or of all loads and stores."""
        return self._summed(stage, text, op, "requests", (shape, variant, causal))

    def wavefronts(
        self,
        stage: int | str,
        text: str = "",
        op: str = "",
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """Passes through the banks of shared memory at source lines with `text` in them."""
        return self._summed(stage, text, op, "wavefronts", (shape, variant, causal))

    def conflicts(
        self,
        stage: int | str,
        text: str = "",
        op: str = "",
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """Wavefronts at source lines with `text` in them that bank conflicts cost."""
        return self._summed(stage, text, op, "conflicts", (shape, variant, causal))

    def degree(
        self,
        stage: int | str,
        text: str,
        op: str = "load",
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> float:
        """Wavefronts over the fewest that the same accesses need: 1.0 is free of conflicts."""
        waves = self.wavefronts(stage, text, op, shape, variant, causal)
        return waves / max(1, waves - self.conflicts(stage, text, op, shape, variant, causal))

    def searched(self, name: str) -> int:
        """A number of lesson 24's searches: a key of `course.search.survey.figures`."""
        found = survey.figures()
        if name not in found:
            raise ArgumentError(f"{name!r}: accepted are {', '.join(found)}")
        return found[name]

    def across(self, name: str) -> float:
        """A number of lesson 23's ranks: a key of `course.ranks.shares.figures`."""
        found = shares.figures()
        if name not in found:
            raise ArgumentError(f"{name!r}: accepted are {', '.join(found)}")
        return found[name]

    def _summed(self, stage: int | str, text: str, op: str, field: str, at: tuple) -> float:
        rows = self.lines(stage, *at)
        ops = {op} if op else {"load", "store", "atomic"}
        of_op = [row for row in rows if row.op in ops]
        found = [row for row in of_op if text in row.text or text in linecache.getline(row.file, row.line)]
        if not found:
            listed = "; ".join(sorted({row.text for row in of_op})) or "none"
            raise ArgumentError(f"{op} {text!r} of stage {stage} is counted nowhere: there are {listed}")
        return sum(getattr(row, field) for row in found)

    # Read from the code

    def constant(self, stage: int | str, name: str, head_dim: int = 64, variant: str | None = None) -> int:
        """A `constexpr` of a stage in CUDA C, or a macro that its launcher defines, at the counted shape."""
        known = memory_map.constants(_launches(stage, f"1x1x128x{head_dim}", variant).sources[0])
        return memory_map.find(known, name, f"constant of stage {stage}")

    def memory_map(
        self, stage: int | str, head_dim: int = 64, variant: str | None = None
    ) -> list[memory_map.Part]:
        """The parts of a block's shared memory, in the order of the code: see `memory_map.Part`."""
        launch = _launches(stage, f"1x1x128x{head_dim}", variant).launches[0]
        return memory_map.parts(launch.kernel, launch.shared_bytes)

    def part(
        self, stage: int | str, name: str, field: str, head_dim: int = 64, variant: str | None = None
    ) -> int:
        """One number of a part of shared memory: first, bytes, stop, or row, elements from row to row."""
        found = {part.name: part for part in self.memory_map(stage, head_dim, variant)}
        if field not in ("first", "bytes", "stop", "row"):
            raise ArgumentError(f"field {field!r}: accepted are first, bytes, stop, row")
        return getattr(memory_map.find(found, name, f"part of stage {stage}"), field)

    def shared_bytes(self, stage: int | str, head_dim: int = 64, variant: str | None = None) -> int:
        """Bytes of shared memory of a block: the static arrays, and what the launch asks for."""
        launch = _launches(stage, f"1x1x128x{head_dim}", variant).launches[0]
        return launch.shared_bytes + sum(part.bytes for part in memory_map.static_parts(launch.kernel))

    def grid(
        self, stage: int | str, shape: str = MISSION, variant: str | None = None, causal: bool = False
    ) -> int:
        """Blocks of the stage's largest launch on a GPU like the recorded one."""
        return max(math.prod(each.grid) for each in _launches(stage, shape, variant, causal).launches)

    def warps(
        self, stage: int | str, shape: str = MISSION, variant: str | None = None, causal: bool = False
    ) -> int:
        """Warps of a block of that launch."""
        launches = _launches(stage, shape, variant, causal).launches
        return -(-math.prod(max(launches, key=lambda each: math.prod(each.grid)).block) // 32)

    def predicted(
        self,
        stage: int | str,
        field: str,
        shape: str = COUNTED,
        variant: str | None = None,
        causal: bool = False,
    ) -> int:
        """A field of `predict.Traffic` by the stage's closed formula."""
        of = find(stage)
        problem = stand_in_for(of, parse(shape), causal)
        found = asdict(predict.predict(of, variant, problem, EXAMPLE_SM_COUNT))
        return memory_map.find(found, field, "predicted")

    # Measured

    def us(self, label: int | str, shape: str = MISSION, causal: bool = False, operation: str = "") -> float:
        """The GPU time of a launch, median in microseconds: this session's, or the recorded one.

        operation: of another library, whose label does not say it.
        """
        name = _label(label)
        if name in self.live and (str(parse(shape)), causal) == (MISSION, False) and not operation:
            return self.live[name]
        return self.entry(label, shape, causal, operation)["gpu_us"]["p50"]

    def ratio(self, label: int | str, other: int | str, shape: str = MISSION, causal: bool = False) -> float:
        """How many times as long `label` takes as `other`."""
        return self.us(label, shape, causal) / self.us(other, shape, causal)

    def caller_us(self, label: int | str, shape: str = MISSION, causal: bool = False) -> float:
        """The recorded time of one call from Python, event to event, median in microseconds."""
        times = self.entry(label, shape, causal)["caller_us"]
        if times is None:
            raise ArgumentError(f"{_label(label)} has no recorded caller's time: it is no default variant")
        return times["p50"]

    def experiment(self, label: str, shape: str = MISSION) -> float:
        """The GPU time of a kernel that differs from a stage in one thing ("01 row_in_registers"), or of a
        stage beside it: median in microseconds, as recorded, see `experiments`.
        """
        found = artifact.find_shape(experiments.recorded() or {"shapes": []}, str(parse(shape)))
        times = {entry["label"]: entry["gpu_us"]["p50"] for entry in (found or {"entries": []})["entries"]}
        if label not in times:
            raise ArgumentError(
                f"experiment {label!r} is not recorded at {shape}: there are {', '.join(times) or 'none'}"
            )
        return times[label]

    def share(self, label: int | str, shape: str = MISSION, causal: bool = False) -> float:
        """The limit over the time, 1.0 at best."""
        entry = self.entry(label, shape, causal)
        limits = self.recorded(shape, causal, _operation(label))[1]["limits_us"]
        known = (limits[unit] for unit in (entry["unit"], "exp", "memory"))
        return max(us for us in known if us is not None) / self.us(label, shape, causal)

    def limit(self, unit: str, shape: str = MISSION, causal: bool = False, operation: str = FORWARD) -> float:
        """The time in microseconds that one unit of the recorded GPU needs: fp32, tensor, exp or memory."""
        limits = self.recorded(shape, causal, operation)[1]["limits_us"]
        if limits.get(unit) is None:
            raise ArgumentError(f"limit {unit!r}: accepted are {', '.join(limits)}")
        return limits[unit]

    def registers(self, label: int | str) -> int:
        """Registers per thread, of the kernel with the most."""
        return self._compiled(label, "registers")

    def local(self, label: int | str) -> int:
        """Bytes of local memory a thread that the compiler laid out."""
        return self._compiled(label, "stack_bytes")

    def spilled(self, label: int | str) -> int:
        """Bytes per thread that the compiler spilled."""
        return self._compiled(label, "spill_bytes")

    def _compiled(self, label: int | str, name: str) -> int:
        kernels = self.entry(label)["resources"] or []
        values = [kernel[name] for kernel in kernels if kernel[name] is not None]
        if not values:
            raise ArgumentError(f"{_label(label)}: the recorded run has no {name} of it")
        return max(values)

    def profiled(self, label: int | str, figure: str, shape: str = MISSION, causal: bool = False) -> float:
        """What Nsight Compute measured of a run, as recorded: a counter of `predict.Traffic`, summed over the
        run's launches, or a figure of `profile.MEANINGS` of a run that is one launch.
        """
        name, found = _label(label), self._profile(label, shape, causal)
        values = found["traffic"] | (found["kernels"][0] if len(found["kernels"]) == 1 else {})
        if not isinstance(value := values.get(figure), int | float):
            numbers = [key for key, value in values.items() if isinstance(value, int | float)]
            raise ArgumentError(f"figure {figure!r} of {name}: accepted are {', '.join(numbers)}")
        return value

    def stalled(self, label: int | str, reason: str, shape: str = MISSION, causal: bool = False) -> float:
        """The share of the samples of a run's warps that waited for a reason of `profile.STALLS`, as
        recorded, of a run that is one launch.
        """
        kernels = self._profile(label, shape, causal)["kernels"]
        known = kernels[0]["stalls"] if len(kernels) == 1 else {}
        if reason not in known:
            accepted = ", ".join(known) or "none, it has several launches"
            raise ArgumentError(f"stall {reason!r} of {_label(label)}: accepted are {accepted}")
        return known[reason]

    def _profile(self, label: int | str, shape: str, causal: bool) -> dict[str, Any]:
        name, at = _label(label), parse(shape)
        run = next((run for run in runs(LADDER) if run.label == name), None)
        found = run and profile.find(run, extracts.find(at, causal))
        if not found:
            known = ", ".join(profile.which(run)) if run else "nothing, it is no run of the ladder"
            raise ArgumentError(f"{name} is not profiled at {at}{' causal' * causal}, but at: {known}")
        return found

    def entry(
        self, label: int | str, shape: str = MISSION, causal: bool = False, operation: str = ""
    ) -> dict[str, Any]:
        """One entry, of the first recorded run that has it at this shape: variants may have their own run.

        label: as the README's ladder has it, or a stage's number. operation: that of the label's stage where
        it is not named.
        """
        name = _label(label)
        known: list[str] = []
        for results in self._results(shape, causal, operation or _operation(name)):
            entries = {entry["label"]: entry for entry in results["entries"]}
            if name in entries:
                return entries[name]
            known += [other for other in entries if other not in known]
        raise ArgumentError(f"label {name!r} is not in the recorded run: it has {', '.join(known)}")

    def recorded(
        self, shape: str = MISSION, causal: bool = False, operation: str = FORWARD
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the newest artifact of an operation that has this shape, its results there)."""
        found = self._results(shape, causal, operation)[0]
        return next(record for record in _records(operation) if found in record["shapes"]), found

    def _results(self, shape: str, causal: bool, operation: str) -> list[dict[str, Any]]:
        """What each recorded run of an operation has of this shape."""
        wanted, records = str(parse(shape)), _records(operation)
        masks = (causal, not causal) if operation == ONE_ROW else (causal,)
        found = [artifact.find_shape(record, wanted, mask) for mask in masks for record in records]
        if not any(found):
            known = sorted({s["shape"] + " causal" * s["causal"] for r in records for s in r["shapes"]})
            raise ArgumentError(
                f"shape {wanted}{' causal' * causal} is not recorded: there are {', '.join(known)}"
            )
        return [results for results in found if results is not None]

    # Computed

    def pairs(self, shape: str = COUNTED, causal: bool = False) -> int:
        """(query row, key) pairs that the mask lets through, over all heads."""
        s = parse(shape)
        return Mask(s.seq, s.seq, right=0 if causal else UNBOUNDED).pairs * s.batch * s.heads

    def flops(self, shape: str = COUNTED, causal: bool = False, operation: str = FORWARD) -> int:
        """Floating-point operations of the products: 4 D a pair, in the backward pass 10 D."""
        return _work(operation, parse(shape), causal).flops

    def min_bytes(self, shape: str = COUNTED, operation: str = FORWARD) -> int:
        """Bytes that must move: every input read once, every output written once, arrays in float16."""
        return _work(operation, parse(shape), False).min_bytes


def _work(operation: str, shape: Shape, causal: bool) -> Any:
    """A problem of an operation, whose elements nobody reads."""
    stage = LADDER[0] if operation == FORWARD else BRANCHES[operation].ladder()[0]
    return stand_in_for(stage, shape, causal)


@functools.cache
def _counted(stage: str, variant: str | None, shape: Shape, causal: bool) -> Counted:
    tried = variant in experiments.EXPERIMENTS
    run = experiments.experiment(str(variant)) if tried else Run(find(stage), variant)
    return run_counting(run, shape, causal)


@functools.cache
def _launches(
    stage: int | str, shape: str, variant: str | None = None, causal: bool = False
) -> launches.DryRun:
    """What a stage in CUDA C launches there."""
    found = find(stage)
    if found.language != "CUDA C":
        raise ArgumentError(f"stage {found.label} is no kernel in CUDA C")
    return launches.recorded(found, variant, shape, causal)


@functools.cache
def _records(operation: str) -> tuple[dict[str, Any], ...]:
    return tuple(record for _, record in artifact.recorded(operation=operation))


def _operation(label: int | str) -> str:
    """The name of the operation of a recorded label: that before its slash, where it has one."""
    name = str(label).partition("/")[0]
    return name if name in BRANCHES else FORWARD


def _label(label: int | str) -> str:
    stages = {stage.number: stage.label for stage in LADDER}
    if isinstance(label, str):
        return label
    if label not in stages:
        raise ArgumentError(
            f"stage {label!r} is not in the ladder: accepted are {', '.join(stages.values())}"
        )
    return stages[label]


def _one_access(rows: Sequence[LineCounts], text: str, what: str) -> list[LineCounts]:
    """The rows of the one access that `text` names: one per launch."""

    def at(row: LineCounts) -> tuple[str, int, str]:
        return row.file, row.line, row.text

    tries: tuple[Callable[[LineCounts], bool], ...] = (
        lambda row: row.text == text,
        lambda row: text in row.text,
        lambda row: text in linecache.getline(row.file, row.line),
    )
    found = next((some for fits in tries if (some := [row for row in rows if fits(row)])), [])
    places = sorted({at(row) for row in (found or rows)})
    if not found or len(places) > 1:
        listed = "; ".join(f"line {line}: {access}" for _, line, access in places) or "none"
        how = "could be any of these, write more of the line:" if found else "is counted nowhere: there are"
        raise ArgumentError(f"{what} {how} {listed}")
    return found


def _value(rows: Sequence[LineCounts], field: str) -> float:
    space = rows[0].space
    fields = {GLOBAL: GLOBAL_FIELDS, SHARED: SHARED_FIELDS}.get(space, ())
    if field not in ("requests", "lanes", *fields):
        raise ArgumentError(
            f"field {field!r}: {rows[0].text} is {space or 'no'} memory, which has requests, lanes"
            + "".join(f", {name}" for name in fields)
        )

    def total(name: str) -> int:
        return sum(getattr(row, name) for row in rows)

    if field == "worst":
        return max(row.worst for row in rows)
    if field == "degree":
        return total("wavefronts") / max(1, total("wavefronts") - total("conflicts"))
    if field == "used":
        return total("bytes_needed") / max(1, total("bytes_moved"))
    if field == "bytes":
        return total("bytes_moved")
    name, _, each = field.partition("/")
    return total(name) / total("requests") if each else total(name)
