"""The validated input of attention: code that holds a `Problem` need not check it again."""

import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cuda_reference.files import fork_safe
from cuda_reference.shown import shown
from flashcore_numba.core.element import ACCEPTED_NAMES, FLOAT32, Element, accepted, of
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import (
    CALLED,
    LARGEST_SCALE,
    LARGEST_SCALE_TOLD,
    OFF,
    Features,
    Sequence,
    as_float,
    check_over_softcap,
)
from flashcore_numba.core.mask import Mask

HEAD_DIMS = (32, 64, 80, 96, 128, 192, 256)  # the head dimensions that some stage of the ladder serves
ROWS_LIMIT = 1 << 30  # of one head, so that a kernel's int reaches past the last tile
ALL_ROWS_LIMIT = (1 << 31) - 1  # of all heads
GRID_LIMIT = 65535  # blocks along y and z of a CUDA grid: where the stages put heads and batch
ALIGNMENT = 16  # bytes of one 128-bit load
AXES = ("batch", "head", "row")


@fork_safe
@dataclass(frozen=True, eq=False)
class Problem:
    """Attention of query rows `q` over keys `k` and values `v`: softmax(scale * Q K^T) V.

    q: [B, H, S_q, D], k: [B, H_kv, S_k, D], v: [B, H_kv, S_k, D_v], all float16 or all bfloat16 (that of
    ml_dtypes), all NumPy arrays or all CuPy arrays of one GPU. H is a multiple of H_kv; query head h reads
    K/V head h // (H / H_kv) (grouped queries: Ainslie et al. 2023, GQA). `causal` masks with bottom-right
    alignment: the last query row sees every key, each row before it one key less (PyTorch's `is_causal` is
    aligned top-left). `scale` multiplies the scores: any number whose product with log2(e) is a finite
    float32, zero and negative included; None means 1 / sqrt(D). The last dimension must be contiguous and no
    stride negative; other strides are free, so transposed, sliced and broadcast views are fine. `features`:
    windows, softcap, sinks, ALiBi, ragged batches; their arrays are where q is.

    Raises ArgumentError, which names the argument, its value and what is accepted.
    """

    q: Any
    k: Any
    v: Any
    causal: bool = False
    scale: Any = None  # any real number goes in, a float comes out
    features: Features = OFF

    def __post_init__(self) -> None:
        for name in "qkv":
            check_rows(name, getattr(self, name))
        _check_together(self.q, self.k, self.v)
        object.__setattr__(self, "causal", checked_flag("causal", self.causal))
        object.__setattr__(self, "scale", checked_scale(self.scale, self.head_dim))
        if self.features is not OFF:
            for name, array in self.features.arrays.items():
                check_kind(CALLED.get(name, name), array)
                check_place(CALLED.get(name, name), array, self.q)
            object.__setattr__(self, "features", self.features.checked(self.q, self.k, self.v))
            check_over_softcap(self.scale, self.features.softcap)
            _check_prior(self.features)
            _check_epilogue(self.features)
            _check_arriving(self)
            for name, array in self.features.arrays.items():
                check_starts(CALLED.get(name, name), array)
            if not self.features.names:
                object.__setattr__(self, "features", OFF)

    @property
    def inputs(self) -> dict[str, Any]:
        """All arrays that a stage reads, by name."""
        return {"q": self.q, "k": self.k, "v": self.v, **self.features.arrays}

    def on(self, arrays: Mapping[str, Any]) -> "Problem":
        """The same problem on other arrays; `arrays` has all names of `inputs`."""
        given = {name: arrays[name] for name in self.features.arrays}
        features = replace(self.features, **given) if given else self.features
        return replace(self, **{name: arrays[name] for name in "qkv"}, features=features)

    @property
    def batch(self) -> int:
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Query heads, H."""
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        """Heads of K and V, H_kv."""
        return self.k.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share one K/V head: 1 is multi-head attention, H is multi-query attention."""
        return self.heads // self.kv_heads

    @property
    def seq_q(self) -> int:
        return self.q.shape[2]

    @property
    def seq_k(self) -> int:
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        return self.q.shape[3]

    @property
    def value_dim(self) -> int:
        """Columns of v and of the output, D_v."""
        return self.v.shape[3]

    @property
    def columns(self) -> int:
        """The most that a row of q, k, v or the output has."""
        return max(self.head_dim, self.value_dim)

    @property
    def element(self) -> Element:
        """The type of q, k, v and the output."""
        return of(self.q.dtype)

    @cached_property
    def mask(self) -> Mask:
        """Which keys each query row sees, where all sequences are as long as the arrays."""
        return self.features.mask(self.seq_q, self.seq_k, self.causal)

    @property
    def windowed(self) -> bool:
        """Whether a window hides keys that the causal mask does not."""
        return self.mask.left >= 0 or (self.mask.right >= 0 and not self.causal)

    @property
    def sequence_count(self) -> int:
        """Sequences of the batch: B, or of packed arrays."""
        bounds = self.features.cu_seqlens_q
        return self.batch if bounds is None else bounds.shape[0] - 1

    @cached_property
    def sequences(self) -> list[Sequence]:
        """Every sequence of the batch. Waits for a GPU where lengths are arrays on it."""
        return self.features.sequences(self.q, self.k, self.causal)

    @property
    def on_gpu(self) -> bool:
        return _is_cupy(self.q)

    @property
    def visible_pairs(self) -> int:
        """(query row, key) pairs of one head of all sequences that the mask lets through."""
        if self.features.arrays.keys() & {"cu_seqlens_q", "seqused_k"}:
            return sum(each.mask.pairs for each in self.sequences)
        return self.batch * self.mask.pairs

    @property
    def flops(self) -> int:
        """Of both products: 2 D + 2 D_v floating-point operations per pair that the mask lets through."""
        return 2 * (self.head_dim + self.value_dim) * self.visible_pairs * self.heads

    @property
    def exponentials(self) -> int:
        """One for each pair that the mask lets through."""
        return self.visible_pairs * self.heads

    @property
    def min_bytes(self) -> int:
        """Bytes that must move: q, k, v, what was computed before and what follows attention are read once,
        the output is written once.
        """
        rows, size = self.q.size // self.head_dim, self.q.dtype.itemsize
        out_bytes = rows * self.value_dim * (FLOAT32.size if self.features.float32_out else size)
        read = [*self.features.prior.values(), *self.features.epilogue.values()]
        return self.q.nbytes + self.k.nbytes + self.v.nbytes + out_bytes + sum(array.nbytes for array in read)

    @property
    def shape_label(self) -> str:
        """`1x8x512x64` (B x H x S x D), with `8/2` for grouped heads, `128/512` for S_q other than S_k and
        `192/128` for D other than D_v.
        """
        heads = f"{self.heads}" if self.group == 1 else f"{self.heads}/{self.kv_heads}"
        seq = f"{self.seq_q}" if self.seq_q == self.seq_k else f"{self.seq_q}/{self.seq_k}"
        dims = f"{self.head_dim}" if self.head_dim == self.value_dim else f"{self.head_dim}/{self.value_dim}"
        return f"{self.batch}x{heads}x{seq}x{dims}"

    @cached_property
    def aligned(self) -> bool:
        """Whether every row starts at a multiple of 16 bytes, as 128-bit loads need."""
        return all(rows_aligned(x) for x in (self.q, self.k, self.v))

    def with_aligned_rows(self) -> "Problem":
        """The same problem with contiguous copies of those arrays whose rows 128-bit loads cannot read.

        The copy costs one read and one write of each such array; aligned problems come back unchanged.
        """
        if self.aligned:
            return self
        return replace(self, **{name: with_aligned(getattr(self, name)) for name in "qkv"})


def address(array: Any) -> int:
    """Where the first element of a NumPy or CuPy array lies."""
    return array.data.ptr if _is_cupy(array) else array.__array_interface__["data"][0]


def check_starts(name: str, array: Any) -> None:
    """Raise unless each number starts at a multiple of its size, as none does in some fields of records."""
    size = array.dtype.itemsize
    steps = (step for extent, step in zip(array.shape, array.strides, strict=True) if extent > 1)
    if any(place % size for place in (address(array), *steps)):
        raise ArgumentError(
            f"{name} has strides {array.strides} bytes or an odd address: each number must start at a "
            f"multiple of {size} bytes"
        )


def rows_aligned(array: Any) -> bool:
    """Whether every row of a [B, H, S, D] array starts at a multiple of 16 bytes."""
    steps = (stride for size, stride in zip(array.shape[:3], array.strides[:3], strict=True) if size > 1)
    return address(array) % ALIGNMENT == 0 and all(step % ALIGNMENT == 0 for step in steps)


def checked_time_limit(seconds: Any) -> float | None:
    """A number of seconds above 0, or None. Raises ArgumentError."""
    if seconds is None:
        return None
    value = as_float(seconds)
    if not value > 0:
        raise ArgumentError(
            f"time_limit is {shown(seconds)}: it must be a number of seconds above 0, or None for no limit"
        )
    return value


def check_layout(name: str, array: Any, axes: tuple[str, ...] = AXES, last: str = "D") -> None:
    """Raise unless the last dimension is contiguous and no stride is negative.

    axes, last: the dimensions before the last, and that one, for the message.
    """
    itemsize = array.dtype.itemsize
    if array.strides[-1] != itemsize:
        raise ArgumentError(
            f"{name} has strides {array.strides} bytes: the last dimension ({last}) must be contiguous "
            f"(stride {itemsize}); copy it first, for example with ascontiguousarray or .contiguous()"
        )
    for axis, stride in zip(axes, array.strides, strict=False):
        if stride < 0:
            raise ArgumentError(
                f"{name} has strides {array.strides} bytes: the {axis} stride is negative; strides must be "
                ">= 0, so copy the reversed view first"
            )


def placed_on(array: Any) -> str:
    """`the host` or `GPU 0`."""
    return f"GPU {array.device.id}" if _is_cupy(array) else "the host"


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "cupy"


def with_aligned(array: Any) -> Any:
    """The array, or a contiguous copy where 128-bit loads cannot read its rows.

    NumPy promises only the alignment of the item, so a few spare bytes make it 16.
    """
    if rows_aligned(array):
        return array
    if _is_cupy(array):
        return array.copy(order="C")
    spare = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -address(spare) % ALIGNMENT
    copy = spare[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def listed(items: Iterable[object]) -> str:
    """`32, 64 and 80`."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def check_kind(name: str, array: Any) -> None:
    """Raise unless it is a plain NumPy or CuPy array."""
    if not (isinstance(array, np.ndarray) or _is_cupy(array)):
        raise ArgumentError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}: a Problem holds NumPy or CuPy "
            "arrays; flashcore_numba.attention() takes other kinds of array"
        )
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"{name} is a masked array: a plain array is needed, for example {name}.filled(0)"
        )


def check_place(name: str, array: Any, q: Any) -> None:
    """Raise unless it is where q is."""
    here, there = placed_on(array), placed_on(q)
    if here != there:
        raise ArgumentError(f"{name} is on {here} but q is on {there}: all must be in one place")


def check_rows(name: str, array: Any) -> None:
    """Raise unless it is an array [batch, heads, rows, D] that kernels can read."""
    check_kind(name, array)
    if not accepted(array.dtype):
        raise ArgumentError(
            f"{name} has dtype {str(array.dtype)[:100]}: accepted are {ACCEPTED_NAMES}, in the "
            "native byte order"
        )
    if array.ndim != 4:
        raise ArgumentError(
            f"{name} has shape {tuple(array.shape)}: four dimensions are needed, [batch, heads, rows, D]"
        )
    batch, heads, rows, head_dim = array.shape
    if batch == 0:
        raise ArgumentError(
            f"{name} has an empty batch, shape {tuple(array.shape)}: batch must be at least 1"
        )
    if heads == 0:
        raise ArgumentError(f"{name} has no heads, shape {tuple(array.shape)}: heads must be at least 1")
    if rows == 0:
        raise ArgumentError(
            f"{name} has length zero, shape {tuple(array.shape)}: the length must be at least 1"
        )
    if head_dim not in HEAD_DIMS:
        raise ArgumentError(f"{name} has head dimension {head_dim}: accepted are {listed(HEAD_DIMS)}")
    for what, size in (("batch", batch), ("heads", heads)):
        if size > GRID_LIMIT:
            raise ArgumentError(
                f"{name} has {what} {size}: at most {GRID_LIMIT} fit a CUDA grid; split the input"
            )
    if rows > ROWS_LIMIT:
        raise ArgumentError(
            f"{name} has length {rows}: at most {ROWS_LIMIT} rows are accepted; split the input"
        )
    if batch * heads * rows > ALL_ROWS_LIMIT:
        raise ArgumentError(
            f"{name} has shape {tuple(array.shape)}, {batch * heads * rows} rows in all: at most "
            f"{ALL_ROWS_LIMIT} are accepted; split the input"
        )
    check_layout(name, array)


def _check_prior(features: Features) -> None:
    """Raise unless kernels can read what was computed before, two numbers at a time."""
    if features.prior_out is None:
        return
    out, lse = CALLED["prior_out"], CALLED["prior_lse"]
    _check_read_in_place(out, features.prior_out)
    check_layout(lse, features.prior_lse, AXES[:2], last="S_q")


def _check_epilogue(features: Features) -> None:
    """Raise unless kernels can read a gate four numbers at a time, and a weight that is no float32 two."""
    if features.gate is not None:
        _check_read_in_place("gate", features.gate)
    weight = features.norm_weight
    if weight is not None and weight.dtype != FLOAT32.dtype and address(weight) % ALIGNMENT:
        raise ArgumentError(f"{CALLED['norm_weight']} must start at a multiple of {ALIGNMENT} bytes")


def _check_arriving(problem: "Problem") -> None:
    """Raise where a copy of k and v would have to be made before they have come."""
    if problem.features.keys_from is not None and not problem.aligned:
        raise ArgumentError(
            "keys_from is given, and each row of q, k and v must start at a multiple of 16 bytes then: "
            "no aligned copy can be made of keys that still come"
        )


def _check_read_in_place(name: str, array: Any) -> None:
    """Raise unless its rows are contiguous and start where kernels read several numbers at once."""
    check_layout(name, array)
    if not rows_aligned(array):
        raise ArgumentError(
            f"{name} has strides {array.strides} bytes or an odd address: each row must start at a multiple "
            "of 16 bytes"
        )


def _check_together(q: Any, k: Any, v: Any) -> None:
    for name, array in (("k", k), ("v", v)):
        check_place(name, array, q)
        if array.dtype != q.dtype:
            raise ArgumentError(f"{name} has dtype {array.dtype}: q has {q.dtype}, and they must be equal")
        if array.shape[0] != q.shape[0]:
            raise ArgumentError(
                f"{name} has batch {array.shape[0]}: q has batch {q.shape[0]}, and they must be equal"
            )
    if k.shape[3] != q.shape[3]:
        raise ArgumentError(f"k has head dimension {k.shape[3]}: q has {q.shape[3]}, and they must be equal")
    if v.shape[1] != k.shape[1]:
        raise ArgumentError(f"v has {v.shape[1]} heads: k has {k.shape[1]}, and they must be equal")
    if v.shape[2] != k.shape[2]:
        raise ArgumentError(f"v has length {v.shape[2]}: k has {k.shape[2]}, and each key needs one value")
    if q.shape[1] % k.shape[1]:
        raise ArgumentError(f"k has {k.shape[1]} heads: q has {q.shape[1]}, which must be a multiple of that")


def checked_flag(name: str, flag: Any) -> bool:
    """True or False, of Python. Raises ArgumentError."""
    if not isinstance(flag, bool | np.bool_):
        raise ArgumentError(f"{name} is {shown(flag)}: it must be True or False")
    return bool(flag)


def checked_scale(scale: Any, head_dim: int) -> float:
    """The scale as a float; None is 1 / sqrt(D). Raises ArgumentError."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    if isinstance(scale, bool | np.bool_) or not isinstance(scale, numbers.Real):
        raise ArgumentError(f"scale is {shown(scale)}: it must be a finite number, or None for 1 / sqrt(D)")
    try:
        value = float(scale)
    except OverflowError:  # an int or a fraction beyond every float
        value = math.inf
    except Exception as error:  # a class of numbers of the caller's own
        raise ArgumentError(f"scale is {shown(scale)}, which is no float: {shown(error)}") from error
    if not abs(value) <= LARGEST_SCALE:
        raise ArgumentError(
            f"scale is {shown(scale)}: it must be from -{LARGEST_SCALE_TOLD} to {LARGEST_SCALE_TOLD}, where "
            "scale * log2(e) is finite as a float32, or None for 1 / sqrt(D)"
        )
    return value
