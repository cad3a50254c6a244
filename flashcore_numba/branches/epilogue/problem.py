"""The validated input of attention with the norm that follows it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import checked_eps
from flashcore_numba.core.problem import (
    ALIGNMENT,
    Problem,
    address,
    check_kind,
    check_layout,
    check_place,
    rows_aligned,
    with_aligned,
)

KINDS = ("layer", "rms")
NAMES = ("residual", "weight", "bias")


@dataclass(frozen=True, eq=False)
class EpilogueProblem(Problem):
    """As `Problem`, and norm(residual + attention) * weight + bias over all N = H * D columns of a row.

    residual: [B, 1, S_q, N] with contiguous rows, or None for none; weight: [N]; bias: [N] or None; all of
    q's type and where q is. norm: "layer", (x - mean) / sqrt(variance + eps) (Ba et al. 2016, Layer
    Normalization), or "rms", x / sqrt(mean square + eps) (Zhang and Sennrich 2019, RMSNorm).

    Raises ArgumentError, which names the argument, its value and what is accepted.
    """

    residual: Any = None
    weight: Any = None
    bias: Any = None
    norm: str = "layer"
    eps: Any = 1e-5  # any real number goes in, a float comes out

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.norm, str) or self.norm not in KINDS:
            raise ArgumentError(f"norm is {shown(self.norm)}: accepted are {' and '.join(map(repr, KINDS))}")
        object.__setattr__(self, "eps", checked_eps("eps", self.eps))
        if self.weight is None:
            raise ArgumentError(f"weight is None: it must be an array of {self.columns_of_all} numbers")
        rows = (self.batch, 1, self.seq_q, self.columns_of_all)
        for name, shape in zip(NAMES, (rows, rows[3:], rows[3:]), strict=True):
            if getattr(self, name) is not None:
                self._check(name, shape)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        array = getattr(self, name)
        check_kind(name, array)
        check_place(name, array, self.q)
        if array.dtype != self.q.dtype:
            raise ArgumentError(
                f"{name} has dtype {str(array.dtype)[:100]}: q has {self.q.dtype}, and they must be equal"
            )
        if tuple(array.shape) != shape:
            found, wanted = (
                (each[0], *each[2:]) if name == "residual" else tuple(each) for each in (array.shape, shape)
            )
            raise ArgumentError(f"{name} has shape {found}: it must be {wanted}")
        check_layout(name, array, last="H * D")
        if array.ndim == 1 and address(array) % ALIGNMENT:
            raise ArgumentError(f"{name} must start at a multiple of {ALIGNMENT} bytes")

    @property
    def columns_of_all(self) -> int:
        """Of a row with all its heads, N = H * D."""
        return self.heads * self.head_dim

    @property
    def added(self) -> dict[str, Any]:
        """The arrays beside q, k and v that are given, by name."""
        given = {name: getattr(self, name) for name in NAMES}
        return {name: array for name, array in given.items() if array is not None}

    @property
    def inputs(self) -> dict[str, Any]:
        return super().inputs | self.added

    def on(self, arrays: Mapping[str, Any]) -> "EpilogueProblem":
        return replace(self, **{name: arrays[name] for name in ("q", "k", "v", *self.added)})

    @property
    def flops(self) -> int:
        """Of attention, and 8 per column: the sums, the difference, its square, factor, weight and bias."""
        return super().flops + 8 * self.batch * self.seq_q * self.columns_of_all

    @property
    def min_bytes(self) -> int:
        """Inputs read once, the output written once."""
        return super().min_bytes + sum(int(array.nbytes) for array in self.added.values())

    @property
    def aligned(self) -> bool:
        """Whether every row of q, k, v and the residual starts at a multiple of 16 bytes."""
        rows = (self.q, self.k, self.v, *(() if self.residual is None else (self.residual,)))
        return all(rows_aligned(x) for x in rows)

    def with_aligned_rows(self) -> "EpilogueProblem":
        """The same problem with contiguous copies of those arrays whose rows 128-bit loads cannot read."""
        if self.aligned:
            return self
        names = ("q", "k", "v", *(() if self.residual is None else ("residual",)))
        return replace(self, **{name: with_aligned(getattr(self, name)) for name in names})
