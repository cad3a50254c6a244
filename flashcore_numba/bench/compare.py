"""`flashcore compare` on a GPU: stages and peers, interleaved, with both clocks, into one artifact."""

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.attention import refuse
from flashcore_numba.problem import Problem, UnsupportedError
from flashcore_numba.stages import Stage

from . import artifact, environment, peers
from .entries import StageEntry, runs
from .limits import Device, limits_us
from .progress import Progress
from .registers import like, registers
from .sensors import Sensors
from .shapes import Shape
from .stats import summary
from .timing import calibrate, measure
from .truth import Truth

__all__ = ["ROUNDS", "compare"]

ROUNDS = 20


def compare(
    stages: Sequence[Stage], shapes: Sequence[tuple[Shape, bool]], rounds: int, progress: Progress
) -> dict[str, Any]:
    """Time every run of `stages` and every peer on each (shape, causal), and return the artifact.

    Inputs are fresh random numbers; their seed is in the artifact. Needs CuPy and a GPU.
    """
    import cupy

    from .clock import GpuClock

    device = cupy.cuda.Device()
    gpu, sensors = environment.gpu(), Sensors(device.pci_bus_id)
    stream = cupy.cuda.Stream(non_blocking=True)
    seed = secrets.randbits(32)
    rng = np.random.default_rng(seed)
    commit, dirty = environment.commit()
    clock = GpuClock(stream, sensors)
    results = [
        _compare_shape(stages, shape, causal, rounds, rng, gpu, clock, progress) for shape, causal in shapes
    ]
    record = {
        "schema": artifact.SCHEMA,
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
        "gpu": gpu,
        "packages": environment.packages(),
        "rounds": rounds,
        "l2": "warm",
        "seed": seed,
        "clocks": sensors.seen(),
        "clocks_why_not": sensors.why_not,
        "shapes": results,
    }
    artifact.validate(record, "the new artifact")
    return record


def _compare_shape(stages, shape, causal, rounds, rng, gpu, clock, progress):
    import cupy

    host = shape.inputs(rng)
    with clock.stream:
        problem = Problem(*(cupy.asarray(x) for x in host), causal=causal)
    what = f"{shape}{' causal' if causal else ''}"
    progress.step(f"{what}: the right answer in float64")
    truth = Truth(*host, causal, problem.scale, rng)

    entries, absent = _stage_entries(stages, problem, clock.stream, progress)
    found, missing = peers.prepare(
        problem, clock.stream, lambda label: progress.step(f"{what}: preparing {label}")
    )
    entries, absent = entries + found, absent | missing
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

    progress.step(f"{what}: timing {len(entries)} entries, {rounds} rounds")
    samples = measure(
        entries,
        rounds,
        clock,
        lambda turn, turns, entry: progress.count(f"{what}: timing", turn, turns, entry.label),
    )
    progress.step(f"{what}: errors of the timed outputs, registers")
    capability = tuple(gpu["compute_capability"])
    device = Device(capability, gpu["sm_count"], gpu["max_sm_mhz"], gpu["bandwidth_gbs"])
    result = {
        "shape": str(shape),
        "causal": causal,
        "scale": problem.scale,
        "limits_us": limits_us(problem, device),
        "entries": [
            _result(entry, times, truth, capability) for entry, times in zip(entries, samples, strict=True)
        ],
        "absent": absent,
    }
    artifact.derive(result)
    return result


def _stage_entries(stages, problem, stream, progress):
    entries, absent = [], {}
    for run in runs(stages):
        progress.step(f"compiling {run.label}")
        try:
            refuse(run.stage, problem)
        except UnsupportedError as error:
            absent[run.label] = str(error)
            continue
        entries.append(StageEntry(run, problem, stream))
    return entries, absent


def _result(entry, samples, truth, capability):
    run = getattr(entry, "run", None)
    return {
        "label": entry.label,
        "kind": entry.kind,
        "stage": run.stage.number if run else None,
        "variant": run.variant if run else None,
        "default": run.is_default if run else True,
        "unit": run.unit if run else "tensor",
        "launches": entry.launches,
        "rounds": samples.rounds,
        "gpu_us": summary(samples.gpu_us),
        "caller_us": summary(samples.caller_us) if samples.caller_us else None,
        "error": truth.judge(entry.outputs()),
        "resources": registers(run, like(run.stage, entry.problem), capability) if run else None,
    }
