"""Times on a GPU: a candidate beside its parent and the stage, in turns, stopped where it does not end."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.course.lessons import find
from flashcore_numba.course.spec import Key, Lesson
from flashcore_numba.evolve import source
from flashcore_numba.evolve.floor import too_fast
from flashcore_numba.measure.stats import ratio_interval
from flashcore_numba.predict.limits import Device
from flashcore_numba.records import environment
from flashcore_numba.run.progress import Progress
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.stages import edited
from flashcore_numba.stages.runs import Run
from flashcore_numba.stages.stage import Stage
from flashcore_numba.tune.timing import apart

ROUNDS = 20
SECONDS = 120.0  # for inputs, their right answer, three kernels and their rounds, of each shape
STAGE, PARENT, CHILD = "stage", "parent", "candidate"
BASIS = "time on the GPU: the stage's over the candidate's, at the lower end of its 95 % interval"


def clock(lesson: Lesson, shapes: Sequence[str] = ("mission",)) -> Callable[[str, str], dict[str, Any]]:
    """What times a candidate of the lesson: a function of its region and its parent's.

    It returns `right`, and then `fitness`, the geometric mean over the shapes of the lower ends of the
    intervals of the stage's time over the candidate's; `of_parent`, the same with the parent's time; and
    `rounds_us` by shape and kernel. Where a kernel fails, does not end or is wrong, `right` is False and
    `failed` says which.
    """
    return partial(_judged, lesson.key, tuple(shapes))


def _judged(key: Key, shapes: tuple[str, ...], child: str, parent: str) -> dict[str, Any]:
    rounds: dict[str, dict[str, list[float]]] = {}
    for shape in shapes:
        found = apart(measured, (key, shape, {PARENT: parent, CHILD: child}, ROUNDS), SECONDS)
        if found is None:
            return {"right": False, "failed": f"at {shape} it does not end, or takes its process down."}
        for name in (CHILD, PARENT, STAGE):
            if (failed := found[name].get("failed")) is not None:
                beside = "" if name == CHILD else f"the {name} that is timed beside it: "
                return {"right": False, "failed": f"at {shape} {beside}{failed}"}
        rounds[shape] = {name: each["rounds_us"] for name, each in found.items()}
    lows = {over: [_low(each[over], each[CHILD]) for each in rounds.values()] for over in (STAGE, PARENT)}
    return {
        "right": True,
        "basis": BASIS,
        "fitness": _mean(lows[STAGE]),
        "of_parent": _mean(lows[PARENT]),
        "rounds_us": rounds,
    }


def _low(over: Sequence[float], under: Sequence[float]) -> float:
    return ratio_interval(over, under)["low"]


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def measured(key: Key, shape: str, regions: Mapping[str, str], rounds: int) -> dict[str, dict[str, Any]]:
    """`rounds_us` of the stage and of each region in its place, or `failed`. Needs a GPU."""
    from flashcore_numba.measure.compare import timed

    exercise = find(str(key)).exercise
    with ExitStack() as stack:
        stages = {STAGE: edited.original(exercise.stage)}
        for name, region in regions.items():
            _, text = source.whole(find(str(key)), region)
            stages[name] = stack.enter_context(edited.loaded(exercise.stage, {exercise.file: text}))
        runs = {name: _alone(stage, exercise.variant, name) for name, stage in stages.items()}
        workload = Workload(parse_any(shape), False)
        quiet = Progress(Console(quiet=True))
        made = timed([([workload], list(runs.values()))], rounds, quiet, alone=True)["shapes"][0]
    by_label = {entry["label"]: entry for entry in made["entries"]}
    found: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        entry = by_label.get(run.label)
        if entry is None:
            found[name] = {"failed": f"it did not run: {made['absent'].get(run.label, 'no reason is known')}"}
        elif not entry["error"]["right"]:
            found[name] = {"failed": "its timed output is wrong."}
        elif name == CHILD and (refused := _too_fast(entry, stages[STAGE], workload)) is not None:
            found[name] = {"failed": f"its time is impossible. {refused}"}
        else:
            found[name] = {"rounds_us": entry["gpu_us"]["rounds_us"]}
    return found


def _alone(stage: Stage, variant: str | None, name: str) -> Run:
    """The stage by another name, with this variant alone, which labels then leave out; None: its default."""
    variant = variant or stage.default_variant
    variants = {key: words for key, words in stage.variants.items() if key == variant}
    return Run(replace(stage, name=name, variants=variants, default=variant), variant)


def _too_fast(entry: Mapping[str, Any], stage: Stage, workload: Workload) -> str | None:
    here = environment.gpu()
    device = Device(
        tuple(here["compute_capability"]), here["sm_count"], here["max_sm_mhz"], here["bandwidth_gbs"]
    )
    return too_fast(entry["gpu_us"]["p50"], stand_in_for(stage, workload.shape), device, stage.kernels.unit)
