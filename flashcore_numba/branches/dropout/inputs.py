"""Host arrays for attention with dropout, for checks, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.branches.dropout.dropout import NOTHING, Dropout
from flashcore_numba.branches.dropout.problem import DropoutProblem
from flashcore_numba.checks.trial import Inputs


@dataclass(frozen=True)
class DropoutInputs(Inputs):
    """As `Inputs`. first: the batch and the query head that the arrays begin with, where they are a part."""

    dropout: Dropout = NOTHING
    first: tuple[int, int] = (0, 0)

    def problem(self, arrays: Mapping[str, Any]) -> DropoutProblem:
        q, k, v = (arrays[name] for name in "qkv")
        return DropoutProblem(q, k, v, self.causal, self.scale, dropout=self.dropout)

    @property
    def label(self) -> str:
        d = self.dropout
        return f"{super().label} p={d.p:.4g} seed={d.seed} offset={d.offset}"


def with_dropout(x: Inputs, dropout: Dropout) -> DropoutInputs:
    """The same arrays, mask and scale."""
    return DropoutInputs(x.q, x.k, x.v, x.causal, x.scale, dropout=dropout)


def drawn(rng: np.random.Generator, p: float) -> Dropout:
    """Any seed of 64 bits and any offset."""
    return Dropout(p, int(rng.integers(1 << 64, dtype=np.uint64)), 4 * int(rng.integers(1 << 32)))
