"""Attention with the norm after it as an operation: what its stage is checked, counted and timed by."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.epilogue import bounds
from flashcore_numba.branches.epilogue.cases import cases
from flashcore_numba.branches.epilogue.inputs import EpilogueInputs, drawn
from flashcore_numba.branches.epilogue.outputs import WRITTEN
from flashcore_numba.branches.epilogue.problem import EpilogueProblem
from flashcore_numba.branches.epilogue.properties import properties
from flashcore_numba.core.element import BFLOAT16, FLOAT16, Element
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.shapes import Shape


def _draw(shape: Shape, causal: bool, rng: np.random.Generator, element: Element = FLOAT16) -> EpilogueInputs:
    sizes = (shape.batch, shape.heads, shape.seq, shape.seq, shape.head_dim)
    return drawn(rng, *sizes, kv_heads=shape.kv_heads, element=element, causal=causal)


def _unread(shape: Shape, causal: bool, element: Element = FLOAT16, **options: Any) -> EpilogueProblem:
    columns = shape.heads * shape.head_dim
    q, k, _ = shape.untouched(element)
    residual, weight = np.empty((shape.batch, 1, shape.seq, columns), element.dtype), q.ravel()[:columns]
    given: dict[str, Any] = {"residual": residual, "weight": weight, "bias": weight} | options
    return EpilogueProblem(q, k, k, causal, **given)


def _also_compiled(shape: Shape, causal: bool) -> list[EpilogueProblem]:
    return [_unread(shape, causal, norm="rms"), _unread(shape, causal, BFLOAT16)]


def _ladder() -> Sequence[Any]:
    """By name, because its stage imports this module."""
    return (import_module("flashcore_numba.branches.epilogue.epilogue_norm").STAGE,)


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stage needs them."""
    return import_module("flashcore_numba.branches.epilogue.mutants").MUTANTS


def _peers() -> Mapping[str, Callable]:
    """By name, because they need PyTorch."""
    return import_module("flashcore_numba.branches.epilogue.peers").PEERS


def _caller(problem: EpilogueProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the stage."""
    call = import_module("flashcore_numba.branches.epilogue.call").attention_norm
    p, out = problem, outputs["out"][:, 0]
    residual = None if p.residual is None else p.residual[:, 0]
    options = {name: getattr(p, name) for name in ("norm", "eps", "causal", "scale")}
    return lambda: call(p.q, p.k, p.v, residual, p.weight, p.bias, stage=stage, out=out, **options)


EPILOGUE = Operation(
    name="epilogue",
    outputs=WRITTEN,
    draw=_draw,
    reference=bounds.reference,
    expected=bounds.expected,
    judge=bounds.judge,
    cases=cases,
    properties=properties,
    caller=_caller,
    ladder=_ladder,
    mutants=_mutants,
    stand_in=_unread,
    also_compiled=_also_compiled,
    peers=_peers,
)
