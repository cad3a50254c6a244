"""`flashcore compare` on a GPU: stages and peers, interleaved, with both clocks, into one artifact."""

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashcore_numba.attention import refuse
from flashcore_numba.checks.forward import FORWARD, operation
from flashcore_numba.checks.truth import truth
from flashcore_numba.core.problem import UnsupportedError
from flashcore_numba.core.shapes import Shape
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
    shapes: Sequence[tuple[Shape, bool]],
    rounds: int,
    progress: Progress,
    label: str | None = None,
) -> dict[str, Any]:
    """Time `stages` and every peer on each (shape, causal), and return the artifact, which gets `label`.

    Its floats are rounded as in its file, so that whatever shows them agrees with what is saved.
    At the first shape every variant is timed, at the others what each stage runs by default. Inputs are fresh
    random numbers; their seed is in the artifact. Needs CuPy and a GPU.
    """
    chosen = [
        (shape, causal, [run for run in runs(stages) if k == 0 or run.is_default])
        for k, (shape, causal) in enumerate(shapes)
    ]
    return timed(chosen, rounds, progress, label)


def timed(
    chosen: Sequence[tuple[Shape, bool, Sequence[Run]]],
    rounds: int,
    progress: Progress,
    label: str | None = None,
    alone: bool = False,
) -> dict[str, Any]:
    """`compare` of the runs that each shape and mask names; `alone`: no peers, no ceilings, no cold L2."""
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
    results, readings = [], []
    for shape, causal, some in chosen:
        result, seen_there = _compare_shape(
            some, shape, causal, rounds, rng, gpu, clock, flush, progress, alone
        )
        results.append(result)
        readings.append(seen_there)
    every = [reading for of_shape in readings for of_entry in of_shape for reading in of_entry]
    usual = usual_mhz(every)
    for result, of_shape in zip(results, readings, strict=True):
        for entry, own in zip(result["entries"], of_shape, strict=True):
            entry["clocks"], entry["throttled"] = seen(own), throttled(own, usual)
    record = {
        "schema": artifact.SCHEMA,
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
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
    record = layout.rounded(record)
    artifact.validate(record, "the new artifact")
    return record


def _compare_shape(
    chosen: Sequence[Run],
    shape: Shape,
    causal: bool,
    rounds: int,
    rng: np.random.Generator,
    gpu: dict[str, Any],
    clock: "GpuClock",
    flush: Flush | None,
    progress: Progress,
    alone: bool,
) -> tuple[dict[str, Any], list[Any]]:
    """The results of one shape, and for each entry its sensor readings."""
    import cupy

    of = operation(chosen[0].stage)
    inputs = of.draw(shape, causal, rng)
    host = inputs.problem(inputs.arrays)
    with clock.stream:
        problem = inputs.problem({name: cupy.asarray(x) for name, x in inputs.arrays.items()})
    what = f"{shape}{' causal' if causal else ''}"
    progress.step(f"{what}: the right answer in float64")
    right = truth(of, inputs, rng)

    entries, absent = _stage_entries(chosen, problem, clock.stream, progress)
    if not alone and of is FORWARD:
        found, missing = peers.prepare(
            problem, clock.stream, lambda label: progress.step(f"{what}: preparing {label}")
        )
        entries, absent = entries + found, absent | missing
    cold = {}
    for entry in list(entries):
        progress.step(f"{what}: capturing {entry.label}")
        try:
            calibrate(entry, clock)
            entry.poison()
        except Exception as error:  # a peer may run and yet refuse to be captured; a stage may not
            if entry.kind == "stage":
                raise
            entries.remove(entry)
            absent[entry.label] = f"not captured in a CUDA graph: {type(error).__name__}: {error}"[:200]
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
            cold[entry.label] = pair

    progress.step(f"{what}: timing {len(entries)} entries, {rounds} rounds")
    samples = measure(
        entries,
        rounds,
        clock,
        lambda turn, turns, entry: progress.count(f"{what}: timing", turn, turns, entry.label),
    )
    cold_times = {}
    if flush:
        progress.step(f"{what}: timing with a cold L2")
        cold_times = dict(zip(cold, measure_cold(list(cold.values()), flush, clock), strict=True))
    progress.step(f"{what}: errors of the timed outputs, registers")
    capability = tuple(gpu["compute_capability"])
    device = Device(capability, gpu["sm_count"], gpu["max_sm_mhz"], gpu["bandwidth_gbs"])
    results = []
    for entry, times in zip(entries, samples, strict=True):
        outputs = entry.outputs() + (cold[entry.label].outputs()[:1] if entry.label in cold else [])
        judged = right.judge(outputs)
        results.append(_result(entry, host, times, cold_times.get(entry.label), judged, capability))
    result = {
        "shape": str(shape),
        "causal": causal,
        "scale": getattr(problem, "scale", None),
        "limits_us": limits_us(problem, device),
        "entries": results,
        "absent": absent,
    }
    artifact.derive(result)
    return result, [times.readings for times in samples]


def _stage_entries(
    chosen: Sequence[Run], problem: Any, stream: Any, progress: Progress
) -> tuple[list[Any], dict[str, str]]:
    entries, absent = [], {}
    for run in chosen:
        progress.step(f"compiling {run.label}")
        try:
            refuse(run.stage, problem)
        except UnsupportedError as error:
            absent[run.label] = str(error)
            continue
        entries.append(StageEntry(run, problem, stream))
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
