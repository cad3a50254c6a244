"""Host arrays of decoding, for checks, counts and times: pages in random order, and poison wherever no key
is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.problem import INT32, DecodeProblem
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16, Element, of
from flashcore_numba.core.features import OFF, Features

SPARE_PAGES = 3  # of a pool, that belong to no request
NAMES = ("q", "k_pool", "v_pool", "block_table", "lengths")
JOINED = {"": None, "pages": 1, "rows": 3}  # how K and V share one array: the axis on which they alternate


@dataclass(frozen=True)
class DecodeInputs:
    """What a `DecodeProblem` is made from, on the host.

    joined: whether the kernel finds K and V in one array: their pages in turn ("pages"), or the row of V
    after that of K ("rows"); empty for two arrays.
    """

    q: np.ndarray
    k_pool: np.ndarray
    v_pool: np.ndarray
    block_table: np.ndarray
    lengths: np.ndarray
    causal: bool = True
    scale: float | None = None
    features: Features = OFF
    batch_invariant: bool = False
    joined: str = ""

    def but(self, **changes: Any) -> "DecodeInputs":
        return replace(self, **changes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        found = {name: getattr(self, name) for name in NAMES} | self.features.arrays
        if self.joined:
            k, v = found.pop("k_pool"), found.pop("v_pool")
            found["kv_pool"] = np.concatenate([k, v], axis=JOINED[self.joined])
        return found

    def problem(self, arrays: Mapping[str, Any]) -> DecodeProblem:
        given = dict(arrays)
        if "kv_pool" in given:
            both, page, d = given.pop("kv_pool"), self.k_pool.shape[1], self.k_pool.shape[3]
            by_page = self.joined == "pages"
            given["k_pool"] = both[:, :page] if by_page else both[..., :d]
            given["v_pool"] = both[:, page:] if by_page else both[..., d:]
        options = {name: getattr(self, name) for name in ("causal", "scale", "batch_invariant")}
        return DecodeProblem(**given, **options, window=self.features.window, softcap=self.features.softcap)

    @property
    def page(self) -> int:
        return self.k_pool.shape[1]

    @property
    def label(self) -> str:
        batch, heads, tokens, d = self.q.shape
        lengths = self.lengths.tolist()
        shown = lengths[0] if len({*lengths}) == 1 else f"{min(lengths)} to {max(lengths)}"
        options = f" {self.features.label}" if self.features is not OFF else ""
        scale = "" if self.scale is None else f" scale={self.scale:.4g}"
        return (
            f"B={batch} H={heads} H_kv={self.k_pool.shape[2]} S_q={tokens} keys={shown} D={d} "
            f"D_v={self.v_pool.shape[3]} page={self.page}{' causal' if self.causal else ''}{scale}{options}"
        )

    def request(self, number: int) -> Inputs:
        """One request as attention of contiguous arrays, [1, H, S_q, D] over [1, H_kv, length, D]."""
        length = int(self.lengths[number])
        used = self.block_table[number, : -(-length // self.page)]
        k, v = (
            pool[used].reshape(-1, *pool.shape[2:])[:length].swapaxes(0, 1)[None]
            for pool in (self.k_pool, self.v_pool)
        )
        return Inputs(self.q[number : number + 1], k, v, self.causal, self.scale, self.features)

    def only(self, numbers: Sequence[int]) -> "DecodeInputs":
        """Some of the requests, over the same pools."""
        chosen = list(numbers)
        return self.but(q=self.q[chosen], block_table=self.block_table[chosen], lengths=self.lengths[chosen])


def paged(
    rng: np.random.Generator,
    lengths: Sequence[int],
    heads: int = 2,
    kv_heads: int | None = None,
    tokens: int = 1,
    head_dim: int = 64,
    page: int = 16,
    *,
    value_dim: int | None = None,
    spare_columns: int = 2,
    element: Element = FLOAT16,
    **options: Any,
) -> DecodeInputs:
    """Standard normal q, K and V of requests of these lengths, on pages in random order.

    spare_columns: of the table, after those that the longest request needs.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    needed = [-(-length // page) for length in lengths]
    pages = sum(needed) + SPARE_PAGES
    width = max(1, max(needed) + spare_columns)
    order = iter(rng.permutation(pages))
    table = _strange_entries(rng, (len(lengths), width), pages)
    for row, count in enumerate(needed):
        table[row, :count] = [next(order) for _ in range(count)]
    q = element.round(rng.standard_normal((len(lengths), heads, tokens, head_dim), np.float32))
    k, v = (
        element.round(rng.standard_normal((pages, page, kv_heads, dim), np.float32))
        for dim in (head_dim, value_dim or head_dim)
    )
    x = DecodeInputs(q, k, v, table, np.array(lengths, INT32), **options)
    return poisoned(x, rng)


def poisoned(x: DecodeInputs, rng: np.random.Generator) -> DecodeInputs:
    """NaN, infinities and the largest numbers in all slots of the pools that hold no key of a request."""
    free = np.ones(x.k_pool.shape[:2], bool)
    for row, length in zip(x.block_table, x.lengths.tolist(), strict=True):
        keys = np.arange(length)
        free[row[keys // x.page], keys % x.page] = False
    spoiled = {}
    for name in ("k_pool", "v_pool"):
        pool = getattr(x, name).copy()
        element = of(pool.dtype)
        bad = np.array([np.nan, np.inf, -np.inf, element.largest], np.float32)
        pool[free] = element.round(rng.choice(bad, (int(free.sum()), *pool.shape[2:])))
        spoiled[name] = pool
    return x.but(**spoiled)


def shuffled(x: DecodeInputs, rng: np.random.Generator) -> DecodeInputs:
    """The same requests on pages in another order."""
    pages = len(x.k_pool)
    order = rng.permutation(pages)  # the new place of each page
    k, v = np.empty_like(x.k_pool), np.empty_like(x.v_pool)
    k[order], v[order] = x.k_pool, x.v_pool
    table = _strange_entries(rng, x.block_table.shape, pages)
    for row, length in enumerate(x.lengths.tolist()):
        used = -(-length // x.page)
        table[row, :used] = order[x.block_table[row, :used]]
    return x.but(k_pool=k, v_pool=v, block_table=table)


def _strange_entries(rng: np.random.Generator, shape: tuple[int, int], pages: int) -> np.ndarray:
    """Table entries that nobody may read: pages of others, and no pages at all."""
    strange = np.array([-1, 0, pages - 1, pages, 2**31 - 1, -(2**31)], np.int64)
    return rng.choice(strange, shape).astype(INT32)
