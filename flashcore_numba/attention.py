"""`attention()`: the one call that checks its arguments, chooses a stage and runs it where the arrays are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from cuda_reference.driver import Allowed
from cuda_reference.extras import explained
from cuda_reference.shown import shown
from flashcore_numba.core import gpu
from flashcore_numba.core.arrays import Adopted, adopt, empty_like, overlap, same_kind
from flashcore_numba.core.output import LSE
from flashcore_numba.core.problem import (
    ArgumentError,
    Problem,
    UnsupportedError,
    check_layout,
    check_time_limit,
    rows_aligned,
)
from flashcore_numba.run import plans
from flashcore_numba.stages.tuning.dispatch import ranking

if TYPE_CHECKING:
    from flashcore_numba.stages import Stage


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    scale: float | None = None,
    stage: "int | str | Stage | None" = None,
    out: Any = None,
    return_lse: bool = False,
    time_limit: float | None = None,
) -> Any:
    """softmax(scale * Q K^T) V (Vaswani et al. 2017, section 3.2.1) by one stage of the ladder.

    q: [B, H, S_q, D], k and v: [B, H_kv, S_k, D], float16, of one kind in one place: NumPy, CuPy, PyTorch,
    Numba device arrays, or anything with `__cuda_array_interface__` or `__dlpack__`; nothing is copied, save
    inputs whose rows do not start at a multiple of 16 bytes (one extra read and write of each). NumPy arrays
    and CPU tensors run on the simulator, which also reports races and bad accesses. See `Problem` for
    shapes, strides, `causal` and `scale`.

    stage: a number, a name or a `Stage`; None is the one that was fastest at the recorded problem most like
    this one, of those that serve it on this machine (`dispatch`; `flashcore dispatch` shows the table).
    out: where to write, of the same kind and shape as q; it may be strided like q, but must not overlap an
    input.
    return_lse: also return the log-sum-exp of the scaled scores, float32 [B, H, S_q], natural logarithm.
    time_limit: of host arrays, seconds after which the simulator stops a kernel; None lets it run to its end,
    which Ctrl-C may bring nearer. An endless loop that changes nothing is found without a limit. On a GPU the
    call does not wait for its work, so a limit is refused there.

    Returns out [B, H, S_q, D] float16, or (out, lse), of the caller's kind and on its device. A row that
    sees no key is zeros, its LSE -inf. On a GPU the work is queued on the caller's current stream (PyTorch's
    for tensors, otherwise CuPy's) and the call does not wait for it. The first call of a layout compiles and
    prepares the launches; later calls of the same layout only launch them (`run.plans`). Any call
    can be captured into a CUDA graph, the first one too: the kernels are its only nodes.

    A NaN or an infinity in an input is no error: the rows that see it hold what IEEE arithmetic makes of it,
    and so may rows whose mask hides it, because 0 * NaN is NaN.

    Raises ArgumentError for a bad argument and UnsupportedError when the stage does not serve the problem;
    then nothing has been written; MissingPackageError where Numba is not installed. Raises SimulationError,
    which names the line of the kernel, when the simulator saw a race, a bad access or a NaN made of finite
    inputs, or stopped at the time limit; what `out` holds then is not the answer.
    """
    options = (causal, scale, stage, return_lse)
    found = plans.find(q, k, v, out, options) if time_limit is None else plans.NOT_SERVED
    key, addresses, plan = found
    if plan is not None and (done := plan.run(addresses, q, out)) is not None:
        return done

    if not isinstance(return_lse, bool | np.bool_):
        raise ArgumentError(f"return_lse is {shown(return_lse)}: it must be True or False")
    chosen = None if stage is None else _find(stage)
    arrays = {"q": adopt(q, "q"), "k": adopt(k, "k"), "v": adopt(v, "v")}
    target = None if out is None else adopt(out, "out")
    same_kind(**arrays, out=target)
    if time_limit is not None:
        check_time_limit(time_limit)
        if not isinstance(arrays["q"].view, np.ndarray):
            raise ArgumentError(
                f"time_limit is {time_limit!r} for arrays on a GPU: the call does not wait for its work; "
                "only host arrays take one"
            )
    problem = Problem(**{name: array.view for name, array in arrays.items()}, causal=causal, scale=scale)
    if chosen is None:
        chosen = best_stage(problem, lse=return_lse)
    else:
        refuse(chosen, problem, lse=return_lse)
    if target is not None:
        _check_out(target.view, problem)

    like = arrays["q"]
    with _executor(like, problem, time_limit) as executor:
        result = target or empty_like(like, problem.q.shape, problem.element.dtype)
        lse = empty_like(like, problem.q.shape[:3], np.float32) if return_lse else None
        aligned = problem.with_aligned_rows()
        # A plan launches on the caller's own arrays, so none is kept of a call whose rows were copied.
        if key is None or plan is not None or aligned is not problem or not chosen.kernels.planned:
            chosen.launch(aligned, result.view, executor=executor, lse=lse and lse.view)
        else:
            recorder = plans.Recorder(executor, problem)
            chosen.launch(recorder.problem, result.view, executor=recorder, lse=lse and lse.view)
            plans.keep(key, recorder.plan(result.view, lse and lse.view, type(q)))
        if problem.on_gpu:
            made = () if like.kind == "PyTorch" else (result, lse)  # its graphs have memory of their own
            executor.done(*made, None if aligned is problem else aligned)
    return result.source if lse is None else (result.source, lse.source)


def refuse(stage: "Stage", problem: Problem, lse: bool = False) -> None:
    """Raise UnsupportedError, naming the stage, its limit and a stage that can, unless the stage serves the
    problem.

    `lse` says whether the log-sum-exp is wanted too.
    """
    limit = _limit(stage, problem, lse)
    if limit is None:
        return
    able = [other.label for other in _ladder() if _limit(other, problem, lse) is None]
    advice = f"stage {able[0]} can" if able else "no stage of the ladder can"
    raise UnsupportedError(f"stage {stage.label} {limit}; {advice}")


def best_stage(problem: Problem, lse: bool = False) -> "Stage":
    """The fastest stage, by the table of `dispatch`, that serves the problem on this machine.

    Raises UnsupportedError when none does; a stage without recorded times must be named to run.
    """
    capability = gpu.compute_capability(problem.q.device.id) if problem.on_gpu else None
    rows = problem.batch * problem.heads * problem.seq_q
    stages = {stage.number: stage for stage in _ladder()}
    for number in ranking(capability, problem.causal, problem.head_dim, rows, problem.seq_k):
        if number in stages and _limit(stages[number], problem, lse) is None:
            return stages[number]
    reasons = {stage: _limit(stage, problem, lse) for stage in stages.values()}
    for stage, reason in reasons.items():
        if reason is None:
            raise UnsupportedError(
                f"no stage with recorded times serves {problem.shape_label}: "
                f"name one, stage {stage.label} can"
            )
    limits = "; ".join(f"{stage.label} {reason}" for stage, reason in reasons.items())
    raise UnsupportedError(f"no stage of the ladder serves {problem.shape_label}: {limits}")


# Stages and executors bring Numba, which takes a second to import: only a call needs them.
def _ladder() -> "tuple[Stage, ...]":
    from flashcore_numba.stages import LADDER

    return LADDER


def _find(selector: Any) -> "Stage":
    with explained():
        from flashcore_numba.stages.find import find

    return find(selector)


def _limit(stage: "Stage", problem: Problem, lse: bool) -> str | None:
    """What keeps a stage from serving a problem, to be read after its name; None when nothing does."""
    reason = stage.why_not(problem, (LSE,) if lse else ())
    if reason is not None:
        return reason
    if not problem.on_gpu:
        from flashcore_numba.run.executor import why_not_simulated

        reason = why_not_simulated(stage.language)
        return None if reason is None else f"cannot run on host arrays here ({reason})"
    capability = gpu.compute_capability(problem.q.device.id)
    return None if capability is None else stage.why_not_on(capability)


def _check_out(out: Any, problem: Problem) -> None:
    if out.dtype != problem.element.dtype:
        raise ArgumentError(f"out has dtype {str(out.dtype)[:100]}: only {problem.element.name} is accepted")
    if out.shape != problem.q.shape:
        raise ArgumentError(
            f"out has shape {tuple(out.shape)}: it must be the shape of q, {tuple(problem.q.shape)}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ArgumentError("out is read-only: a writeable array is needed")
    check_layout("out", out)
    if not rows_aligned(out):
        raise ArgumentError(
            f"out has strides {out.strides} bytes or an odd address: each row must start at a "
            "multiple of 16 bytes"
        )
    if _overlaps_itself(out):
        raise ArgumentError(
            f"out has strides {out.strides} bytes: its rows share memory, and each needs its own"
        )
    for name in "qkv":
        if overlap(out, getattr(problem, name)):
            raise ArgumentError(f"out overlaps {name} in memory: it must be memory of its own")


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


def _raise_what_was_found(simulator: Any, problem: Problem) -> None:
    """Raise SimulationError, unless all that was found are NaNs that follow from what the caller passed."""
    kinds = {found.kind for launch in simulator.launches for found in launch.problems}
    if kinds != {"not a number"} or all(np.isfinite(x).all() for x in (problem.q, problem.k, problem.v)):
        simulator.check()


@contextmanager
def _executor(like: Adopted, problem: Problem, time_limit: float | None) -> Iterator[Any]:
    """The simulator for host arrays; for GPU arrays their device and the caller's current stream."""
    from flashcore_numba.run.executor import Gpu, Simulator

    if isinstance(like.view, np.ndarray):
        simulator = Simulator() if time_limit is None else Simulator(time_limit=time_limit)
        yield simulator
        _raise_what_was_found(simulator, problem)
        return
    import cupy

    device = like.view.device.id
    with cupy.cuda.Device(device), Allowed():
        if like.kind != "PyTorch":
            yield Gpu()
            return
        with plans.torchs_stream(device) as stream:
            yield Gpu(stream)
