"""What every public call does around a stage: take arrays in, refuse, allocate, run where the arrays are."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cuda_reference.driver import Allowed
from cuda_reference.extras import explained
from cuda_reference.shown import shown
from flashcore_numba.core import gpu
from flashcore_numba.core.arrays import Adopted, adopt, empty_like, overlap
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.features import CALLED
from flashcore_numba.core.output import Output
from flashcore_numba.core.problem import check_layout, checked_time_limit, listed, rows_aligned
from flashcore_numba.run import plans

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage


def adopted(array: Any, name: str, packed: bool) -> Adopted:
    """With a view [B, H, S, D]; packed: of an array [total, H, D]. Raises ArgumentError."""
    found = adopt(array, name)
    if not packed:
        return found
    if found.view.ndim != 3:
        shape = tuple(found.view.shape)
        raise ArgumentError(f"{name} has shape {shape}: three dimensions are needed, [total, heads, D]")
    if 0 in found.view.shape[:2]:
        raise ArgumentError(f"{name} has shape {tuple(found.view.shape)}: it must have rows and heads")
    check_layout(name, found.view, ("row", "head"))
    return replace(found, view=found.view.swapaxes(0, 1)[None])


def allocate(like: Adopted, shape: tuple[int, ...], dtype: Any, packed: bool) -> Adopted:
    """Memory of the caller's kind for an output whose view is [B, H, S, D], or [B, H, S] with one number per
    row; packed: it is [total, H, D], or [H, total].
    """
    if not packed:
        return empty_like(like, shape, dtype)
    if len(shape) == 3:
        made = empty_like(like, shape[1:], dtype)
        return replace(made, view=made.view[None])
    _, heads, rows, columns = shape
    made = empty_like(like, (rows, heads, columns), dtype)
    return replace(made, view=made.view.swapaxes(0, 1)[None])


def check_given(name: str, bounds: Any) -> None:
    """Raise ArgumentError where a call of packed sequences was not told where they begin."""
    if bounds is None:
        raise ArgumentError(f"{name} is None: it must say where each sequence begins, int32 [B + 1]")


def told(window: Any, softcap: Any) -> tuple:
    """Both, and the types of the sides of a window: for the options of `plans.find`."""
    return window, softcap, *(map(type, window) if isinstance(window, tuple) else ())


def check_limit_of_time(seconds: float | None, q: Any) -> None:
    """Raise ArgumentError for a bad `time_limit`, and for any where the call does not wait for its work."""
    if checked_time_limit(seconds) is not None and not isinstance(q, np.ndarray):
        raise ArgumentError(
            f"time_limit is {shown(seconds)} for arrays on a GPU: the call does not wait for its "
            "work; only host arrays take one"
        )


def as_packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The caller's shape or strides, of [total, H, D] or [H, total], of those of a view [1, H, total, D] or
    [1, H, total].
    """
    return (shape[2], shape[1], shape[3]) if len(shape) == 4 else shape[1:]


def check_packed_shape(name: str, view: Any, needed: tuple[int, ...]) -> None:
    """Raise ArgumentError, which has the caller's shapes, unless the view of a packed array has this one."""
    if (found := tuple(view.shape)) != needed:
        raise ArgumentError(f"{name} has shape {as_packed(found)}: it must be {as_packed(needed)} here")


def check_target(
    name: str, target: Any, output: Output, problem: Any, inputs: Mapping[str, Any], packed: bool
) -> None:
    """Raise ArgumentError unless `output` of the problem can be written to `target`, called `name`.

    packed: messages give shapes and strides as the caller has them.
    """
    packed = packed and output.axes[0] == "b"  # pools are as the caller has them
    if target.dtype != output.dtype(problem):
        accepted = output.dtype(problem).name
        raise ArgumentError(f"{name} has dtype {str(target.dtype)[:100]}: only {accepted} is accepted")
    found, needed = tuple(target.shape), output.shape(problem)
    if found != needed:
        if packed:
            found, needed = as_packed(found), as_packed(needed)
        raise ArgumentError(f"{name} has shape {found}: it must be {needed}, {output.described}")
    if isinstance(target, np.ndarray) and not target.flags.writeable:
        raise ArgumentError(f"{name} is read-only: a writeable array is needed")
    check_layout(name, target)
    strides = as_packed(target.strides) if packed else target.strides
    if not rows_aligned(target):
        raise ArgumentError(
            f"{name} has strides {strides} bytes or an odd address: each row must start at a "
            "multiple of 16 bytes"
        )
    if _overlaps_itself(target):
        raise ArgumentError(
            f"{name} has strides {strides} bytes: its rows share memory, and each needs its own"
        )
    for other, array in inputs.items():
        if overlap(target, array):
            called = CALLED.get(other, other)
            raise ArgumentError(f"{name} overlaps {called} in memory: it must be memory of its own")


def _overlaps_itself(array: Any) -> bool:
    """Whether the strides fail to nest, smallest to largest, as those of any slice of a buffer do."""
    used = 0
    for step, size in sorted(
        (step, size) for size, step in zip(array.shape, array.strides, strict=True) if size > 1
    ):
        if step < max(used, 1):
            return True
        used = step * size
    return False


def find_stage(selector: Any) -> "Stage":
    """`stages.find.find`. Raises MissingPackageError where Numba is not installed."""
    with explained():
        from flashcore_numba.stages.find import find

    return find(selector)


# Stages and executors bring Numba, which takes a second to import: only a call needs them.
def spine() -> "tuple[Stage, ...]":
    """The ladder of the forward pass."""
    from flashcore_numba.stages import LADDER

    return LADDER


def refuse(stage: "Stage", problem: Any, outputs: tuple[Output, ...] = ()) -> None:
    """Raise UnsupportedError, naming the stage, its limit and a stage that can, unless the stage serves the
    problem.

    outputs: what is wanted beside the outputs that are always written.
    """
    limit = limit_of(stage, problem, outputs)
    if limit is None:
        return
    ladder = spine() if stage.operation is None else stage.operation.ladder()
    able = [other.label for other in ladder if limit_of(other, problem, outputs) is None]
    advice = f"stage {able[0]} can" if able else "no stage of the ladder can"
    raise UnsupportedError(f"stage {stage.label} {limit}; {advice}")


def first_that_serves(
    ranked: "Sequence[Stage]", ladder: "Sequence[Stage]", problem: Any, outputs: tuple[Output, ...] = ()
) -> "Stage":
    """The first of `ranked` that serves the problem on this machine.

    Raises UnsupportedError when none does; a stage of the ladder that is not ranked must be named to run.
    """
    for stage in ranked:
        if limit_of(stage, problem, outputs) is None:
            return stage
    reasons = {stage: limit_of(stage, problem, outputs) for stage in ladder}
    for stage, reason in reasons.items():
        if reason is None:
            raise UnsupportedError(
                f"no stage with recorded times serves {problem.shape_label}: "
                f"name one, stage {stage.label} can"
            )
    alike: dict[str | None, list[str]] = {}
    for stage, reason in reasons.items():
        alike.setdefault(reason, []).append(stage.label)
    limits = "; ".join(
        f"{'each of ' if labels[1:] else ''}{listed(labels)} {reason}" for reason, labels in alike.items()
    )
    raise UnsupportedError(f"no stage of the ladder serves {problem.shape_label}: {limits}")


def limit_of(stage: "Stage", problem: Any, outputs: tuple[Output, ...] = ()) -> str | None:
    """What keeps a stage from serving a problem here, to be read after its name; None when nothing does."""
    reason = stage.why_not(problem, outputs)
    if reason is not None:
        return reason
    if not problem.on_gpu:
        from flashcore_numba.run.executor import why_not_simulated

        reason = why_not_simulated(stage.language)
        return None if reason is None else f"cannot run on host arrays here ({reason})"
    device = problem.q.device.id
    capability, room = gpu.compute_capability(device), gpu.shared_limit(device)
    reason = None if capability is None else stage.why_not_on(capability)
    return reason or (stage.why_not_in(room, problem.head_dim, stage.called) if room else None)


class Written(NamedTuple):
    """What a call writes, and how its arrays are: outputs, in the order in which they are returned, and those
    that the caller gave, by name; packed: [total, H, D]. in_place: of those that are an input, which one.
    apart: beside the inputs, what they must not overlap.
    """

    outputs: Sequence[Output]
    targets: Mapping[str, Adopted]
    packed: bool
    in_place: Mapping[str, str] = MappingProxyType({})
    apart: Mapping[str, Adopted] = MappingProxyType({})


def run(
    stage: "Stage",
    variant: str | None,
    problem: Any,
    inputs: Mapping[str, Adopted],
    written: Written,
    time_limit: float | None,
    key: tuple | None,
    order: Sequence[str],
) -> tuple[Any, ...]:
    """Run a stage on a problem of checked `inputs` where they are, and return the outputs.

    What it returns is of the caller's kind. A plan of the call is kept under `key`, where there is one.
    order: the names of the arrays that `plans.find` was given. Raises ArgumentError, before anything is
    written, for a target that cannot be written to, or that overlaps another or an input.
    """
    outputs, targets, packed, in_place, also = written
    views = {name: each.view for name, each in inputs.items()}
    for each in outputs:
        if each.name in targets:
            others = views | {name: x.view for name, x in (*also.items(), *targets.items())}
            apart = {
                name: x for name, x in others.items() if name not in (each.name, in_place.get(each.name))
            }
            check_target(each.name, targets[each.name].view, each, problem, apart, packed)
    like = inputs["q"]
    given_by_caller = (*views.values(), *(each.view for each in also.values()))
    with executor_for(like, given_by_caller, time_limit) as executor:
        results = {}
        for each in outputs:
            shape, dtype = each.shape(problem), each.dtype(problem)
            results[each.name] = targets.get(each.name) or allocate(like, shape, dtype, packed)
        given = {name: each.view for name, each in results.items()}
        aligned = problem.with_aligned_rows()
        # A plan launches on the caller's own arrays, so none is kept of a call whose rows were copied.
        if key is None or aligned is not problem or not stage.kernels.planned:
            stage.launch(aligned, executor=executor, variant=variant, **given)
        else:
            recorder = plans.Recorder(executor, problem)
            stage.launch(recorder.problem, executor=recorder, variant=variant, **given)
            plans.keep(key, recorder.plan(order, {**inputs, **also}, results, targets, in_place))
        if problem.on_gpu:
            made = () if like.kind == "PyTorch" else tuple(results.values())  # its graphs have own memory
            executor.done(*made, None if aligned is problem else aligned)
    return tuple(each.source for each in results.values())


@contextmanager
def executor_for(like: Adopted, inputs: Sequence[Any], time_limit: float | None) -> Iterator[Any]:
    """The simulator for host arrays; for GPU arrays their device and the caller's current stream.

    inputs: arrays whose NaN and infinities explain those that the simulator sees.
    """
    from flashcore_numba.run.executor import Gpu, Simulator

    if isinstance(like.view, np.ndarray):
        simulator = Simulator() if time_limit is None else Simulator(time_limit=time_limit)
        yield simulator
        _raise_what_was_found(simulator, inputs)
        return
    import cupy

    device = like.view.device.id
    with cupy.cuda.Device(device), Allowed():
        if like.kind != "PyTorch":
            yield Gpu()
            return
        with plans.torchs_stream(device) as stream:
            yield Gpu(stream)


def _raise_what_was_found(simulator: Any, inputs: Sequence[Any]) -> None:
    """Raise SimulationError, unless all that was found are NaNs that follow from what the caller passed."""
    kinds = {found.kind for launch in simulator.launches for found in launch.problems}
    if kinds != {"not a number"} or all(np.isfinite(x).all() for x in inputs):
        simulator.check()
