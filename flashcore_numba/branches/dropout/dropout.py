"""What a call says of dropout, checked, and the mask that follows from it."""

import numbers
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.branches.dropout.philox import uniforms
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import as_float
from flashcore_numba.core.problem import GRID_LIMIT, ROWS_LIMIT

STEPS = 1 << 16  # p is a multiple of 1 / STEPS
SEEDS, OFFSETS, EACH = 1 << 64, 1 << 34, 4  # offsets count numbers of 32 bits, of which a draw makes four


def _whole(name: str, value: Any, end: int, multiple: int) -> int:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)
    if not (whole and 0 <= value < end and value % multiple == 0):
        of = f", a multiple of {multiple}" if multiple > 1 else ""
        raise ArgumentError(
            f"{name} is {shown(value)}: it must be a whole number from 0 to 2^{end.bit_length() - 1} - "
            f"{multiple}{of}"
        )
    return int(value)


@dataclass(frozen=True)
class Dropout:
    """Elements of P are dropped with probability p, those that are kept are multiplied by 1 / (1 - p).

    p: 0 <= p < 1, rounded to a multiple of 2^-16, 1 - 2^-16 at most; the factor is that of the rounded p.
    seed: 0 to 2^64 - 1. offset: a multiple of 4 below 2^34. Raises ArgumentError.
    """

    p: Any = 0.0
    seed: Any = 0
    offset: Any = 0

    def __post_init__(self) -> None:
        p = as_float(self.p)
        if not 0 <= p < 1:
            raise ArgumentError(f"p is {shown(self.p)}: it must be a number from 0 up to, but not, 1")
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "seed", _whole("seed", self.seed, SEEDS, 1))
        object.__setattr__(self, "offset", _whole("offset", self.offset, OFFSETS, EACH))

    @property
    def steps(self) -> int:
        """p in units of 2^-16: an element is dropped if its 16 bits are below it."""
        return min(round(self.p * STEPS), STEPS - 1)

    @property
    def on(self) -> bool:
        """Whether anything is dropped."""
        return self.steps > 0

    @property
    def factor(self) -> float:
        """Of what is kept."""
        return STEPS / (STEPS - self.steps)

    @property
    def macros(self) -> dict[str, Any]:
        """What a kernel is compiled with for it; nothing where nothing is dropped."""
        return {"DROPOUT": True} if self.on else {}

    @property
    def arguments(self) -> tuple:
        """Those of `DROPOUT_PARAMS` in `features.cuh`; none where nothing is dropped."""
        if not self.on:
            return ()
        draw = np.uint32(self.offset // EACH)
        return np.uint32(self.steps << 16), np.float32(self.factor), np.uint64(self.seed), draw

    def kept(self, batch: int, head: int, rows: range, keys: range) -> np.ndarray:
        """Which elements of P of one query head are kept: bool [rows, keys]."""
        return uniforms(self.seed, self.offset, batch, head, rows, keys) >= self.steps


NOTHING = Dropout()


def dropout_mask(shape: Any, *, p: float, seed: int, offset: int = 0) -> np.ndarray:
    """The elements of P that `attention_dropout` keeps, by a Philox of its own in NumPy.

    shape: (B, H, S_q, S_k), H query heads. p, seed, offset: as `attention_dropout` takes them. Returns bool
    [B, H, S_q, S_k], true where P is kept. An element depends on seed, offset and its place, and on nothing
    else: the mask of a larger shape begins with that of a smaller one. Raises ArgumentError.
    """
    dropout = Dropout(p, seed, offset)
    limits = (GRID_LIMIT, GRID_LIMIT, ROWS_LIMIT, ROWS_LIMIT)
    try:
        sizes = tuple(map(index, shape))
        right = len(sizes) == 4 and all(0 < n <= most for n, most in zip(sizes, limits, strict=True))
    except TypeError:
        right = False
    if not right:
        raise ArgumentError(
            f"shape is {shown(shape)}: it must be (B, H, S_q, S_k), B and H up to {GRID_LIMIT}, S_q and S_k "
            f"up to {ROWS_LIMIT}"
        )
    batch, heads, seq_q, seq_k = sizes
    found = np.empty(sizes, bool)
    for b, h in np.ndindex(batch, heads):
        found[b, h] = dropout.kept(b, h, range(seq_q), range(seq_k))
    return found
