"""The forward pass as an operation: what the spine computes, and what any stage without an operation does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flashcore_numba.attention import attention
from flashcore_numba.checks import bounds
from flashcore_numba.checks.cases import cases
from flashcore_numba.checks.diagnose import explain
from flashcore_numba.checks.properties import properties
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.checks.truth import Truth
from flashcore_numba.core.operation import Operation, Verdict
from flashcore_numba.core.output import LSE, OUT, Output
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.stages import Stage
from flashcore_numba.stages.ladder import LADDER


def _draw(shape: Shape, causal: bool, rng: np.random.Generator) -> Inputs:
    return Inputs(*shape.inputs(rng), causal=causal)


def _reference(x: Inputs) -> bounds.Reference:
    return bounds.reference(x.q, x.k, x.v, x.causal, x.scale)


def _explain(x: Inputs, output: Output, value: np.ndarray, ref: bounds.Reference, verdict: Verdict) -> str:
    return explain(x, value, ref, verdict) if output is OUT else ""


def _truth(x: Inputs, rng: np.random.Generator) -> Truth:
    return Truth(FORWARD, x, rng)


def _caller(problem: Problem, stage: Stage, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    p, out = problem, outputs[OUT.name]

    def call() -> None:
        attention(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=stage, out=out)

    return call


FORWARD = Operation(
    name="forward",
    outputs=(OUT, LSE),
    draw=_draw,
    reference=_reference,
    expected=bounds.expected,
    judge=bounds.verdict,
    cases=cases,
    properties=properties,
    explain=_explain,
    truth=_truth,
    caller=_caller,
    ladder=lambda: LADDER,
)


def operation(stage: Stage) -> Operation:
    """What a stage computes."""
    return stage.operation or FORWARD
