"""An input that kills a wrong kernel: right where the stage is right, and wrong only there."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.find import find
from flashcore_numba.checks.forward import operation
from flashcore_numba.checks.trial import Failed, Inputs, Trial
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import Problem
from flashcore_numba.course.spec import Given, Lesson
from flashcore_numba.stages import Stage
from flashcore_numba.stages.edited import edited

MOST = (1, 2, 256, 128)  # batch, heads, rows or keys, head dimension


@dataclass(frozen=True)
class Outcome:
    """killed: the stage is right on the input and the given kernel is not. sentences: why, for the reader."""

    killed: bool
    sentences: tuple[str, ...]


def kill(lesson: Lesson, given: Given, q: Any, k: Any, v: Any, causal: bool = False) -> Outcome:
    """Run the lesson's stage and the given kernel on one input, on the simulator.

    Arrays as `Session.kill`. Raises ArgumentError for arrays that are too large, not finite or do not fit.
    """
    inputs: Any = Inputs(_array("q", q), _array("k", k), _array("v", v), bool(causal))
    Problem(inputs.q, inputs.k, inputs.v, causal)
    stage, variant = find(lesson.exercise.stage), lesson.exercise.variant
    if stage.operation is BACKWARD:  # with an ordinary gradient of the output, the same for every input
        inputs = backward_inputs(inputs, np.random.default_rng(0))
    truth = operation(stage).reference(inputs)
    if wrong := _wrong(stage, variant, inputs, truth):
        return Outcome(
            False,
            (
                f"Stage {stage.label} itself is not right on this input, so it kills nothing: {wrong}",
                "An input kills when the right kernel passes on it.",
            ),
        )
    with edited(lesson.exercise.stage, *given.edits) as wrong_stage:
        found = _wrong(wrong_stage, variant, inputs, truth)
    if not found:
        return Outcome(
            False,
            (
                f"It is right on {inputs.label}, within the error bound. Its author: {given.story}",
                *given.hints[:1],
            ),
        )
    return Outcome(
        True, (found, f"Stage {stage.label} is right on the same input. Its author: {given.story}")
    )


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name}: {type(value).__name__} is no array of numbers") from None
    if array.ndim == 2:
        array = array[None, None]
    if array.ndim != 4:
        raise ArgumentError(f"{name}: shape {array.shape}; [B, H, S, D] or [S, D] is accepted")
    if any(size > most for size, most in zip(array.shape, MOST, strict=True)):
        most = "x".join(map(str, MOST))
        raise ArgumentError(f"{name}: shape {array.shape}; at most {most} is accepted, a small input must do")
    rounded = FLOAT16.round(array)
    if not np.isfinite(rounded).all():
        raise ArgumentError(
            f"{name}: holds NaN, an infinity, or a number beyond {FLOAT16.largest:.0f}, the largest of "
            f"{FLOAT16.name}; the input itself must be finite"
        )
    return rounded


def _wrong(stage: Stage, variant: str | None, inputs: Any, truth: Any) -> str:
    """What is wrong with a stage's answer, in a sentence; empty when it is right."""
    try:
        answer = Trial(stage, variant)(inputs)
    except Failed as failed:
        return failed.text
    for output in stage.outputs:
        verdict = operation(stage).judge(output, getattr(answer, output.name), truth, None)
        if not verdict.passed:
            at = ", ".join(map(str, verdict.where))
            return (
                f"{output.symbol}: {verdict.reason}; at [{at}] it is off by {verdict.error:.3g}, and "
                f"{verdict.bound:.3g} is allowed."
            )
    return ""
