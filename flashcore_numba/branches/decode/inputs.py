"""Host arrays of decoding, for checks, counts and times: pages in random order, and poison wherever no key
is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.problem import INT32, DecodeProblem
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.element import FLOAT16, Element, of
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.scaled import SCALES, arrays_of, by_head, is_e4m3, is_number

SPARE_PAGES = 3  # of a pool, that belong to no request
NAMES = ("q", "k_pool", "v_pool", "block_table", "lengths")
MOST_DRAWN = 2**24 - 3  # numbers of an array; a larger one repeats them. Prime, so no two rows are equal
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
    k_scale: Any = 1.0
    v_scale: Any = 1.0

    def but(self, **changes: Any) -> "DecodeInputs":
        return replace(self, **changes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        found = {name: getattr(self, name) for name in NAMES} | self.features.arrays | arrays_of(self.scales)
        if self.joined:
            k, v = found.pop("k_pool"), found.pop("v_pool")
            found["kv_pool"] = np.concatenate([k, v], axis=JOINED[self.joined])
        return found

    @property
    def scales(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SCALES}

    def problem(self, arrays: Mapping[str, Any]) -> DecodeProblem:
        given = dict(arrays)
        if "kv_pool" in given:
            both, page, d = given.pop("kv_pool"), self.k_pool.shape[1], self.k_pool.shape[3]
            by_page = self.joined == "pages"
            given["k_pool"] = both[:, :page] if by_page else both[..., :d]
            given["v_pool"] = both[:, page:] if by_page else both[..., d:]
        options = {name: getattr(self, name) for name in ("causal", "scale", "batch_invariant")}
        options |= {name: scale for name, scale in self.scales.items() if is_number(scale)}
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
        if is_e4m3(self.k_pool.dtype):
            scale += " e4m3"
        return (
            f"B={batch} H={heads} H_kv={self.k_pool.shape[2]} S_q={tokens} keys={shown} D={d} "
            f"D_v={self.v_pool.shape[3]} page={self.page}{' causal' if self.causal else ''}{scale}{options}"
        )

    def request(self, number: int) -> Inputs:
        """One request as attention of contiguous arrays, [1, H, S_q, D] over [1, H_kv, length, D]; K and V of
        e4m3 as the float64 numbers that are meant.
        """
        length = int(self.lengths[number])
        used = self.block_table[number, : -(-length // self.page)]
        k, v = (
            pool[used].reshape(-1, *pool.shape[2:])[:length].swapaxes(0, 1)[None]
            for pool in (self.k_pool, self.v_pool)
        )
        k, v = self._meant(k, v, slice(None))
        return Inputs(self.q[number : number + 1], k, v, self.causal, self.scale, self.features)

    def head(self, number: int, kv_head: int) -> Inputs:
        """The query heads of a request that share one K/V head, [1, H / H_kv, S_q, D] over one head."""
        length, group = int(self.lengths[number]), self.q.shape[1] // self.k_pool.shape[2]
        used = self.block_table[number, : -(-length // self.page)]
        k, v = (
            pool[:, :, kv_head][used].reshape(-1, pool.shape[3])[None, None, :length]
            for pool in (self.k_pool, self.v_pool)
        )
        k, v = self._meant(k, v, slice(kv_head, kv_head + 1))
        heads, features = slice(kv_head * group, (kv_head + 1) * group), self.features
        if features.sinks is not None:
            features = replace(features, sinks=features.sinks[heads])
        return Inputs(self.q[number : number + 1, heads], k, v, self.causal, self.scale, features)

    def _meant(self, k: np.ndarray, v: np.ndarray, heads: slice) -> Iterator[np.ndarray]:
        """K and V of these K/V heads, [1, heads, keys, D]; of e4m3 times their scales, in float64."""
        for x, scale in ((k, self.k_scale), (v, self.v_scale)):
            if is_e4m3(self.k_pool.dtype):
                yield x.astype(np.float64) * by_head(scale, self.k_pool.shape[2])[heads, None, None]
            else:
                yield x

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
    strange: bool = True,
    stored: Element | None = None,
    **options: Any,
) -> DecodeInputs:
    """Standard normal q, K and V of requests of these lengths, on pages in random order.

    spare_columns: of the table, after those that the longest request needs. strange: whether slots without
    a key hold poison, and the table anything past a request's last page; else numbers like all others and
    pages, for libraries that may read them. stored: the pools' type, where it is not that of q.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    needed = [-(-length // page) for length in lengths]
    pages = sum(needed) + SPARE_PAGES
    width = max(1, max(needed) + spare_columns)
    order = iter(rng.permutation(pages))
    table_shape = len(lengths), width
    if strange:
        table = _strange_entries(rng, table_shape, pages)
    else:
        table = rng.integers(0, pages, table_shape, INT32)
    for row, count in enumerate(needed):
        table[row, :count] = [next(order) for _ in range(count)]
    q = _normal(rng, element, (len(lengths), heads, tokens, head_dim))
    k, v = (
        _normal(rng, stored or element, (pages, page, kv_heads, dim))
        for dim in (head_dim, value_dim or head_dim)
    )
    x = DecodeInputs(q, k, v, table, np.array(lengths, INT32), **options)
    return poisoned(x, rng) if strange else x


def contiguous(
    rng: np.random.Generator, lengths: Sequence[int], heads: int, kv_heads: int, **options: Any
) -> DecodeInputs:
    """The same in a cache [B, S, H_kv, D] without pages, S the longest of the lengths: a page per request."""
    whole = [max(1, *lengths)] * len(lengths)
    x = paged(rng, whole, heads, kv_heads, page=whole[0], spare_columns=0, strange=False, **options)
    batch = len(lengths)
    table = np.arange(batch, dtype=INT32)[:, None]
    return x.but(
        k_pool=x.k_pool[:batch],
        v_pool=x.v_pool[:batch],
        block_table=table,
        lengths=np.array(lengths, INT32),
    )


def _normal(rng: np.random.Generator, element: Element, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal; of more than `MOST_DRAWN` numbers so many, again and again: each draw takes ten times
    as long as a copy.
    """
    size = math.prod(shape)
    drawn = element.round(rng.standard_normal(min(size, MOST_DRAWN), np.float32))
    if size <= MOST_DRAWN:
        return drawn.reshape(shape)
    found = np.empty(size, drawn.dtype)

    def fill(first: int) -> None:
        part = found[first : first + MOST_DRAWN]
        part[...] = drawn[: part.size]

    with ThreadPoolExecutor() as pool:
        list(pool.map(fill, range(0, size, MOST_DRAWN)))
    return found.reshape(shape)


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
