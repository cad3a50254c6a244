"""What a query row sees: the one definition in Python. CUDA C has the same in `mask.cuh`, Numba's stages in
`stages.parts.mask`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

UNBOUNDED = -1


@dataclass(frozen=True)
class Mask:
    """A band along the diagonal that is aligned bottom-right: the last query row is at the last key.

    Row i sees the keys from `left` before its place on the diagonal to `right` after it, both inclusive;
    -1 is unbounded. So (-1, -1) hides nothing, (-1, 0) is the causal mask, (left, 0) a sliding window.
    """

    seq_q: int
    seq_k: int
    left: int = UNBOUNDED
    right: int = UNBOUNDED

    @property
    def shift(self) -> int:
        """Row i's place on the diagonal is key i + shift; negative where there are more rows than keys."""
        return self.seq_k - self.seq_q

    def interval(self, row: Any) -> tuple[Any, Any]:
        """(begin, end): the row sees the keys from `begin` on and before `end`; equal where it sees none.

        `row` is a number, also past the last row, or an array of them; so are begin and end. Neither falls
        from one row to the next.
        """
        return self._key(row, -self.left, self.left, 0), self._key(
            row, self.right + 1, self.right, self.seq_k
        )

    def _key(self, row: Any, step: int, bound: int, unbounded: int) -> Any:
        if bound < 0:
            return unbounded if np.ndim(row) == 0 else np.full_like(row, unbounded)
        key = row + self.shift + step
        return np.clip(key, 0, self.seq_k) if np.ndim(row) else max(0, min(self.seq_k, int(key)))

    def rows(self, key: Any) -> tuple[Any, Any]:
        """(begin, end): the query rows that see a key, a number or an array: the mask, transposed."""
        return Mask(self.seq_k, self.seq_q, self.right, self.left).interval(key)

    def tiles(self, first: Any, last: Any, keys: int) -> tuple[Any, Any]:
        """(begin, end): the tiles of `keys` keys of which some row from `first` to `last` sees a key."""
        return self.interval(first)[0] // keys, -(-self.interval(last)[1] // keys)

    def matrix(self, rows: range | None = None, keys: range | None = None) -> np.ndarray:
        """bool [S_q, S_k]: which row sees which key; of these rows and keys alone where they are given."""
        row, key = self._grid(rows, keys)
        begin, end = self.interval(row)
        return (begin <= key) & (key < end)

    def distances(self, rows: range | None = None, keys: range | None = None) -> np.ndarray:
        """int [S_q, S_k]: how far each key is from the row's place on the diagonal; arguments as `matrix`."""
        row, key = self._grid(rows, keys)
        return np.abs(row + self.shift - key)

    def _grid(self, rows: range | None, keys: range | None) -> tuple[np.ndarray, np.ndarray]:
        row, key = (range(n) if own is None else own for n, own in ((self.seq_q, rows), (self.seq_k, keys)))
        return np.arange(row.start, row.stop)[:, None], np.arange(key.start, key.stop)

    @property
    def pairs(self) -> int:
        """How many (query row, key) pairs of one head it lets through."""
        ends = self.seq_q * self.seq_k if self.right < 0 else self._sum(self.right + 1)
        begins = 0 if self.left < 0 else self._sum(-self.left)
        return ends - begins

    def _sum(self, step: int) -> int:
        """The sum of one end of the interval over all rows, without looking at each row."""
        first, last = self.shift + step, self.shift + step + self.seq_q - 1
        return _below(last, self.seq_k) - _below(first - 1, self.seq_k)


def _below(last: int, most: int) -> int:
    """The sum of max(0, min(most, n)) over all n up to `last`."""
    rising = max(0, min(last, most))
    return rising * (rising + 1) // 2 + max(0, last - most) * most
