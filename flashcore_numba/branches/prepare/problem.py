"""The validated input of what comes before attention over pages."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import FLOAT32, LEAST_FLOAT32, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import OFF, as_float
from flashcore_numba.core.problem import (
    ALIGNMENT,
    Problem,
    address,
    check_layout,
    check_starts,
    checked_flag,
    placed_on,
)
from flashcore_numba.core.scaled import SCALES, arrays_of, checked_scale_of, is_e4m3

CHUNK = 16  # columns: a lane's two chunks, so the least that RoPE rotates
LAST = {"slot_mapping": "tokens", "positions": "tokens", "cos": "columns", "sin": "columns"}  # dimensions
MOST_SLOTS = (1 << 31) - 1  # of a pool
NAMES = ("slot_mapping", "positions", "cos", "sin", "q_weight", "k_weight")
OPTIONAL = NAMES[1:]


@dataclass(frozen=True, eq=False)
class PrepareProblem:
    """Rows of Q, K and V of new tokens, and where those of K and V go: `pages` pages of `page` slots.

    q: [1, H, tokens, D]; k, v: [1, H_kv, tokens, D], strided as freely as attention's. slot_mapping: int32 or
    int64 [tokens], page * slots per page + place in the page; -1 marks padding, of which nothing is written.
    positions: int32 [tokens], rows of the tables cos and sin, float32 [positions, R / 2], where the first R
    columns are rotated, R a multiple of 16; without the three there is no RoPE. interleaved: pairs are
    columns 2i and 2i + 1, else i and i + R / 2. norm_eps: what RMSNorm adds to the mean square, None for no
    norm. q_weight, k_weight: float32 [D] that the normed rows of Q and of K are multiplied by, None for ones.
    stored: the type of the pools, None for that of q. In e4m3, float8_e4m3fn or its bytes as uint8, they get
    rows of K divided by k_scale and rows of V by v_scale, each a number or float32 [H_kv].

    Raises ArgumentError, which names the argument, its value and what is accepted.
    """

    q: Any
    k: Any
    v: Any
    slot_mapping: Any
    pages: int
    page: int
    positions: Any = None
    cos: Any = None
    sin: Any = None
    interleaved: bool = False
    norm_eps: Any = None  # any real number goes in, a float comes out
    q_weight: Any = None
    k_weight: Any = None
    stored: Any = None
    k_scale: Any = 1.0
    v_scale: Any = 1.0
    rows: Problem = field(init=False, repr=False)  # q, k and v as attention checks them

    causal, features, group = False, OFF, 1  # `Stage` asks them of attention; rows have no mask and no group

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Problem(self.q, self.k, self.v))
        if self.k.shape[2] != self.q.shape[2] or self.q.shape[0] != 1:
            raise ArgumentError(
                f"k has {self.k.shape[2]} tokens: q has {self.q.shape[2]}, and they must be equal"
            )
        for what, size in (("pages", self.pages), ("keys of a page", self.page)):
            if size < 1:
                raise ArgumentError(f"k_pool has {size} {what}: at least 1 is needed")
        if self.pages * self.page > MOST_SLOTS:
            raise ArgumentError(
                f"the pools have {self.pages * self.page} slots: at most {MOST_SLOTS} are accepted"
            )
        tokens = (self.q.shape[2],)
        self._check("slot_mapping", tokens, (np.dtype(np.int64), np.dtype(np.int32)))
        check_starts("slot_mapping", self.slot_mapping)
        self._check_rope(tokens)
        self._check_norm()
        if self.stored is None:
            object.__setattr__(self, "stored", self.q.dtype)
        for name in SCALES:
            checked = checked_scale_of(name, getattr(self, name), self.stored, self.kv_heads, self.q)
            object.__setattr__(self, name, checked)
        if not self.on_gpu:
            self._check_numbers()

    def _check_rope(self, tokens: tuple[int]) -> None:
        given = [name for name in ("positions", "cos", "sin") if getattr(self, name) is not None]
        if given and len(given) < 3:
            raise ArgumentError(
                f"{' and '.join(given)} without the others: RoPE needs positions, cos and sin"
            )
        object.__setattr__(self, "interleaved", checked_flag("interleaved", self.interleaved))
        if not given:
            return
        self._check("positions", tokens, (np.dtype(np.int32),))
        check_starts("positions", self.positions)
        shape = tuple(self.cos.shape)
        if len(shape) != 2 or shape[0] < 1 or 2 * shape[1] not in range(CHUNK, self.head_dim + 1, CHUNK):
            raise ArgumentError(
                f"cos has shape {shape}: it must be [positions, R / 2], where R, the number of rotated "
                f"columns, is a multiple of {CHUNK} up to {self.head_dim}"
            )
        for name in ("cos", "sin"):
            array = getattr(self, name)
            self._check(name, shape, (FLOAT32.dtype,))
            if address(array) % ALIGNMENT or array.strides[0] % ALIGNMENT:
                raise ArgumentError(
                    f"{name} has strides {array.strides} bytes or an odd address: each row must start at a "
                    f"multiple of {ALIGNMENT} bytes"
                )

    def _check_norm(self) -> None:
        eps = self.norm_eps
        for name in ("q_weight", "k_weight"):
            array = getattr(self, name)
            if array is None:
                continue
            if eps is None:
                raise ArgumentError(f"{name} without norm_eps: give the eps of the norm, for example 1e-6")
            self._check(name, (self.head_dim,), (FLOAT32.dtype,))
            if address(array) % ALIGNMENT:
                raise ArgumentError(f"{name} must start at a multiple of {ALIGNMENT} bytes")
        if eps is None:
            return
        value = as_float(eps)
        if not (value == 0 or LEAST_FLOAT32 <= value <= FLOAT32.largest):
            raise ArgumentError(f"norm_eps is {shown(eps)}: it must be a finite float32 from 0 on, or None")
        object.__setattr__(self, "norm_eps", value)

    def _check(self, name: str, shape: tuple[int, ...], dtypes: tuple[np.dtype, ...]) -> None:
        array = getattr(self, name)
        if placed_on(array) != placed_on(self.q):
            raise ArgumentError(
                f"{name} is on {placed_on(array)} but q is on {placed_on(self.q)}: all must be in one place"
            )
        if array.dtype not in dtypes:
            accepted = " and ".join(each.name for each in dtypes)
            raise ArgumentError(f"{name} has dtype {str(array.dtype)[:100]}: accepted are {accepted}")
        if tuple(array.shape) != shape:
            raise ArgumentError(f"{name} has shape {tuple(array.shape)}: it must be {shape}")
        check_layout(name, array, ("row",) if array.ndim == 2 else (), last=LAST.get(name, "D"))

    def _check_numbers(self) -> None:
        """Of arrays on the host, where they can be read: numbers that point into the pools and the tables."""
        slots, count = self.slot_mapping, self.pages * self.page
        if ((slots < -1) | (slots >= count)).any():
            raise ArgumentError(
                f"slot_mapping holds {slots.min()} to {slots.max()}: -1 to {count - 1} are accepted"
            )
        used = slots[slots >= 0]
        if len(np.unique(used)) < len(used):
            raise ArgumentError("slot_mapping holds a slot twice: each token needs its own")
        if self.positions is None:
            return
        at, rows = self.positions[slots >= 0], self.cos.shape[0]
        if ((at < 0) | (at >= rows)).any():
            raise ArgumentError(f"positions holds {at.min()} to {at.max()}: cos has rows 0 to {rows - 1}")

    @property
    def inputs(self) -> dict[str, Any]:
        """All arrays that a stage reads, by name."""
        given = {name: getattr(self, name) for name in NAMES}
        given |= arrays_of({name: getattr(self, name) for name in SCALES})
        return self.rows.inputs | {name: array for name, array in given.items() if array is not None}

    def on(self, arrays: Mapping[str, Any]) -> "PrepareProblem":
        """The same problem on other arrays; `arrays` has all names of `inputs`."""
        return replace(self, **arrays)

    @property
    def tokens(self) -> int:
        return self.q.shape[2]

    @property
    def heads(self) -> int:
        """Query heads, H."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of K and V, H_kv."""
        return self.k.shape[1]

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        return self.v.shape[3]

    @property
    def rotated(self) -> int:
        """Columns that RoPE rotates, R; 0 without RoPE."""
        return 0 if self.cos is None else 2 * self.cos.shape[1]

    @property
    def element(self) -> Element:
        """The type of all rows, in the pools too unless they are `e4m3`."""
        return self.rows.element

    @property
    def e4m3(self) -> bool:
        """Whether the pools hold e4m3, with scales."""
        return is_e4m3(self.stored)

    @property
    def on_gpu(self) -> bool:
        return self.rows.on_gpu

    @property
    def shape_label(self) -> str:
        return f"{self.tokens} tokens of {self.heads}/{self.kv_heads} heads x {self.head_dim}"

    @property
    def flops(self) -> int:
        """Of each column of Q and K: 4 for the norm, 3 for the rotation."""
        columns = 4 * self.head_dim * (self.norm_eps is not None) + 3 * self.rotated
        return self.tokens * (self.heads + self.kv_heads) * columns

    @property
    def exponentials(self) -> int:
        """None."""
        return 0

    @property
    def min_bytes(self) -> int:
        """Rows, slots, positions and weights read once, a row of each table for each token, rows written
        once. Padding counts as if it were written.
        """
        rows = sum(int(array.nbytes) for array in (self.q, self.k, self.v))
        written = int(self.q.nbytes) + (self.k.size + self.v.size) * np.dtype(self.stored).itemsize
        tables = 2 * self.tokens * self.rotated // 2 * FLOAT32.size
        given = (self.slot_mapping, self.positions, self.q_weight, self.k_weight)
        return rows + written + tables + sum(int(array.nbytes) for array in given if array is not None)

    @property
    def aligned(self) -> bool:
        """Whether every row of q, k and v starts at a multiple of 16 bytes, as 128-bit loads need."""
        return self.rows.aligned

    def with_aligned_rows(self) -> "PrepareProblem":
        """The same problem with contiguous copies of those of q, k and v that 128-bit loads cannot read."""
        if self.aligned:
            return self
        rows = self.rows.with_aligned_rows()
        return replace(self, q=rows.q, k=rows.k, v=rows.v)
