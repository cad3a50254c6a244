"""`flashcore compare` on a GPU: stages and peers, interleaved, with both clocks, into one artifact."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashcore_numba.calls import refuse
from flashcore_numba.checks.forward import common_operation, operation
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import workload
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.workload import Workload
from flashcore_numba.measure import peers
from flashcore_numba.measure.entries import Flush, StageEntry
from flashcore_numba.measure.sensors import Sensors, seen, throttled, usual_mhz
from flashcore_numba.measure.stats import of_rounds
from flashcore_numba.measure.timing import REPLAY_US, Samples, calibrate, measure, measure_cold
from flashcore_numba.predict.limits import Device, limits_us
from flashcore_numba.records import artifact, environment, layout
from flashcore_numba.run.progress import Progress
from flashcore_numba.run.registers import like, registers
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import Run, runs

if TYPE_CHECKING:
    from flashcore_numba.measure.clock import GpuClock

ROUNDS = 20
LONGEST_COLD_US = REPLAY_US  # filling the L2 again is then below one in a hundred


def compare(
    stages: Sequence[Stage],
    workloads: Sequence[Sequence[Workload]],
    rounds: int,
    progress: Progress,
    label: str | None = None,
    only_peers: Sequence[str] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Time `stages` and every peer on each of the workloads, and return the artifact, which gets `label`.

    only_peers: labels of the peers that are wanted, all when None. keep: is called after each group, with
    the artifact of what is timed so far, so that a run that is ended loses one group and not all.

    The rounds of workloads in one group are interleaved, so that their times can be compared; a ragged batch
    brings the same number of tokens in equal lengths into its group. The artifact's floats are rounded as in
    its file, so that whatever shows them agrees with what is saved. In the first group every variant is
    timed, in the others what each stage runs by default. Inputs are fresh random numbers; their seed is in
    the artifact. Needs CuPy and a GPU. Raises ArgumentError for stages of different operations and for a
    peer that their operation does not have.
    """
    chosen = [
        (group, [run for run in runs(stages) if k == 0 or run.is_default])
        for k, group in enumerate(workloads)
    ]
    return timed(chosen, rounds, progress, label, only_peers=only_peers, keep=keep)


def timed(
    chosen: Sequence[tuple[Sequence[Workload], Sequence[Run]]],
    rounds: int,
    progress: Progress,
    label: str | None = None,
    alone: bool = False,
    only_peers: Sequence[str] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """`compare` of the runs that each group of workloads has; `alone`: no peers, no ceilings, no cold L2."""
    of = common_operation([run.stage for _, some in chosen for run in some])
    peers.check_labels(of, only_peers)
    import cupy

    from flashcore_numba.measure import ceilings
    from flashcore_numba.measure.clock import GpuClock

    device = cupy.cuda.Device()
    gpu, sensors = environment.gpu(), Sensors(device.pci_bus_id)
    stream = cupy.cuda.Stream(non_blocking=True)
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    commit, dirty = environment.commit()
    clock = GpuClock(stream, sensors)
    reached = None
    if not alone:
        progress.step("measuring what this GPU reaches at best")
        reached = ceilings.measure(clock, progress.step)
    flush = Flush(stream, gpu["l2_bytes"]) if gpu["l2_bytes"] and not alone else None
    if flush:
        calibrate(flush, clock)
    results: list[dict[str, Any]] = []
    readings: list[list[Any]] = []

    def record() -> dict[str, Any]:
        every = [reading for of_shape in readings for of_entry in of_shape for reading in of_entry]
        usual = usual_mhz(every)
        for result, of_shape in zip(results, readings, strict=True):
            for entry, own in zip(result["entries"], of_shape, strict=True):
                entry["clocks"], entry["throttled"] = seen(own), throttled(own, usual)
        found = {
            "schema": artifact.SCHEMA,
            "date": environment.today(),
            "commit": commit,
            "dirty": dirty,
            "operation": of.name,
            "label": label,
            "gpu": gpu,
            "packages": environment.packages(),
            "rounds": rounds,
            "l2": "warm",
            "seed": seed,
            "clocks": seen(every),
            "clocks_why_not": sensors.why_not,
            "ceilings": reached,
            "shapes": results,
        }
        found = layout.rounded(found)
        artifact.validate(found, "the new artifact")
        return found

    for workloads, some in chosen:
        group = [each for given in workloads for each in given.drawn_with(seed)]
        for result, seen_there in _compare_group(
            some, group, rounds, rng, gpu, clock, flush, progress, [] if alone else only_peers
        ):
            results.append(result)
            readings.append(seen_there)
        if keep:
            keep(record())
    return record()


class _Prepared:
    """What is timed of one workload, captured; `cold`: label -> the entry with a flush."""

    def __init__(
        self,
        chosen: Sequence[Run],
        of_it: Workload,
        rng: np.random.Generator,
        clock: "GpuClock",
        flush: Flush | None,
        progress: Progress,
        only_peers: Sequence[str] | None,
    ) -> None:
        of = operation(chosen[0].stage)
        features = of_it.features(rng)
        self.workload, self.what = of_it, _title(of_it, features)
        progress.step(f"{self.what}: random numbers")
        inputs = _inputs(of, of_it, features, rng)
        self.host = inputs.problem(inputs.arrays)
        self.about = _about(of, of_it, features, self.host)
        packed = getattr(self.host, "features", OFF).ragged
        with clock.stream:
            arrays = {name: _placed(x, packed) for name, x in inputs.arrays.items()}
            self.problem = inputs.problem(arrays)
        progress.step(f"{self.what}: the right answer in float64")
        self.right = truth(of, inputs, rng)

        self.entries, self.absent = _stage_entries(chosen, self.problem, clock.stream, progress)
        found, missing = peers.prepare(
            of,
            self.problem,
            arrays,
            clock.stream,
            lambda label: progress.step(f"{self.what}: preparing {label}"),
            only_peers,
        )
        self.entries, self.absent = self.entries + found, self.absent | missing
        self.cold: dict[str, Any] = {}
        for entry in list(self.entries):
            progress.step(f"{self.what}: capturing {entry.label}")
            try:
                calibrate(entry, clock)
                entry.poison()
            except Exception as error:  # a peer may run and yet refuse to be captured; a stage may not
                if entry.kind == "stage":
                    raise
                self.entries.remove(entry)
                self.absent[entry.label] = f"not captured in a CUDA graph: {type(error).__name__}: {error}"[
                    :200
                ]
                continue
            if flush and entry.call and entry.launch_us <= LONGEST_COLD_US:
                pair = entry.cold(flush)
                try:
                    calibrate(pair, clock)
                    pair.poison()
                except Exception:  # a peer that allows no second graph keeps its warm time
                    if entry.kind == "stage":
                        raise
                    continue
                self.cold[entry.label] = pair
        if not self.entries:
            reasons = "; ".join(f"{label}: {why}" for label, why in self.absent.items())
            raise ArgumentError(f"{self.what}: there is nothing to time ({reasons})")


def _inputs(of: Operation, of_it: Workload, features: Features, rng: np.random.Generator) -> Any:
    """Fresh random numbers on the host; an operation is told only of what is not as ever."""
    options: dict[str, Any] = {} if of_it.element is FLOAT16 else {"element": of_it.element}
    if of_it.arguments:
        options["features"] = features
    return of.draw(of_it.arrays, of_it.causal, rng, **options, **of_it.chosen)


def _placed(x: np.ndarray, packed: bool) -> Any:
    """On the GPU, packed sequences as models have them, [total, H, D] in memory; an LSE stays [H, total]."""
    import cupy

    if packed and x.ndim == 4:
        return cupy.asarray(np.ascontiguousarray(x[0].swapaxes(0, 1))).swapaxes(0, 1)[None]
    return cupy.asarray(x.view(np.uint8) if x.dtype == E4M3.dtype else x)  # CuPy knows no e4m3


def _about(of: Operation, of_it: Workload, features: Features, problem: Any) -> dict[str, Any]:
    """What the artifact says of a workload beside shape, mask and element type."""
    found = {"kv_bytes": problem.kv_bytes} if hasattr(problem, "kv_bytes") else {}
    if of_it.plain:
        return found if of.name == artifact.FORWARD else {"flops": problem.flops} | found
    chosen = {name: getattr(of_it, name) for name in of.choices}
    found = {"features": workload.fields(features, chosen), "flops": problem.flops} | found
    return found | {"equal_lengths": str(of_it.equal)} if of_it.lengths else found


def _title(of_it: Workload, features: Features) -> str:
    fields = {} if of_it.plain else workload.fields(features, of_it.chosen)
    words = [f"{of_it.shape}", "causal" if of_it.causal else "", workload.label(fields)]
    words += [] if of_it.element is FLOAT16 else [of_it.element.name]
    return " ".join(filter(None, words))


def _compare_group(
    chosen: Sequence[Run],
    workloads: Sequence[Workload],
    rounds: int,
    rng: np.random.Generator,
    gpu: dict[str, Any],
    clock: "GpuClock",
    flush: Flush | None,
    progress: Progress,
    only_peers: Sequence[str] | None,
) -> list[tuple[dict[str, Any], list[Any]]]:
    """For each workload its results, and for each entry its sensor readings."""
    prepared = [_Prepared(chosen, each, rng, clock, flush, progress, only_peers) for each in workloads]
    entries = [entry for each in prepared for entry in each.entries]
    cold = [pair for each in prepared for pair in each.cold.values()]
    what = prepared[0].what
    progress.step(f"{what}: timing {len(entries)} entries, {rounds} rounds")
    samples = iter(
        measure(
            entries,
            rounds,
            clock,
            lambda turn, turns, entry: progress.count(f"{what}: timing", turn, turns, entry.label),
        )
    )
    cold_times: Iterator[list[list[float]]] = iter(())
    if flush:
        progress.step(f"{what}: timing with a cold L2")
        cold_times = iter(measure_cold(cold, flush, clock))
    progress.step(f"{what}: errors of the timed outputs, registers")
    capability = tuple(gpu["compute_capability"])
    device = Device(capability, gpu["sm_count"], gpu["max_sm_mhz"], gpu["bandwidth_gbs"])
    found = []
    for each in prepared:
        times = [next(samples) for _ in each.entries]
        of_cold = {label: next(cold_times) for label in each.cold}
        results = []
        for entry, its in zip(each.entries, times, strict=True):
            outputs = entry.outputs() + (
                each.cold[entry.label].outputs()[:1] if entry.label in of_cold else []
            )
            judged = each.right.judge(outputs, peer=entry.kind == "peer")
            results.append(_result(entry, each.host, its, of_cold.get(entry.label), judged, capability))
        result = {
            "shape": str(each.workload.shape),
            "causal": each.workload.causal,
            **({"element": each.workload.element.name} if hasattr(each.problem, "element") else {}),
            **each.about,
            "scale": getattr(each.problem, "scale", None),
            "limits_us": limits_us(each.problem, device),
            "entries": results,
            "absent": each.absent,
        }
        artifact.derive(result)
        found.append((result, [its.readings for its in times]))
    return found


def _stage_entries(
    chosen: Sequence[Run], problem: Any, stream: Any, progress: Progress
) -> tuple[list[Any], dict[str, str]]:
    entries, absent = [], {}
    for run in chosen:
        progress.step(f"compiling {run.label}")
        try:
            refuse(run.stage, problem)
            entries.append(StageEntry(run, problem, stream))
        except UnsupportedError as error:  # the stage's, or of a variant that needs more shared memory
            absent[run.label] = str(error)
    return entries, absent


def _result(
    entry: Any,
    host: Any,
    samples: Samples,
    cold: list[list[float]] | None,
    error: dict[str, float],
    capability: tuple[int, int],
) -> dict[str, Any]:
    run = getattr(entry, "run", None)
    clear_cold = cold if cold and min(map(min, cold)) > 0 else None
    return {
        "label": entry.label,
        "kind": entry.kind,
        "stage": run.stage.number if run else None,
        "variant": run.variant if run else None,
        "default": run.is_default if run else True,
        "unit": run.unit if run else "tensor",
        "launches": entry.launches,
        "rounds": samples.rounds,
        "gpu_us": of_rounds(samples.gpu_us),
        "gpu_cold_us": of_rounds(clear_cold) if clear_cold else None,
        "caller_us": of_rounds(samples.caller_us) if samples.caller_us else None,
        "error": error,
        "resources": registers(run, like(run.stage, host), capability) if run else None,
    }
