"""The validated input of the backward pass."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT32, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import Features, Sequence
from flashcore_numba.core.mask import Mask
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.core.problem import (
    Problem,
    check_layout,
    check_starts,
    placed_on,
    rows_aligned,
    with_aligned,
)


@dataclass(frozen=True, eq=False)
class BackwardProblem:
    """Gradients of attention: `dout`, the gradient of a loss by attention's output, goes back to q, k and v.

    forward: the problem whose output is `out`. out, dout: [B, H, S_q, D_v] of q's type, strided as freely as
    q. lse: float32 [B, H, S_q], C-contiguous, natural logarithm, as the forward pass returns it. dlse: the
    gradient of the loss by the LSE, like lse; None is zero.

    Raises ArgumentError, which names the argument, its value and what is accepted.
    """

    forward: Problem
    out: Any
    lse: Any
    dout: Any
    dlse: Any = None

    def __post_init__(self) -> None:
        p = self.forward
        for name in ("out", "dout"):
            array = getattr(self, name)
            _check(name, array, OUT.shape(p), p.element.dtype, p.q)
            check_layout(name, array)
        for name in ("lse", "dlse"):
            array = getattr(self, name)
            if array is None and name == "dlse":
                continue
            _check(name, array, LSE.shape(p), FLOAT32.dtype, p.q)
            check_contiguous(name, array, array.strides)
            check_starts(name, array)

    @property
    def inputs(self) -> dict[str, Any]:
        """All arrays that a stage reads, by name."""
        given = {"out": self.out, "lse": self.lse, "dout": self.dout, "dlse": self.dlse}
        return self.forward.inputs | {name: array for name, array in given.items() if array is not None}

    def on(self, arrays: Mapping[str, Any]) -> "BackwardProblem":
        """The same problem on other arrays; `arrays` has all names of `inputs`."""
        out, lse, dout = (arrays[name] for name in ("out", "lse", "dout"))
        return BackwardProblem(self.forward.on(arrays), out, lse, dout, arrays.get("dlse"))

    @property
    def q(self) -> Any:
        return self.forward.q

    @property
    def k(self) -> Any:
        return self.forward.k

    @property
    def v(self) -> Any:
        return self.forward.v

    @property
    def causal(self) -> bool:
        return self.forward.causal

    @property
    def scale(self) -> float:
        return self.forward.scale

    @property
    def features(self) -> Features:
        return self.forward.features

    @property
    def batch(self) -> int:
        return self.forward.batch

    @property
    def heads(self) -> int:
        return self.forward.heads

    @property
    def kv_heads(self) -> int:
        return self.forward.kv_heads

    @property
    def group(self) -> int:
        return self.forward.group

    @property
    def seq_q(self) -> int:
        return self.forward.seq_q

    @property
    def seq_k(self) -> int:
        return self.forward.seq_k

    @property
    def head_dim(self) -> int:
        return self.forward.head_dim

    @property
    def value_dim(self) -> int:
        return self.forward.value_dim

    @property
    def columns(self) -> int:
        return self.forward.columns

    @property
    def element(self) -> Element:
        return self.forward.element

    @property
    def mask(self) -> Mask:
        return self.forward.mask

    @property
    def windowed(self) -> bool:
        return self.forward.windowed

    @property
    def sequence_count(self) -> int:
        return self.forward.sequence_count

    @property
    def sequences(self) -> list[Sequence]:
        return self.forward.sequences

    @property
    def on_gpu(self) -> bool:
        return self.forward.on_gpu

    @property
    def visible_pairs(self) -> int:
        return self.forward.visible_pairs

    @property
    def shape_label(self) -> str:
        return self.forward.shape_label

    @property
    def flops(self) -> int:
        """Of five products: S and dP, dV, dQ and dK, per pair that the mask lets through."""
        return 2 * (3 * self.head_dim + 2 * self.value_dim) * self.visible_pairs * self.heads

    @property
    def exponentials(self) -> int:
        """One for each pair that the mask lets through."""
        return self.forward.exponentials

    @property
    def min_bytes(self) -> int:
        """q, k, v, out, dout and lse read once; dq, dk and dv written once."""
        given = (self.q, self.k, self.v, self.out, self.dout, self.lse)
        written = (self.q, self.k, self.v)
        return sum(int(array.nbytes) for array in (*given, *written))

    @property
    def aligned(self) -> bool:
        """Whether every row starts at a multiple of 16 bytes, as 128-bit loads need."""
        return self.forward.aligned and rows_aligned(self.out) and rows_aligned(self.dout)

    def with_aligned_rows(self) -> "BackwardProblem":
        """The same problem with contiguous copies of those arrays whose rows 128-bit loads cannot read."""
        if self.aligned:
            return self
        copies = {name: with_aligned(getattr(self, name)) for name in ("out", "dout")}
        return replace(self, forward=self.forward.with_aligned_rows(), **copies)


def check_contiguous(name: str, array: Any, strides: tuple[int, ...]) -> None:
    """Raise ArgumentError for an LSE, or its gradient, with gaps or in another order. strides: as the caller
    has them.
    """
    if not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name} has strides {strides} bytes: it must be C-contiguous, as attention() returns the LSE"
        )


def _check(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype, q: Any) -> None:
    if placed_on(array) != placed_on(q):
        raise ArgumentError(
            f"{name} is on {placed_on(array)} but q is on {placed_on(q)}: all must be in one place"
        )
    if array.dtype != dtype:
        raise ArgumentError(f"{name} has dtype {str(array.dtype)[:100]}: only {dtype.name} is accepted")
    if tuple(array.shape) != shape:
        raise ArgumentError(f"{name} has shape {tuple(array.shape)}: it must be {shape}")
