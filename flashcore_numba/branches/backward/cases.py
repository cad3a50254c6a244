"""The inputs on which gradients are checked: those of the forward pass, and what only gradients ask."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.checks import cases as forward
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.operation import Case
from flashcore_numba.stages import Stage

# P comes from the LSE, so scores beyond about 1e6 leave nothing of it; dS beyond 65504 is no float16.
NOT_FOR_GRADIENTS = ("extreme: q and k over", "extreme: values up to")
# Of several tiles of queries as well as of keys, which the forward pass's cases have only of keys.
SHAPES = {
    "260 rows, 130 keys": (1, 1, 260, 130),
    "causal 300 rows and keys": (1, 1, 300, 300),
    "causal 300 rows, 140 keys": (1, 1, 300, 140),
    "causal 140 rows, 300 keys": (1, 1, 140, 300),
}


def cases(stage: Stage, full_size: bool) -> list[Case]:
    """Every sample case that the stage serves, the cheap and telling ones first."""
    found = [
        replace(case, make=_sent_back(case.make), gate=None)
        for case in forward.cases(stage, full_size)
        if not case.name.startswith(NOT_FOR_GRADIENTS)
    ]
    own = [case for element in stage.elements for case in _own(stage, element)]
    masked = forward.serves(stage, causal=True)
    return [*found[:4], *(case for case in own if masked or "causal" not in case.name), *found[4:]]


def _sent_back(make: Callable[[np.random.Generator], Inputs]) -> Callable:
    def made(rng: np.random.Generator) -> BackwardInputs:
        return backward_inputs(make(rng), rng)

    return made


def _own(stage: Stage, element: Element) -> list[Case]:
    d = stage.head_dims[0]
    ending = "" if element is FLOAT16 else f", {element.name}"

    def case(name: str, *shape: int, size: float = 1.0, dlse: bool = False, **options: Any) -> Case:
        batch, heads, rows, keys = shape

        def make(rng: np.random.Generator) -> BackwardInputs:
            x = forward.normal(rng, batch, heads, rows, keys, d, element=element, **options)
            return backward_inputs(x, rng, dlse, size)

        return Case(name + ending, make)

    found = [case(name, *shape, causal="causal" in name) for name, shape in SHAPES.items()]
    found += [
        case("the LSE has a gradient", 1, 2, 40, 70, dlse=True),
        case("a scale of 0", 1, 1, 40, 70, scale=0.0),
        case("causal, a negative scale", 1, 1, 90, 150, scale=-0.3, causal=True),
        case("large gradients", 1, 1, 70, 70, size=200.0),
        Case("one row has all of the gradient" + ending, lambda rng: _one_row(rng, d, element)),
    ]
    if stage.kernels.divides_keys:  # what is rounded between tiles of rows shows in sums of many
        found.append(case("1100 rows, 20 keys", 1, 1, 1100, 20))
    if forward.serves(stage, group=4):
        found.append(case("causal, 8 query heads on 1", 1, 8, 40, 70, kv_heads=1, causal=True))
    return found


def _one_row(rng: np.random.Generator, d: int, element: Element) -> BackwardInputs:
    """dO is zero but for one row, which alone reaches dK and dV."""
    x = backward_inputs(forward.normal(rng, 1, 1, 70, 150, d, element=element), rng)
    row = rng.integers(70)
    dout = np.zeros_like(x.dout)
    dout[:, :, row] = x.dout[:, :, row]
    return x.but(dout=dout)
