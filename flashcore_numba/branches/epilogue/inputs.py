"""Host arrays for attention with the norm that follows it: for checks, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.branches.epilogue.problem import NAMES, EpilogueProblem
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16, Element


@dataclass(frozen=True)
class EpilogueInputs(Inputs):
    """As `Inputs`, for an `EpilogueProblem`, whose fields these are."""

    residual: np.ndarray | None = None
    weight: np.ndarray | None = None
    bias: np.ndarray | None = None
    norm: str = "layer"
    eps: float = 1e-5

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        given = {name: getattr(self, name) for name in NAMES}
        return super().arrays | {name: array for name, array in given.items() if array is not None}

    def problem(self, arrays: Mapping[str, Any]) -> EpilogueProblem:
        given: dict[str, Any] = {name: arrays.get(name) for name in ("q", "k", "v", *NAMES)}
        options = {name: getattr(self, name) for name in ("causal", "scale", "features", "norm", "eps")}
        return EpilogueProblem(**(given | options))

    @property
    def label(self) -> str:
        without = [name for name in NAMES if getattr(self, name) is None]
        return f"{super().label} {self.norm} eps={self.eps:g}" + "".join(f" no {name}" for name in without)


def drawn(
    rng: np.random.Generator,
    batch: int,
    heads: int,
    rows: int,
    keys: int,
    d: int,
    kv_heads: int | None = None,
    *,
    element: Element = FLOAT16,
    size: float = 1.0,
    apart: float = 1.0,
    residual: bool = True,
    bias: bool = True,
    **options: Any,
) -> EpilogueInputs:
    """Normal q, k, v, weight, bias and residual.

    size, apart: of the residual's numbers, and of what is added to all of them in a head, so that heads have
    means of their own. residual, bias: whether there is one. options: causal, scale, norm and eps.
    """
    x = normal(rng, batch, heads, rows, keys, d, kv_heads, element=element)
    offsets = np.repeat(apart * rng.standard_normal(heads), d)
    numbers = size * rng.standard_normal((batch, 1, rows, heads * d)) + offsets
    weight, shift = rng.standard_normal((2, heads * d))
    return EpilogueInputs(
        *(x.q, x.k, x.v),
        residual=element.round(numbers) if residual else None,
        weight=element.round(1 + 0.3 * weight),
        bias=element.round(shift) if bias else None,
        **options,
    )
