"""Attention with dropout, forward and backward, as operations: what their stages are checked and timed by."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.backward import bounds as backward
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.dropout import bounds, oracle
from flashcore_numba.branches.dropout.cases import backward_cases, cases
from flashcore_numba.branches.dropout.dropout import Dropout
from flashcore_numba.branches.dropout.inputs import DropoutInputs, drawn
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.branches.dropout.properties import backward_properties, properties
from flashcore_numba.branches.dropout.truth import HeadTruth
from flashcore_numba.checks.bounds import expected, verdict
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.shapes import Shape

P = 0.1  # of what is counted and timed


def _draw(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
) -> DropoutInputs:
    return DropoutInputs(*shape.inputs(rng, element), causal=causal, dropout=drawn(rng, P))


def _draw_backward(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
) -> BackwardInputs:
    return oracle.backward_inputs(_draw(shape, causal, rng, element), rng)


def _stand_in(shape: Shape, causal: bool) -> DropoutProblem:
    return DropoutProblem(*shape.untouched(), causal, dropout=Dropout(P))


def _stand_in_backward(shape: Shape, causal: bool) -> BackwardProblem:
    forward = _stand_in(shape, causal)
    out = np.empty((*forward.q.shape[:3], shape.value_dim), FLOAT16.dtype)
    return BackwardProblem(forward, out, np.empty(out.shape[:3], np.float32), out)


def _truth(x: DropoutInputs, rng: np.random.Generator) -> HeadTruth:
    return HeadTruth(DROPOUT, x, rng)


def _backward_truth(x: BackwardInputs, rng: np.random.Generator) -> HeadTruth:
    return HeadTruth(DROPOUT_BACKWARD, x, rng)


def _ladder() -> Sequence[Any]:
    """By name, because its stages import this module."""
    return import_module("flashcore_numba.branches.dropout.ladder").FORWARD


def _backward_ladder() -> Sequence[Any]:
    return import_module("flashcore_numba.branches.dropout.ladder").BACKWARD


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stages needs them."""
    return import_module("flashcore_numba.branches.dropout.mutants").FORWARD


def _backward_mutants() -> Sequence[Any]:
    return import_module("flashcore_numba.branches.dropout.mutants").BACKWARD


def _caller(problem: DropoutProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the ladder."""
    call = import_module("flashcore_numba.branches.dropout.call").attention_dropout
    p, options = problem, _options(problem) | {"stage": stage, "out": outputs[OUT.name]}
    return lambda: call(p.q, p.k, p.v, **options)


def _backward_caller(problem: BackwardProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    call = import_module("flashcore_numba.branches.dropout.call").attention_dropout_backward
    p, options = problem, _options(problem.forward) | {"stage": stage, "dlse": problem.dlse} | dict(outputs)
    return lambda: call(p.dout, p.q, p.k, p.v, p.out, p.lse, **options)


def _options(problem: Any) -> dict[str, Any]:
    d = problem.dropout
    return {"p": d.p, "seed": d.seed, "offset": d.offset, "causal": problem.causal, "scale": problem.scale}


DROPOUT = Operation(
    name="dropout",
    outputs=(OUT, LSE),
    draw=_draw,
    reference=bounds.reference,
    expected=expected,
    judge=verdict,
    cases=cases,
    properties=properties,
    truth=_truth,
    caller=_caller,
    ladder=_ladder,
    mutants=_mutants,
    stand_in=_stand_in,
)
DROPOUT_BACKWARD = Operation(
    name="dropout_backward",
    outputs=GRADIENTS,
    draw=_draw_backward,
    reference=bounds.gradient_reference,
    expected=backward.expected,
    judge=backward.judge,
    cases=backward_cases,
    properties=backward_properties,
    truth=_backward_truth,
    caller=_backward_caller,
    ladder=_backward_ladder,
    borrowed=BACKWARD.ladder,
    mutants=_backward_mutants,
    stand_in=_stand_in_backward,
)
