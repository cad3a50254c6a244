"""A cache of pages in use: requests grow, end, and leave their pages to others. For checks."""

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs
from flashcore_numba.branches.decode.problem import INT32
from flashcore_numba.checks.bounds import Reference, reference
from flashcore_numba.core.element import Element


class Cache:
    """Pools, a table and lengths, and beside them what each request wrote, in arrays of its own.

    Nothing is ever cleared: a page holds what its last request wrote, and a row of the table the pages that
    its last request had.
    """

    def __init__(
        self, rng: np.random.Generator, element: Element, requests: int, heads: int, dim: int
    ) -> None:
        self.rng, self.element, self.heads = rng, element, heads
        page, self.width = int(rng.integers(1, 20)), 12
        self.free = list(rng.permutation(2 * self.width))
        shape = (len(self.free), page, 2, dim)
        self.k, self.v = (np.full(shape, np.nan, element.dtype) for _ in range(2))
        self.table = np.full((requests, self.width), -1, INT32)
        self.lengths = np.zeros(requests, INT32)
        self.written = [np.zeros((2, 2, 0, dim), element.dtype) for _ in range(requests)]

    def append(self, request: int, keys: int) -> None:
        """Write random keys and values of a request; it ends, and another begins, where it has no room."""
        page = self.k.shape[1]
        new = self.element.round(self.rng.standard_normal((2, 2, keys, self.k.shape[3])))
        needed = -(-(int(self.lengths[request]) + keys) // page)
        used = -(-int(self.lengths[request]) // page)
        if needed > self.width or needed - used > len(self.free):
            self.end(request)
            return
        self.table[request, used:needed] = [self.free.pop() for _ in range(needed - used)]
        place = int(self.lengths[request]) + np.arange(keys)
        at = self.table[request, place // page], place % page
        self.k[at], self.v[at] = new[0].swapaxes(0, 1), new[1].swapaxes(0, 1)
        self.written[request] = np.concatenate([self.written[request], new], axis=2)
        self.lengths[request] += keys

    def end(self, request: int) -> None:
        """Give the pages of a request back, in random order, as they are."""
        used = -(-int(self.lengths[request]) // self.k.shape[1])
        self.free = list(self.rng.permutation([*self.free, *self.table[request, :used]]))
        self.lengths[request] = 0
        self.written[request] = self.written[request][:, :, :0]

    def ask(self, tokens: int) -> DecodeInputs:
        """Random query tokens of every request."""
        shape = (len(self.lengths), self.heads, tokens, self.k.shape[3])
        q = self.element.round(self.rng.standard_normal(shape))
        return DecodeInputs(q, self.k.copy(), self.v.copy(), self.table.copy(), self.lengths.copy())

    def right(self, x: DecodeInputs) -> Reference:
        """The answer to `ask`, of what was written, without pool or table."""
        found = [
            reference(x.q[number : number + 1], k[None], v[None], True)
            for number, (k, v) in enumerate(self.written)
        ]
        names = ("out", "allowed", "lse", "lse_allowed")
        return Reference(*(np.concatenate([getattr(each, name) for each in found]) for name in names))
