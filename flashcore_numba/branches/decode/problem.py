"""The validated input of decoding: a few query tokens per request, over a cache of pages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flashcore_numba.core.element import ACCEPTED_NAMES, E4M3, Element, accepted, of
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import OFF, Features, Sequence, check_over_softcap, on_host
from flashcore_numba.core.mask import Mask
from flashcore_numba.core.problem import (
    HEAD_DIMS,
    ROWS_LIMIT,
    check_kind,
    check_layout,
    check_place,
    check_rows,
    check_starts,
    checked_flag,
    checked_scale,
    listed,
    placed_on,
    rows_aligned,
    with_aligned,
)
from flashcore_numba.core.scaled import SCALES, arrays_of, checked_scale_of, is_e4m3

FEATURES = ("window", "softcap", "sinks")  # of `core.features.Features`, those that a problem may have
LENGTHS = ("seqused_k", "cu_seqlens_q", "cu_seqlens_k")  # those that say how many keys a request has
POOL_AXES = ("page", "slot", "head")
PAGES_LIMIT = (1 << 31) - 1  # what an entry of a block table can name
INT32 = np.dtype(np.int32)


@dataclass(frozen=True, eq=False)
class DecodeProblem:
    """Attention of each request's query tokens `q` over its cache: softmax(scale * Q K^T) V.

    q: [B, H, S_q, D], float16 or bfloat16, S_q tokens of each of B requests. k_pool: [pages, page, H_kv, D]
    and v_pool: [pages, page, H_kv, D_v], of q's type or both of e4m3: pages of `page` keys that requests
    share out among themselves. block_table: int32 [B, width]: key j of request b is slot j % page of page
    block_table[b, j // page]. lengths: int32 [B]: the keys of each request, 0 to width * page; those of the
    query tokens are among them. H is a multiple of H_kv, and query head h reads K/V head h // (H / H_kv).

    Only the first ceil(length / page) entries of a row of the table are read, and of the pools only keys that
    count: what is in other pages, or after the last key of a page, does not matter, NaN included. A cache
    [B, S, H_kv, D] is a pool with one page per request: page = S, and a table of 0 to B - 1.

    causal: the last query token sees every key, each one before it one key less. window, softcap and sinks:
    as `core.features.Features` has them; sinks: float32 [H]. scale: as `core.problem.Problem`.
    batch_invariant: the bits of a request's output depend on nothing but that request. k_scale, v_scale: of
    pools of e4m3 (float8_e4m3fn, or its bytes as uint8): what is stored is multiplied by them, each a number
    or float32 [H_kv].

    All are NumPy arrays, or all are CuPy arrays of one GPU. The last dimension is contiguous and no stride
    is negative; all other strides are free, but lengths is C-contiguous. Lengths and the table are not
    looked at here, because on a GPU that would wait for it: see `check_table`.

    Raises ArgumentError, which names the argument, its value and what is accepted.
    """

    q: Any
    k_pool: Any
    v_pool: Any
    block_table: Any
    lengths: Any
    causal: bool = True
    scale: Any = None  # any real number goes in, a float comes out
    window: tuple[int, int] = OFF.window
    softcap: float = OFF.softcap
    sinks: Any = None
    batch_invariant: bool = False
    k_scale: Any = 1.0
    v_scale: Any = 1.0

    def __post_init__(self) -> None:
        check_rows("q", self.q)
        for name in ("k_pool", "v_pool"):
            _check_pool(name, getattr(self, name), self.q)
        _check_together(self.q, self.k_pool, self.v_pool)
        for name, dims in (("block_table", 2), ("lengths", 1)):
            _check_numbers(name, getattr(self, name), dims, self.q)
        self._check_table()
        for name in ("causal", "batch_invariant"):
            object.__setattr__(self, name, checked_flag(name, getattr(self, name)))
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))
        for name, pool in zip(SCALES, (self.k_pool, self.v_pool), strict=True):
            object.__setattr__(
                self, name, checked_scale_of(name, getattr(self, name), pool.dtype, self.kv_heads, self.q)
            )
        if self.sinks is not None:
            check_kind("sinks", self.sinks)
            check_place("sinks", self.sinks, self.q)
        fitted = self.features.fitted({"sinks": ((self.heads,),)}, max(self.seq_q, self.capacity))
        if self.sinks is not None:
            check_starts("sinks", self.sinks)
        for name in ("window", "softcap"):
            object.__setattr__(self, name, getattr(fitted, name))
        check_over_softcap(self.scale, self.softcap)
        self.__dict__.pop("features")  # of the window that was given

    def _check_table(self) -> None:
        if self.block_table.shape[1] == 0:
            raise ArgumentError("block_table has no columns: each request needs room for at least one page")
        if self.capacity > ROWS_LIMIT:
            raise ArgumentError(
                f"block_table has {self.width} columns of pages of {self.page} keys, {self.capacity} keys of "
                f"a request: at most {ROWS_LIMIT} are accepted"
            )

    @property
    def inputs(self) -> dict[str, Any]:
        """All arrays that a stage reads, by name."""
        names = ("q", "k_pool", "v_pool", "block_table", "lengths")
        found = {name: getattr(self, name) for name in names} | self.features.arrays
        return found | arrays_of({name: getattr(self, name) for name in SCALES})

    def on(self, arrays: Mapping[str, Any]) -> "DecodeProblem":
        """The same problem on other arrays; `arrays` has all names of `inputs`."""
        return replace(self, **{name: arrays[name] for name in self.inputs})

    @cached_property
    def features(self) -> Features:
        """Window, softcap and sinks, as a forward pass over the cache would have them."""
        return Features(self.window, self.softcap, sinks=self.sinks)

    @property
    def batch(self) -> int:
        """Requests, B."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Query heads, H."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of the pools, H_kv."""
        return self.k_pool.shape[2]

    @property
    def group(self) -> int:
        """Query heads that share one K/V head."""
        return self.heads // self.kv_heads

    @property
    def seq_q(self) -> int:
        """Query tokens of each request, S_q."""
        return self.q.shape[2]

    @property
    def seq_k(self) -> int:
        """Keys that a request has room for: `capacity`, by the name that all problems of attention have."""
        return self.capacity

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        """Columns of v_pool and of the output, D_v."""
        return self.v_pool.shape[3]

    @property
    def columns(self) -> int:
        """The most that a row of q, a pool or the output has."""
        return max(self.head_dim, self.value_dim)

    @property
    def page(self) -> int:
        """Keys of one page."""
        return self.k_pool.shape[1]

    @property
    def pages(self) -> int:
        """Pages of the pools."""
        return self.k_pool.shape[0]

    @property
    def width(self) -> int:
        """Entries of a row of the block table."""
        return self.block_table.shape[1]

    @property
    def table_row(self) -> int:
        """Numbers from one row of the block table to the next."""
        return self.block_table.strides[0] // self.block_table.dtype.itemsize

    @property
    def paged(self) -> bool:
        """Whether keys are found through a table, see `few_rows.Unpaged`."""
        return True

    @property
    def capacity(self) -> int:
        """Keys that a row of the block table has room for."""
        return self.width * self.page

    @property
    def element(self) -> Element:
        """The type of q and the output, and of the pools unless they are `e4m3`."""
        return of(self.q.dtype)

    @property
    def e4m3(self) -> bool:
        """Whether the pools hold e4m3, with scales."""
        return is_e4m3(self.k_pool.dtype)

    @property
    def windowed(self) -> bool:
        """Whether a window hides keys that the causal mask does not."""
        left, right = self.window
        return left >= 0 or (right >= 0 and not self.causal)

    @property
    def mask(self) -> Mask:
        """Which keys the tokens of a request of `capacity` keys see."""
        return self.features.mask(self.seq_q, self.capacity, self.causal)

    @property
    def sequence_count(self) -> int:
        return self.batch

    @cached_property
    def sequences(self) -> list[Sequence]:
        """Every request; its keys count from 0. Waits for a GPU."""
        rows, found = slice(0, self.seq_q), []
        for number, length in enumerate(on_host(self.lengths).tolist()):
            mask = self.features.mask(self.seq_q, length, self.causal)
            found.append(Sequence(number, number, rows, slice(0, length), mask))
        return found

    @property
    def on_gpu(self) -> bool:
        return placed_on(self.q) != "the host"

    @property
    def visible_pairs(self) -> int:
        """(query token, key) pairs of one head of all requests that the mask lets through."""
        return sum(each.mask.pairs for each in self.sequences)

    @property
    def flops(self) -> int:
        """Of both products: 2 D + 2 D_v floating-point operations per pair that the mask lets through."""
        return 2 * (self.head_dim + self.value_dim) * self.visible_pairs * self.heads

    @property
    def exponentials(self) -> int:
        """One for each pair that the mask lets through."""
        return self.visible_pairs * self.heads

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V that tokens see, each counted once."""
        seen = sum(_keys_seen(each.mask) for each in self.sequences)
        return seen * self.kv_heads * (self.head_dim + self.value_dim) * self.k_pool.dtype.itemsize

    @property
    def min_bytes(self) -> int:
        """Bytes that must move: q and what tokens see of the cache, read once; the output, written once."""
        return self.q.nbytes + self.kv_bytes + self.q.nbytes // self.head_dim * self.value_dim

    @property
    def shape_label(self) -> str:
        """`8x64/8x1/8192x128, pages of 16`: B x H/H_kv x S_q/keys that a request has room for x D."""
        heads = f"{self.heads}" if self.group == 1 else f"{self.heads}/{self.kv_heads}"
        dims = f"{self.head_dim}" if self.head_dim == self.value_dim else f"{self.head_dim}/{self.value_dim}"
        stored = " in e4m3" if self.e4m3 else ""
        return f"{self.batch}x{heads}x{self.seq_q}/{self.capacity}x{dims}, pages of {self.page}{stored}"

    @cached_property
    def aligned(self) -> bool:
        """Whether every row starts at a multiple of 16 bytes, as 128-bit loads need."""
        return all(rows_aligned(x) for x in (self.q, self.k_pool, self.v_pool))

    def with_aligned_rows(self) -> "DecodeProblem":
        """The same problem with contiguous copies of those arrays whose rows 128-bit loads cannot read.

        Of a pool that is the whole pool; aligned problems come back unchanged.
        """
        if self.aligned:
            return self
        names = ("q", "k_pool", "v_pool")
        return replace(self, **{name: with_aligned(getattr(self, name)) for name in names})

    def check_table(self) -> None:
        """Raise ArgumentError unless lengths and the table, arrays on the host, fit the pools."""
        for number, length in enumerate(self.lengths.tolist()):
            if not 0 <= length <= self.capacity:
                raise ArgumentError(
                    f"lengths is {length} for request {number}: it must be 0 to {self.capacity}, what "
                    f"{self.width} pages of {self.page} keys hold"
                )
            used = self.block_table[number, : -(-length // self.page)]
            if bad := [int(page) for page in used if not 0 <= page < self.pages]:
                raise ArgumentError(
                    f"block_table names page {bad[0]} for request {number}: it must be 0 to "
                    f"{self.pages - 1}, the pages of the pools"
                )


def own_type_alone(problem: DecodeProblem) -> str | None:
    """The limit of a stage that reads pools of q's type alone."""
    return f"does not serve pools of {E4M3.name}, only of q's type" if problem.e4m3 else None


def cut_by_all_lengths(problem: DecodeProblem) -> str | None:
    """The limit of a stage that cuts a request where the lengths of the others say."""
    return "does not serve batch_invariant=True" if problem.batch_invariant else None


def _keys_seen(mask: Mask) -> int:
    """Keys that any of the rows sees: their intervals have no gap."""
    return max(0, mask.interval(mask.seq_q - 1)[1] - mask.interval(0)[0])


def _check_pool(name: str, array: Any, q: Any) -> None:
    check_kind(name, array)
    check_place(name, array, q)
    if not is_e4m3(array.dtype):
        if not accepted(array.dtype):
            raise ArgumentError(
                f"{name} has dtype {str(array.dtype)[:100]}: accepted are {ACCEPTED_NAMES}, and {E4M3.name}"
            )
        if array.dtype != q.dtype:
            raise ArgumentError(
                f"{name} has dtype {array.dtype}: q has {q.dtype}, and they must be equal, or the pools "
                f"{E4M3.name}"
            )
    shape = tuple(array.shape)
    if array.ndim != 4:
        raise ArgumentError(
            f"{name} has shape {shape}: four dimensions are needed, [pages, keys of a page, heads, D]"
        )
    for what, size in zip(("pages", "keys of a page", "heads"), shape, strict=False):
        if size == 0:
            raise ArgumentError(f"{name} has no {what}, shape {shape}: at least 1 is needed")
    if shape[3] not in HEAD_DIMS:
        raise ArgumentError(f"{name} has head dimension {shape[3]}: accepted are {listed(HEAD_DIMS)}")
    if shape[0] > PAGES_LIMIT:
        raise ArgumentError(f"{name} has {shape[0]} pages: at most {PAGES_LIMIT} are accepted")
    check_layout(name, array, POOL_AXES)


def _check_together(q: Any, k_pool: Any, v_pool: Any) -> None:
    if k_pool.shape[3] != q.shape[3]:
        raise ArgumentError(
            f"k_pool has head dimension {k_pool.shape[3]}: q has {q.shape[3]}, and they must be equal"
        )
    if is_e4m3(v_pool.dtype) != is_e4m3(k_pool.dtype):
        raise ArgumentError(
            f"v_pool has dtype {v_pool.dtype}: k_pool has {k_pool.dtype}, and they must be equal"
        )
    if v_pool.shape[:3] != k_pool.shape[:3]:
        raise ArgumentError(
            f"v_pool has shape {tuple(v_pool.shape)}: k_pool has {tuple(k_pool.shape)}, and all but the last "
            "dimension must be equal"
        )
    if q.shape[1] % k_pool.shape[2]:
        raise ArgumentError(
            f"k_pool has {k_pool.shape[2]} heads: q has {q.shape[1]}, which must be a multiple of that"
        )


def _check_numbers(name: str, array: Any, dims: int, q: Any) -> None:
    """Of int32, one row of them for each request."""
    check_kind(name, array)
    check_place(name, array, q)
    if array.dtype != INT32:
        raise ArgumentError(f"{name} has dtype {str(array.dtype)[:100]}: only int32 is accepted")
    shape, of_request = tuple(array.shape), "[B]" if dims == 1 else "[B, pages of a request]"
    if array.ndim != dims or shape[0] != q.shape[0]:
        raise ArgumentError(f"{name} has shape {shape}: {of_request} is needed, and q has batch {q.shape[0]}")
    if array.strides[-1] != INT32.itemsize and shape[-1] > 1:
        raise ArgumentError(
            f"{name} has strides {array.strides} bytes: its last dimension must be contiguous"
        )
    if min(array.strides) < 0:
        raise ArgumentError(f"{name} has strides {array.strides} bytes: strides must be >= 0")
    check_starts(name, array)
