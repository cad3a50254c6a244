"""`Split`: which rows of a sequence each rank holds."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import checked_flag


@dataclass(frozen=True)
class Split:
    """A sequence cut into 2N pieces, two of which each of N ranks holds, one after the other.

    bounds: 2N + 1 rising numbers, where each piece begins and where the last one ends.
    zigzag: rank r holds pieces r and 2N - 1 - r, so that under a causal mask all ranks have the same work.
    Otherwise it holds pieces 2r and 2r + 1, whose rows follow each other in the sequence.

    Raises ArgumentError where the bounds do not rise from 0.
    """

    bounds: tuple[int, ...]
    zigzag: bool = True

    def __post_init__(self) -> None:
        # A list has no hash, and schedules are kept; numbers of NumPy would be in messages.
        try:
            bounds = tuple(self.bounds)
        except TypeError:
            raise ArgumentError(f"bounds is {shown(self.bounds)}: 2 N + 1 numbers are needed") from None
        object.__setattr__(self, "bounds", tuple(whole("bounds", each) for each in bounds))
        checked_flag("zigzag", self.zigzag)
        if len(self.bounds) < 3 or len(self.bounds) % 2 == 0:
            raise ArgumentError(f"bounds has {len(self.bounds)} numbers: it must have 2 N + 1, for N ranks")
        if self.bounds[0] != 0 or any(a >= b for a, b in pairwise(self.bounds)):
            raise ArgumentError(
                f"bounds is {shown(self.bounds)}: it must begin with 0 and rise, as no piece is empty"
            )

    @property
    def ranks(self) -> int:
        return (len(self.bounds) - 1) // 2

    @property
    def length(self) -> int:
        """Rows of the whole sequence."""
        return self.bounds[-1]

    def pieces(self, rank: int) -> tuple[int, int]:
        """The two pieces that a rank holds."""
        return (rank, 2 * self.ranks - 1 - rank) if self.zigzag else (2 * rank, 2 * rank + 1)

    def half(self, rank: int) -> int:
        """Rows of a rank's first piece: where its second one begins among its own rows."""
        first = self.pieces(rank)[0]
        return self.bounds[first + 1] - self.bounds[first]

    def rows(self, rank: int) -> int:
        """Rows that a rank holds."""
        return sum(self.bounds[piece + 1] - self.bounds[piece] for piece in self.pieces(rank))

    @property
    def most_rows(self) -> int:
        """Rows of the rank that holds most: buffers for any rank's keys are as long."""
        return max(self.rows(rank) for rank in range(self.ranks))

    def indices(self, rank: int) -> np.ndarray:
        """Where a rank's rows are in the sequence: int64 [rows]."""
        return np.concatenate([np.arange(*self.bounds[p : p + 2]) for p in self.pieces(rank)])

    def cut(self, array: Any, rank: int, axis: int = 2) -> Any:
        """A rank's rows of an array or tensor of the whole sequence, in contiguous memory of their own."""
        found = array[(slice(None),) * axis + (self.indices(rank),)]
        return np.ascontiguousarray(found) if isinstance(found, np.ndarray) else found.contiguous()

    def joined(self, parts: "list[np.ndarray]", axis: int = 2) -> np.ndarray:
        """The array of the whole sequence from each rank's rows of it."""
        order = np.argsort(np.concatenate([self.indices(rank) for rank in range(self.ranks)]))
        return np.take(np.concatenate(parts, axis), order, axis)


def whole(name: str, value: Any, of: str = "") -> int:
    """A number of rows or of ranks. of: what messages say of it. Raises ArgumentError."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name} is {shown(value)}: a whole number{of} is needed")
    return int(value)


def even(length: int, ranks: int, zigzag: bool = True) -> Split:
    """Pieces that differ by at most one row. Raises ArgumentError where there are not two rows per rank."""
    length, ranks = whole("length", length), whole("ranks", ranks)
    if ranks < 1:
        raise ArgumentError(f"ranks is {shown(ranks)}: at least 1 is needed")
    if length < 2 * ranks:
        raise ArgumentError(
            f"length is {shown(length)}: {shown(ranks)} ranks need at least {shown(2 * ranks)} rows, as each "
            "holds two pieces"
        )
    return Split(tuple(piece * length // (2 * ranks) for piece in range(2 * ranks + 1)), zigzag)
