"""Attention in 8 bits as an operation: what its stages are checked, counted and timed by."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.fp8 import bounds
from flashcore_numba.branches.fp8.cases import cases
from flashcore_numba.branches.fp8.inputs import Fp8Inputs
from flashcore_numba.branches.fp8.problem import Fp8Problem
from flashcore_numba.branches.fp8.properties import properties
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.checks.truth import Truth
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape


def _draw(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
    tokens: int | None = None,
) -> Fp8Inputs:
    q, k, v = shape.inputs(rng, element)
    if tokens is not None:
        q = shape.queries(rng, tokens, element)
    return Fp8Inputs(q, k, v, causal=causal)


def _stand_in(shape: Shape, causal: bool) -> Fp8Problem:
    return Fp8Problem(*shape.untouched(), causal)


def _truth(x: Inputs, rng: np.random.Generator) -> Truth:
    return Truth(FP8, x, rng)


def _ladder() -> Sequence[Any]:
    """By name, because its stages import this module."""
    return import_module("flashcore_numba.branches.fp8.ladder").LADDER


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stages needs them."""
    return import_module("flashcore_numba.branches.fp8.mutants").MUTANTS


def _caller(problem: Problem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the ladder."""
    call = import_module("flashcore_numba.branches.fp8.call").attention_fp8
    p, out = problem, outputs[OUT.name]
    return lambda: call(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=stage, out=out)


def _peers() -> Mapping[str, Any]:
    """By name, because only a measurement needs them."""
    return import_module("flashcore_numba.branches.fp8.peers").PEERS


FP8 = Operation(
    name="fp8",
    outputs=(OUT, LSE),
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
    peers=_peers,
    choices=("tokens",),
)
