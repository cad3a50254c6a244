"""The backward pass as an operation: what its stages are checked, counted and timed by."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.backward import bounds
from flashcore_numba.branches.backward.cases import cases
from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.peers import PEERS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.backward.properties import properties
from flashcore_numba.branches.backward.truth import HeadTruth
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape


def _draw(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
    features: Features = OFF,
) -> BackwardInputs:
    return backward_inputs(Inputs(*shape.inputs(rng, element), causal=causal, features=features), rng)


def _stand_in(shape: Shape, causal: bool) -> BackwardProblem:
    q, k, v = shape.untouched()
    out = np.empty((*q.shape[:3], shape.value_dim), FLOAT16.dtype)
    return BackwardProblem(Problem(q, k, v, causal), out, np.empty(q.shape[:3], np.float32), out)


def _truth(x: BackwardInputs, rng: np.random.Generator) -> HeadTruth:
    return HeadTruth(BACKWARD, x, rng)


def _ladder() -> Sequence[Any]:
    """By name, because its stages import this module."""
    return import_module("flashcore_numba.branches.backward.ladder").LADDER


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stages needs them."""
    return import_module("flashcore_numba.branches.backward.mutants").MUTANTS


def _caller(problem: BackwardProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the ladder."""
    call = import_module("flashcore_numba.branches.backward.call")
    p, given = problem, problem.features
    arrays = {name: getattr(p, name) for name in ("dout", "q", "k", "v", "out")} | dict(outputs)
    options = {"window": given.window, "softcap": given.softcap, "causal": p.causal, "scale": p.scale}
    options |= given.arrays | {"lse": p.lse, "dlse": p.dlse, "stage": stage}
    if not given.ragged:
        return lambda: call.attention_backward(**arrays, **options)
    packed = {name: x[0].swapaxes(0, 1) for name, x in arrays.items()}
    options |= {name: x[0] for name, x in (("lse", p.lse), ("dlse", p.dlse)) if x is not None}
    return lambda: call.attention_varlen_backward(**packed, **options)


BACKWARD = Operation(
    name="backward",
    outputs=GRADIENTS,
    draw=_draw,
    reference=bounds.reference,
    expected=bounds.expected,
    judge=bounds.judge,
    cases=cases,
    properties=properties,
    truth=_truth,
    caller=_caller,
    ladder=_ladder,
    mutants=_mutants,
    stand_in=_stand_in,
    peers=lambda: PEERS,
)
