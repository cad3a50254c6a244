"""The step of a lesson on a GPU: the reader's kernel, the stage and those before it, timed in turns."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.truth import truth
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.evidence import MISSION
from flashcore_numba.course.spec import Lesson
from flashcore_numba.measure.entries import StageEntry
from flashcore_numba.measure.timing import calibrate, measure
from flashcore_numba.predict.limits import Device, limits_us, share_of_limit
from flashcore_numba.records import environment
from flashcore_numba.stages import Stage, edited
from flashcore_numba.stages.runs import Run, runs

YOURS = "your kernel"
ROUNDS = 10


def own_labels(lesson: Lesson) -> tuple[str, ...]:
    """The labels of the lesson's own stage: as it runs by default, last the variant that the reader writes.

    One label where these are the same; none for lesson 00 and for a warm-up, whose stages are on no ladder.
    """
    exercise, stage = lesson.exercise, edited.original(lesson.exercise.stage)
    if lesson.name or stage not in ladder_of(lesson):
        return ()
    written = exercise.variant or stage.default_variant
    return tuple(dict.fromkeys((stage.label, Run(stage, written).label)))


def ladder_of(lesson: Lesson) -> Sequence[Stage]:
    """The stages of what the lesson's stage computes."""
    return operation(edited.original(lesson.exercise.stage)).ladder()


def timed_labels(lesson: Lesson) -> list[str]:
    """The runs of the ladder that `time_answer` sets beside the reader's kernel."""
    own, known = own_labels(lesson), {run.label for run in runs(ladder_of(lesson))}
    labels = [*lesson.before, *own, *(() if own else lesson.after)]
    return [label for label in dict.fromkeys(labels) if label in known]


def time_answer(lesson: Lesson, stage: Stage | None) -> dict[str, Any]:
    """Time `stage`, the reader's own (None: it is left out), beside the runs of `timed_labels`.

    Fresh random inputs at the mission shape, GPU time of a launch in a CUDA graph, interleaved. Returns
    `where`, the GPU and the date, and `rows`: label, us (the median), share of the limit, the largest error
    of the timed output, right. Needs CuPy and a GPU.
    """
    import cupy

    from flashcore_numba.measure.clock import GpuClock

    rng = np.random.default_rng()
    of = operation(edited.original(lesson.exercise.stage))
    inputs = of.draw(parse(MISSION), False, rng)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        problem = inputs.problem({name: cupy.asarray(x) for name, x in inputs.arrays.items()})
    known = {run.label: run for run in runs(of.ladder())}
    entries = [StageEntry(known[label], problem, stream) for label in timed_labels(lesson)]
    if stage is not None:
        entries.append(StageEntry(Run(stage, lesson.exercise.variant), problem, stream))
        entries[-1].label = YOURS
    clock = GpuClock(stream)
    for entry in entries:
        calibrate(entry, clock)
        entry.poison()
        entry.call, entry.called = None, None  # only the GPU's time is asked for
    samples = measure(entries, ROUNDS, clock)
    right = truth(of, inputs, rng)
    gpu = environment.gpu()
    device = Device(
        tuple(gpu["compute_capability"]), gpu["sm_count"], gpu["max_sm_mhz"], gpu["bandwidth_gbs"]
    )
    limits = limits_us(problem, device)
    rows = []
    for entry, times in zip(entries, samples, strict=True):
        us, error = float(np.median(times.gpu_us)), right.judge(entry.outputs())
        share = share_of_limit(limits, entry.run.unit, us)
        rows.append(
            {"label": entry.label, "us": us, "share": share, "error": error["max"], "right": error["right"]}
        )
    return {"rows": rows, "where": f"{gpu['name']}, {environment.today()[:10]}"}
