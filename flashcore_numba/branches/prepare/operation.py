"""Norm, RoPE and the write into pages as an operation: what its stage is checked, counted and timed by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.prepare import oracle
from flashcore_numba.branches.prepare.cases import cases
from flashcore_numba.branches.prepare.inputs import PrepareInputs, drawn
from flashcore_numba.branches.prepare.outputs import WRITTEN
from flashcore_numba.branches.prepare.problem import PrepareProblem
from flashcore_numba.branches.prepare.properties import properties
from flashcore_numba.core.element import E4M3, FLOAT16, Element
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.shapes import Shape


def _draw(shape: Shape, causal: bool, rng: np.random.Generator, element: Element = FLOAT16) -> PrepareInputs:
    """B x S new tokens, which fill the pages: what is counted and timed is written everywhere. No mask."""
    tokens = shape.batch * shape.seq
    page = next(size for size in (16, 8, 4, 2, 1) if tokens % size == 0)
    sizes = (tokens, shape.heads, shape.kv_heads, shape.head_dim)
    return drawn(rng, *sizes, element=element, page=page, pages=tokens // page, positions=shape.seq)


def _stand_in(shape: Shape, causal: bool) -> PrepareProblem:
    tokens, d = shape.batch * shape.seq, shape.head_dim
    q, k, v = (
        np.empty((1, n, tokens, d), FLOAT16.dtype) for n in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    table, weight = np.empty((shape.seq, d // 2), np.float32), np.empty(d, np.float32)
    options: dict[str, Any] = {
        "cos": table,
        "sin": table,
        "norm_eps": 0.0,
        "q_weight": weight,
        "k_weight": weight,
    }
    return PrepareProblem(
        q, k, v, np.arange(tokens), tokens, 1, positions=np.zeros(tokens, np.int32), **options
    )


def _in_e4m3(shape: Shape, causal: bool) -> list[PrepareProblem]:
    return [replace(_stand_in(shape, causal), stored=E4M3.dtype)]


def _ladder() -> Sequence[Any]:
    """By name, because its stage imports this module."""
    return (import_module("flashcore_numba.branches.prepare.prepare_pages").STAGE,)


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stage needs them."""
    return import_module("flashcore_numba.branches.prepare.mutants").MUTANTS


def _caller(problem: PrepareProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the stage."""
    call = import_module("flashcore_numba.branches.prepare.call").write_kv_pages
    p = problem
    q, k, v, out = (x[0].swapaxes(0, 1) for x in (p.q, p.k, p.v, outputs["out"]))
    options = {name: getattr(p, name) for name in ("positions", "cos", "sin", "interleaved")}
    options |= {name: getattr(p, name) for name in ("norm_eps", "q_weight", "k_weight")}
    options |= {name: getattr(p, name) for name in ("k_scale", "v_scale")}
    pools = (outputs["k_pool"], outputs["v_pool"])
    return lambda: call(q, k, v, *pools, p.slot_mapping, out=out, **options)


PREPARE = Operation(
    name="prepare",
    outputs=WRITTEN,
    draw=_draw,
    reference=oracle.reference,
    expected=oracle.expected,
    judge=oracle.judge,
    cases=cases,
    properties=properties,
    caller=_caller,
    ladder=_ladder,
    mutants=_mutants,
    stand_in=_stand_in,
    also_compiled=_in_e4m3,
)
