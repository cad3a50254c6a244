"""The forward pass as an operation: what the spine computes, and what any stage without an operation does."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.attention import attention, attention_varlen
from flashcore_numba.checks import bounds
from flashcore_numba.checks.cases import cases
from flashcore_numba.checks.diagnose import explain
from flashcore_numba.checks.properties import properties
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.checks.truth import Truth
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Operation, Verdict
from flashcore_numba.core.output import LSE, OUT, Output
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.stages import Stage
from flashcore_numba.stages.ladder import LADDER


def _draw(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
    features: Features = OFF,
    tokens: int | None = None,
) -> Inputs:
    q, k, v = shape.inputs(rng, element)
    if tokens is not None:
        if features.ragged:
            raise ArgumentError(f"tokens={tokens}: the sequences of a ragged batch have as many rows as keys")
        q = shape.queries(rng, tokens, element)
    return Inputs(q, k, v, causal=causal, features=features)


def _reference(x: Inputs) -> bounds.Reference:
    return bounds.reference(x.q, x.k, x.v, x.causal, x.scale, x.features)


def _explain(x: Inputs, output: Output, value: np.ndarray, ref: bounds.Reference, verdict: Verdict) -> str:
    return explain(x, value, ref, verdict) if output is OUT else ""


def _truth(x: Inputs, rng: np.random.Generator) -> Truth:
    return Truth(FORWARD, x, rng)


def _caller(problem: Problem, stage: Stage, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    p, out, given = problem, outputs[OUT.name], problem.features
    if not given.names:

        def call() -> None:
            attention(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=stage, out=out)

        return call

    added: dict[str, Any] = {"window": given.window, "softcap": given.softcap} | given.arrays
    if given.prior:
        added["prior"] = added.pop("prior_out"), added.pop("prior_lse")
    if given.norm_weight is not None:
        added["head_norm"] = added.pop("norm_weight"), given.norm_eps

    def call_with() -> None:
        attention(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=stage, out=out, **added)

    if not given.ragged:
        return call_with
    q, k, v, packed = (x[0].swapaxes(0, 1) for x in (p.q, p.k, p.v, out))
    if given.gate is not None:
        added["gate"] = given.gate[0].swapaxes(0, 1)

    def call_packed() -> None:
        attention_varlen(q, k, v, causal=p.causal, scale=p.scale, stage=stage, out=packed, **added)

    return call_packed


def _peers() -> Mapping[str, Callable]:
    """By name, because what measures is above what checks."""
    return import_module("flashcore_numba.measure.peers").PEERS


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
    choices=("tokens",),
    peers=_peers,
)


def operation(stage: Stage) -> Operation:
    """What a stage computes."""
    return stage.operation or FORWARD


def common_operation(stages: Iterable[Stage]) -> Operation:
    """What all of these stages compute. Raises ArgumentError where that is not one operation."""
    labels: dict[Operation, list[str]] = {}
    for stage in stages:
        labels.setdefault(operation(stage), []).append(stage.label)
    if len(labels) > 1:
        named = "; ".join(f"{of.name}: {', '.join(some)}" for of, some in labels.items())
        raise ArgumentError(f"stages of one operation are accepted, not of {len(labels)} ({named})")
    return next(iter(labels), FORWARD)
