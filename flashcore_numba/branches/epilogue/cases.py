"""The inputs on which the kernel is checked: tiles, masks, heads, layouts, norms and sizes of numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.epilogue.inputs import EpilogueInputs, drawn
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.operation import Case

# Checked in every type and head dimension that the stage serves; the other cases depend on neither.
EVERYWHERE = ("ragged 33 rows", "causal 70 rows, 600 keys", "RMSNorm")


def cases(stage: Any, full_size: bool) -> list[Case]:
    """Every sample case, the cheap and telling ones first."""
    found = []
    for element in stage.elements:
        for d in stage.head_dims:
            first = element is FLOAT16 and d == stage.head_dims[0]
            ending = "" if first else f", D={d}" + ("" if element is FLOAT16 else f", {element.name}")
            for name, make, layout in _of(d, element):
                if first or name.startswith(EVERYWHERE):
                    found.append(Case(name + ending, make, layout=layout))
    if full_size:
        for rows in (512, 2048):
            shape = (1, 8, rows, rows, 64)
            found.append(Case(f"{rows} rows and keys", lambda rng, s=shape: drawn(rng, *s)))  # type: ignore[misc]
    return found


def _of(d: int, element: Element) -> list[tuple[str, Callable, str]]:
    def case(name: str, *shape: int, layout: str = "inside", **options: Any) -> tuple[str, Callable, str]:
        batch, heads, rows, keys = shape
        return name, lambda rng: drawn(rng, batch, heads, rows, keys, d, element=element, **options), layout

    def equal_rows(rng: np.random.Generator) -> EpilogueInputs:
        """All numbers of a row equal: their variance is 0, and eps alone keeps the norm finite."""
        x = drawn(rng, 1, 2, 20, 40, d, element=element)
        level = element.round(rng.standard_normal((1, 1, 20, 1)))
        return replace(x, v=np.zeros_like(x.v), residual=level.repeat(2 * d, axis=3))

    def far_from_0(rng: np.random.Generator) -> EpilogueInputs:
        """All heads have one mean, 1000 times the spread: a difference of mean squares would lose it."""
        x = drawn(rng, 1, 3, 20, 40, d, element=element, apart=0.0)
        assert x.residual is not None
        return replace(x, residual=element.round(1000 + x.residual.astype(np.float64)))

    return [
        case("ragged 33 rows, 70 keys, two heads, two batches", 2, 2, 33, 70, layout="mixed"),
        case("causal 70 rows, 600 keys, 4 heads on 2", 1, 4, 70, 600, kv_heads=2, causal=True),
        case("RMSNorm, 40 rows, 300 keys, 2 heads", 1, 2, 40, 300, norm="rms"),
        case("a large eps", 1, 2, 20, 40, eps=0.7),
        case("causal 70 rows, 20 keys: rows that see none", 1, 2, 70, 20, causal=True, layout="transposed"),
        case("64 rows, 512 keys, 8 heads", 1, 8, 64, 512, layout="contiguous"),
        case("16 heads", 1, 16, 5, 140),
        case("5 heads, RMSNorm, two batches", 2, 5, 9, 400, norm="rms"),
        case("one head, one row, one key", 1, 1, 1, 1),
        case("no residual", 1, 2, 20, 300, residual=False),
        case("no bias", 1, 2, 20, 40, bias=False),
        case("neither, RMSNorm", 1, 2, 20, 40, residual=False, bias=False, norm="rms"),
        case("a residual far from 0", 1, 3, 20, 40, apart=30.0, size=0.1),
        case("a small residual", 1, 2, 20, 40, apart=0.01, size=0.01),
        case("large numbers", 1, 2, 20, 40, apart=1000.0, size=1000.0, norm="rms"),
        case("a negative scale", 1, 2, 40, 700, scale=-0.2),
        case("a scale of 0", 1, 2, 20, 150, scale=0.0),
        ("a mean far from 0", far_from_0, "inside"),
        ("rows of equal numbers", equal_rows, "inside"),
    ]
