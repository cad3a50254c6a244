"""The inputs on which attention with dropout is checked: tiles, masks, groups, layouts and shares."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.dropout import oracle
from flashcore_numba.branches.dropout.dropout import OFFSETS, SEEDS, Dropout
from flashcore_numba.branches.dropout.inputs import DropoutInputs, drawn, with_dropout
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.operation import Case
from flashcore_numba.stages import Stage

P = 0.3
Make = Callable[[np.random.Generator], DropoutInputs]
LAST = Dropout(0.5, SEEDS - 1, OFFSETS - 4)

# Checked in every type and head dimension that a stage serves; the other cases depend on neither.
EVERYWHERE = ("ragged 45 rows", "causal 150 rows, 220 keys", "p = 0.9")


def cases(stage: Stage, full_size: bool) -> list[Case]:
    """Every sample case of the forward pass, the cheap and telling ones first."""
    found = [
        Case(name, make, layout=layout)
        for element in stage.elements
        for d in stage.head_dims
        for name, make, layout in _named(stage, d, element, full_size)
    ]
    # Of the forward pass alone: gradients of an infinite output are NaN.
    return [*found, Case("p = 0.9, values about 20000: some rows are infinite", _beyond(stage.head_dims[0]))]


def backward_cases(stage: Stage, full_size: bool) -> list[Case]:
    """The same, each with its output and a gradient of it; and a gradient of the LSE."""

    def sent_back(make: Make, dlse: bool) -> Callable[[np.random.Generator], BackwardInputs]:
        return lambda rng: oracle.backward_inputs(make(rng), rng, dlse)

    found = [
        Case(name, sent_back(make, False), layout=layout)
        for element in stage.elements
        for d in stage.head_dims
        for name, make, layout in _named(stage, d, element, full_size)
    ]
    name, make, _ = _shapes(stage.head_dims[0], FLOAT16)[0]
    return [*found, Case(f"the LSE has a gradient: {name}", sent_back(make, True))]


def _named(stage: Stage, d: int, element: Element, full_size: bool) -> list[tuple[str, Make, str]]:
    """All of them in the first type and head dimension, elsewhere those of `EVERYWHERE`."""
    first = element is FLOAT16 and d == stage.head_dims[0]
    ending = "" if first else f", D={d}" + ("" if element is FLOAT16 else f", {element.name}")
    found = [
        (name + ending, make, layout)
        for name, make, layout in _shapes(d, element)
        if first or name.startswith(EVERYWHERE)
    ]
    if full_size and first:
        large = normal_of(1, 8, 2048, 2048, d, element=element, causal=True)
        found.append(("causal 2048 rows and keys", large, "contiguous"))
        for rows, keys in ((70000, 1), (1, 70000)):  # more than 16 bits count
            far = normal_of(1, 1, rows, keys, d, element=element)
            found.append((f"{rows} rows, {keys} keys", far, "contiguous"))
    return found


def _shapes(d: int, element: Element) -> list[tuple[str, Make, str]]:
    def case(
        name: str, *shape: int, layout: str = "inside", dropout: Dropout | float = P, **options: Any
    ) -> tuple[str, Make, str]:
        return name, normal_of(*shape, d, dropout=dropout, element=element, **options), layout

    return [
        case("ragged 45 rows, 100 keys, two heads, two batches", 2, 2, 45, 100, layout="mixed"),
        case("causal 150 rows, 220 keys, 2 heads on 1", 1, 2, 150, 220, kv_heads=1, causal=True),
        case("p = 0.9, 40 rows, 300 keys", 1, 1, 40, 300, dropout=0.9),
        case("the last seed and offset", 1, 1, 40, 70, dropout=LAST),
        case("causal 140 rows, 40 keys: rows that see none", 1, 1, 140, 40, causal=True),
        case("one row, one key", 1, 1, 1, 1, dropout=0.5),
        case("129 rows, 33 keys", 1, 1, 129, 33, layout="contiguous"),
        case("grouped queries, 6 heads on 2, three batches", 3, 6, 33, 40, kv_heads=2),
        case("one row, 8 keys, 34 heads on 2", 1, 34, 1, 8, kv_heads=2),
        case("one row, 8 keys, 18 batches", 18, 1, 1, 8),
        case("transposed layout [B, S, H, D]", 2, 3, 40, 70, layout="transposed"),
        case("a negative scale", 1, 1, 70, 150, scale=-0.2),
        case("a scale of 0: all weights are equal", 1, 1, 70, 150, scale=0.0),
        case("a scale of 1", 1, 1, 70, 150, scale=1.0),
        case("p = 2^-16", 1, 4, 130, 300, dropout=2.0**-16),
        case("the largest p: almost nothing is kept", 1, 1, 40, 70, dropout=1 - 2.0**-17),
        case("p = 0", 1, 2, 40, 70, dropout=0.0),
    ]


def _beyond(d: int) -> Make:
    """Of few keys, so that some rows keep more than a third of their weight: times 10 that is too much."""

    def make(rng: np.random.Generator) -> DropoutInputs:
        x = normal_of(1, 2, 200, 12, d, dropout=0.9)(rng)
        return replace(x, v=FLOAT16.round(20000 + 1000 * x.v.astype(np.float32)))

    return make


def normal_of(*shape: int, dropout: Dropout | float = P, **options: Any) -> Make:
    """Draws normal inputs of (B, H, S_q, S_k, D), and where `dropout` is a share also seed and offset."""
    batch, heads, rows, keys, d = shape

    def make(rng: np.random.Generator) -> DropoutInputs:
        x = normal(rng, batch, heads, rows, keys, d, **options)
        return with_dropout(x, dropout if isinstance(dropout, Dropout) else drawn(rng, dropout))

    return make
