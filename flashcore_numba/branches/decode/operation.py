"""Decoding as an operation: what its stages are checked, counted and timed by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.bounds import reference
from flashcore_numba.branches.decode.cases import cases
from flashcore_numba.branches.decode.diagnose import explain
from flashcore_numba.branches.decode.inputs import DecodeInputs, contiguous, paged
from flashcore_numba.branches.decode.problem import INT32, DecodeProblem
from flashcore_numba.branches.decode.properties import properties
from flashcore_numba.branches.decode.truth import RequestTruth
from flashcore_numba.checks import bounds
from flashcore_numba.core.element import E4M3, FLOAT16, Element
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.shapes import Shape
from flashcore_numba.core.workload import CONTIGUOUS, E4M3_CACHE, PAGE


def _draw(
    shape: Shape,
    causal: bool,
    rng: np.random.Generator,
    element: Element = FLOAT16,
    features: Features = OFF,
    tokens: int = 1,
    page: int = PAGE,
    cache: str | None = None,
    batch_invariant: bool | None = None,
) -> DecodeInputs:
    """Of a shape B x H x S x D: B requests of S keys and so many query tokens; seqused_k and a ragged batch
    give requests other lengths. page: keys of a page, or `CONTIGUOUS`. cache: `E4M3_CACHE`, or q's type.

    Nothing is strange here, because other libraries are timed on the same arrays.
    """
    lengths = [shape.seq] * shape.batch
    if features.ragged:
        lengths = np.diff(features.cu_seqlens_k).tolist()
    if features.seqused_k is not None:
        lengths = features.seqused_k.tolist()
    kept = Features(features.window, features.softcap, sinks=features.sinks)
    options: dict[str, Any] = {"tokens": tokens, "head_dim": shape.head_dim, "value_dim": shape.value_dim}
    options |= {"element": element, "causal": causal, "features": kept}
    options["batch_invariant"] = bool(batch_invariant)
    if cache == E4M3_CACHE:
        options |= {"stored": E4M3, "k_scale": 0.5, "v_scale": 2.0}
    if page == CONTIGUOUS:
        return contiguous(rng, lengths, shape.heads, shape.kv_heads, **options)
    options |= {"page": page, "spare_columns": 0, "strange": False}
    return paged(rng, lengths, shape.heads, shape.kv_heads, **options)


def _stand_in(shape: Shape, causal: bool) -> DecodeProblem:
    """With a page per request."""
    q = np.empty((shape.batch, shape.heads, 1, shape.head_dim), FLOAT16.dtype)
    cache = (shape.batch * -(-shape.seq // PAGE), PAGE, shape.kv_heads)
    k, v = (np.empty((*cache, dim), FLOAT16.dtype) for dim in (shape.head_dim, shape.value_dim))
    table = np.arange(cache[0], dtype=INT32).reshape(shape.batch, -1)
    return DecodeProblem(q, k, v, table, np.full(shape.batch, shape.seq, INT32), causal)


def _in_e4m3(shape: Shape, causal: bool) -> list[DecodeProblem]:
    plain = _stand_in(shape, causal)
    k, v = (np.empty(pool.shape, E4M3.dtype) for pool in (plain.k_pool, plain.v_pool))
    return [replace(plain, k_pool=k, v_pool=v)]


def _truth(x: DecodeInputs, rng: np.random.Generator) -> RequestTruth:
    return RequestTruth(DECODE, x, rng)


def _ladder() -> Sequence[Any]:
    """By name, because its stages import this module."""
    return import_module("flashcore_numba.branches.decode.ladder").LADDER


def _mutants() -> Sequence[Any]:
    """By name, because no check of the stages needs them."""
    return import_module("flashcore_numba.branches.decode.mutants").MUTANTS


def _peers() -> Mapping[str, Any]:
    """By name, because only a measurement needs them."""
    return import_module("flashcore_numba.branches.decode.peers").PEERS


def _caller(problem: DecodeProblem, stage: Any, outputs: Mapping[str, Any]) -> Callable[[], Any]:
    """By name, because the call knows the ladder."""
    call = import_module("flashcore_numba.branches.decode.call")
    p = problem
    arrays = (p.q, p.k_pool, p.v_pool, p.block_table, p.lengths)
    options = {name: getattr(p, name) for name in ("causal", "scale", "window", "softcap", "sinks")}
    options |= {name: getattr(p, name) for name in ("batch_invariant", "k_scale", "v_scale")}
    options |= {"stage": stage, "out": outputs[OUT.name]}
    return lambda: call.attention_paged(*arrays, **options)


DECODE = Operation(
    name="decode",
    outputs=(OUT, LSE),
    draw=_draw,
    reference=reference,
    expected=bounds.expected,
    judge=bounds.verdict,
    cases=cases,
    properties=properties,
    explain=explain,
    truth=_truth,
    caller=_caller,
    ladder=_ladder,
    mutants=_mutants,
    stand_in=_stand_in,
    peers=_peers,
    choices=("tokens", "page", "cache", "batch_invariant"),
    also_compiled=_in_e4m3,
)
