"""Host arrays of the backward pass, for checks, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import blockwise, oracle
from flashcore_numba.core.element import of

# (query row, key) pairs of all heads: of more, float64 takes longer than everything else that a timing does.
MOST_PAIRS = 2**26


@dataclass(frozen=True)
class BackwardInputs:
    """The forward pass's inputs and output, and the gradient of the output; `dlse` is None or [B, H, S_q]."""

    forward: Inputs
    out: np.ndarray
    lse: np.ndarray
    dout: np.ndarray
    dlse: np.ndarray | None = None

    def but(self, **changes: Any) -> "BackwardInputs":
        return replace(self, **changes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        given = {"out": self.out, "lse": self.lse, "dout": self.dout, "dlse": self.dlse}
        return self.forward.arrays | {name: array for name, array in given.items() if array is not None}

    def problem(self, arrays: Mapping[str, Any]) -> BackwardProblem:
        out, lse, dout = (arrays[name] for name in ("out", "lse", "dout"))
        return BackwardProblem(self.forward.problem(arrays), out, lse, dout, arrays.get("dlse"))

    @property
    def label(self) -> str:
        return self.forward.label + ("" if self.dlse is None else " dlse")


def backward_inputs(
    forward: Inputs, rng: np.random.Generator, dlse: bool = False, size: float = 1.0
) -> BackwardInputs:
    """The output and LSE of `forward`, right to float32's rounding at the least, and normal gradients, times
    `size`.
    """
    element = of(forward.q.dtype)
    x = forward
    pairs = x.q.shape[1] * sum(each.mask.pairs for each in x.features.sequences(x.q, x.k, x.causal))
    attention = oracle.attention if pairs <= MOST_PAIRS else blockwise.attention
    out, lse = attention(x.q, x.k, x.v, x.causal, x.scale, features=x.features)
    dout = element.round(np.float32(size) * rng.standard_normal(out.shape, np.float32))
    grad = rng.standard_normal(lse.shape).astype(np.float32) if dlse else None
    return BackwardInputs(x, element.round(out), lse.astype(np.float32), dout, grad)
