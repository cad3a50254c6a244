"""What models add to attention: the one list of it in Python. CUDA C has the same in `features.cuh`."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import FLOAT32, LEAST_FLOAT32
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.mask import UNBOUNDED, Mask

ARRAYS: Mapping[str, np.dtype | None] = {
    "sinks": np.dtype(np.float32),
    "alibi_slopes": np.dtype(np.float32),
    "seqused_k": np.dtype(np.int32),
    "cu_seqlens_q": np.dtype(np.int32),
    "cu_seqlens_k": np.dtype(np.int32),
    "prior_out": np.dtype(np.float32),
    "prior_lse": np.dtype(np.float32),
    "norm_weight": None,
    "gate": None,
    "keys_from": np.dtype(np.int32),
}
"""The features that are arrays, and their types; None: that of q, and for a weight also float32."""

MERGING = ("float32_out", "prior_out", "prior_lse")
"""Of the features, those for a result that is computed in parts, each over other keys."""

EPILOGUE = ("norm_weight", "gate")
"""Of the features, those that come after attention, in their order."""

ARRIVING = ("keys_from",)
"""Of the features, those for keys that come while a kernel runs."""

OF_MODELS = (
    *("window", "softcap"),
    *(name for name in ARRAYS if name not in MERGING + EPILOGUE + ARRIVING),
)
"""Of the features, those that change which keys count and by how much."""

ALL = (*OF_MODELS, *MERGING, *EPILOGUE, *ARRIVING)
"""All features, by the names of the fields of `Features`."""

ARGUMENTS = {
    "float32_out": "out in float32",
    "prior_out": "prior",
    "prior_lse": "prior",
    "norm_weight": "head_norm",
}
"""The arguments of those features that have other names."""

CALLED = {"prior_out": "prior[0]", "prior_lse": "prior[1]", "norm_weight": "head_norm[0]"}
"""What messages call an array that is part of an argument."""


# Kernels take a scale and a softcap in units of log2, as float32: times log2(e). Rounded down in messages.
LARGEST_SCALE, LARGEST_SCALE_TOLD = FLOAT32.largest / math.log2(math.e), "2.3586e+38"


class Sequence(NamedTuple):
    """One sequence of a batch: where it is in the arrays, and what its rows see.

    number: its place in the batch. batch, rows, keys: which part of q, k and v it is, along the first
    dimension and, for its query rows and its keys, along the third. mask: of its own rows and keys, which
    count from 0.
    """

    number: int
    batch: int
    rows: slice
    keys: slice
    mask: Mask


@dataclass(frozen=True, eq=False)
class Features:
    """Options of attention beside the causal mask and the scale; the defaults turn everything off.

    window: (left, right). The diagonal ends at the last query row and the last key; a row whose place on it
    is key d sees the keys from d - left to d + right, both included; -1 is unbounded (Beltagy et al. 2020,
    Longformer). The causal mask makes `right` 0.
    softcap: c > 0 makes c * tanh(x / c) of a scaled score x, before the mask (Gemma 2, 2024); 0 is off.
    sinks: float32 [H]: a logit of each query head that joins the maximum and the sum of every row and has no
    value (gpt-oss, 2025). The LSE contains it; without it, LSE + log(1 - exp(sink - LSE)).
    alibi_slopes: float32 [H] or [B, H]: key j adds -slope * |d - j| to a score (Press et al. 2022, ALiBi),
    after the softcap.
    seqused_k: int32 [B]: how many keys of each sequence count, 0 to S_k. What k and v hold after them does
    not matter, NaN included. The last key that counts is the end of the diagonal.
    cu_seqlens_q, cu_seqlens_k: int32 [B + 1]: B sequences of different lengths, packed. Where the query rows
    and the keys of each begin, and, last, where they end; q is [1, H, total_q, D] then, k and v are
    [1, H_kv, total_k, D]. A sequence may be empty on either side.
    float32_out: the output is float32, not of q's type.
    prior_out, prior_lse: float32 [B, H, S_q, D_v] and [B, H, S_q], the output and the LSE of the same query
    rows over other keys: with those of this problem they are one softmax. Where that LSE is -inf, the row
    has seen no key, and what prior_out holds does not matter. If both parts have the sinks, the sinks count
    twice.
    norm_weight, norm_eps: a row x of D_v columns of a head becomes x / sqrt(mean(x^2) + norm_eps) *
    norm_weight (Zhang and Sennrich 2019, RMSNorm); the weight is float32 or of q's type, [D_v] or [H, D_v].
    gate: [B, H, S_q, D_v] of q's type: the output, normed if there is a norm, is multiplied by sigmoid(gate)
    (Qiu et al. 2025, Gated Attention for Large Language Models). The LSE knows neither.
    keys_from: int32 [1] or [H_kv], on the device: keys come while the kernel runs, the last ones first, and
    those from this number on are there, of all heads or of each. The code that copies them writes a smaller
    number after each copy, at last 0. A kernel waits for the keys of a tile before it loads them: if a number
    never falls, it never ends. It begins with the last heads.
    """

    window: tuple[int, int] = (UNBOUNDED, UNBOUNDED)
    softcap: float = 0.0
    sinks: Any = None
    alibi_slopes: Any = None
    seqused_k: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    float32_out: bool = False
    prior_out: Any = None
    prior_lse: Any = None
    norm_weight: Any = None
    norm_eps: Any = 0.0  # any real number goes in, a float comes out
    gate: Any = None
    keys_from: Any = None

    @property
    def arrays(self) -> dict[str, Any]:
        """Those of `ARRAYS` that are given."""
        return {name: value for name in ARRAYS if (value := getattr(self, name)) is not None}

    @property
    def prior(self) -> dict[str, Any]:
        """Of `arrays`, what was computed before."""
        return {name: array for name, array in self.arrays.items() if name in MERGING}

    @property
    def epilogue(self) -> dict[str, Any]:
        """Of `arrays`, what comes after attention."""
        return {name: array for name, array in self.arrays.items() if name in EPILOGUE}

    @property
    def names(self) -> tuple[str, ...]:
        """The features that are on; cu_seqlens_k comes with cu_seqlens_q, prior_lse with prior_out."""
        numbers_on = {
            "window": self.window != OFF.window,
            "softcap": self.softcap != 0,
            "float32_out": self.float32_out,
        }
        return *(name for name, on in numbers_on.items() if on), *self.arrays

    @property
    def label(self) -> str:
        """`window=(3, 0) sinks`: what is on, with numbers where they are numbers."""
        told = {"window": f"window={self.window}", "softcap": f"softcap={self.softcap:g}"}
        return " ".join(told.get(name, name) for name in self.names)

    @property
    def adjusting(self) -> bool:
        """Whether softcap or ALiBi change the scores."""
        return self.softcap != 0 or self.alibi_slopes is not None

    @property
    def ragged(self) -> bool:
        """Whether q, k and v hold sequences of different lengths, packed."""
        return self.cu_seqlens_q is not None

    def slopes(self, index: int, heads: int) -> np.ndarray:
        """[H]: the ALiBi slopes of one sequence, on the host; zeros where there are none."""
        if self.alibi_slopes is None:
            return np.zeros(heads)
        slopes = on_host(self.alibi_slopes)
        return slopes if slopes.ndim == 1 else slopes[index]

    def mask(self, seq_q: int, seq_k: int, causal: bool) -> Mask:
        """What the rows of a sequence of these lengths see."""
        left, right = self.window
        return Mask(seq_q, seq_k, left, 0 if causal else right)

    def sequences(self, q: Any, k: Any, causal: bool) -> list[Sequence]:
        """Every sequence of the batch. Copies lengths from the GPU, for which it waits."""
        used = None if self.seqused_k is None else on_host(self.seqused_k)
        found = []
        if self.ragged:
            bounds_q, bounds_k = on_host(self.cu_seqlens_q), on_host(self.cu_seqlens_k)
            places = [
                (0, *(int(bounds[i + j]) for bounds in (bounds_q, bounds_k) for j in (0, 1)))
                for i in range(len(bounds_q) - 1)
            ]
        else:
            places = [(b, 0, q.shape[2], 0, k.shape[2]) for b in range(q.shape[0])]
        for number, (batch, row, end_row, key, end_key) in enumerate(places):
            end_key = end_key if used is None else key + int(used[number])
            mask = self.mask(end_row - row, end_key - key, causal)
            found.append(Sequence(number, batch, slice(row, end_row), slice(key, end_key), mask))
        return found

    def checked(self, q: Any, k: Any, v: Any) -> "Features":
        """The same with `window` and `softcap` as plain numbers, for checked q, k and v.

        Raises ArgumentError. Lengths inside the arrays are not looked at: on a GPU that would wait for it.
        """
        heads = q.shape[1]
        count = self._check_ragged(q, k)
        shapes = {
            "sinks": ((heads,),),
            "alibi_slopes": ((heads,), (count, heads)),
            "seqused_k": ((count,),),
            "cu_seqlens_q": ((count + 1,),),
            "cu_seqlens_k": ((count + 1,),),
            "prior_out": ((*q.shape[:3], v.shape[3]),),
            "prior_lse": (tuple(q.shape[:3]),),
            "norm_weight": ((v.shape[3],), (heads, v.shape[3])),
            "gate": ((*q.shape[:3], v.shape[3]),),
            "keys_from": ((1,), (k.shape[1],)),
        }
        if (self.prior_out is None) != (self.prior_lse is None):
            missing, other = sorted(("prior_out", "prior_lse"), key=lambda name: name in self.arrays)
            raise ArgumentError(f"{CALLED[missing]} is None but {CALLED[other]} is given: both are needed")

        return self.fitted(shapes, max(q.shape[2], k.shape[2]), q.dtype)

    def fitted(
        self, shapes: Mapping[str, tuple[tuple[int, ...], ...]], farthest: int, dtype: Any = None
    ) -> "Features":
        """`checked` by the shapes that each array may have; no key is `farthest` from the diagonal. dtype: of
        q, where something may follow attention.
        """
        for name, array in self.arrays.items():
            own = ARRAYS[name]
            accepted: tuple[Any, ...] = (dtype,) if own is None else (own,)
            if name == "norm_weight":
                accepted += (FLOAT32.dtype,)
            _check_array(name, array, accepted, shapes[name])
        arrays = {name: getattr(self, name) for name in ARRAYS}
        left, right = (UNBOUNDED if side >= farthest else side for side in _checked_window(self.window))
        softcap = _checked_softcap(self.softcap)
        norm_eps = 0.0 if self.norm_weight is None else checked_eps("head_norm[1], eps,", self.norm_eps)
        return Features((left, right), softcap, float32_out=self.float32_out, norm_eps=norm_eps, **arrays)

    def check_lengths(self, q: Any, k: Any) -> None:
        """Raise ArgumentError unless the lengths, arrays on the host, fit q and k."""
        for name, array in (("cu_seqlens_q", q), ("cu_seqlens_k", k)):
            bounds = getattr(self, name)
            if bounds is None:
                continue
            if bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any() or bounds[-1] > array.shape[2]:
                raise ArgumentError(
                    f"{name} is {shown(bounds.tolist())}: it must begin at 0, never fall and end at "
                    f"{array.shape[2]} at the most, the rows of {name[-1]}"
                )
        if self.seqused_k is None:
            return
        for each, used in zip(
            replace(self, seqused_k=None).sequences(q, k, False), self.seqused_k, strict=True
        ):
            if not 0 <= used <= each.mask.seq_k:
                raise ArgumentError(
                    f"seqused_k is {int(used)} for sequence {each.number}: it must be 0 to "
                    f"{each.mask.seq_k}, its number of keys"
                )

    def _check_ragged(self, q: Any, k: Any) -> int:
        """The number of sequences."""
        if self.cu_seqlens_q is None and self.cu_seqlens_k is None:
            return q.shape[0]
        for name, other in (("cu_seqlens_q", "cu_seqlens_k"), ("cu_seqlens_k", "cu_seqlens_q")):
            bounds = getattr(self, name)
            if bounds is None:
                raise ArgumentError(f"{name} is None but {other} is given: packed sequences need both")
            if getattr(bounds, "ndim", None) != 1 or bounds.shape[0] < 2:
                raise ArgumentError(
                    f"{name} has shape {tuple(getattr(bounds, 'shape', ()))}: [B + 1] is needed, where each "
                    "of B >= 1 sequences begins, and the end of the last"
                )
        for name, array in (("q", q), ("k", k)):
            if array.shape[0] != 1:
                raise ArgumentError(
                    f"{name} has batch {array.shape[0]}: packed sequences are one batch, [1, H, total, D]"
                )
        return self.cu_seqlens_q.shape[0] - 1


OFF = Features()


def on_host(array: Any) -> np.ndarray:
    """A NumPy array of what a NumPy or CuPy array holds."""
    return array if isinstance(array, np.ndarray) else array.get()


def _check_array(name: str, array: Any, dtypes: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
    strided, name = name in (*MERGING, "gate"), CALLED.get(name, name)
    if array.dtype not in dtypes:
        accepted = " and ".join(map(str, dict.fromkeys(dtypes)))
        only = "is" if len(dtypes) == 1 else "are"
        raise ArgumentError(f"{name} has dtype {str(array.dtype)[:100]}: only {accepted} {only} accepted")
    if tuple(array.shape) not in shapes:
        accepted = " or ".join(map(str, shapes))
        raise ArgumentError(f"{name} has shape {tuple(array.shape)}: it must be {accepted} here")
    if strided:  # `Problem` says how
        return
    expected = array.dtype.itemsize
    for size, step in reversed(tuple(zip(array.shape, array.strides, strict=True))):
        if size > 1 and step != expected:
            raise ArgumentError(f"{name} has strides {array.strides} bytes: it must be C-contiguous")
        expected *= size


def _checked_window(window: Any) -> tuple[int, int]:
    try:
        left, right = window
    except (TypeError, ValueError):
        left = right = None
    sides = [
        int(side)
        for side in (left, right)
        if isinstance(side, numbers.Integral) and not isinstance(side, bool | np.bool_)
    ]
    if len(sides) < 2 or min(sides) < UNBOUNDED or max(sides) >= 1 << 31:
        raise ArgumentError(
            f"window is {shown(window)}: it must be (left, right), each a number of keys, 0 or more, or -1 "
            "where unbounded"
        )
    return sides[0], sides[1]


def as_float(number: Any) -> float:
    """A real number as a float; NaN for what is none, as True is none, or is beyond every float."""
    if isinstance(number, bool | np.bool_) or not isinstance(number, numbers.Real):
        return math.nan
    try:
        return float(number)
    except Exception:  # beyond every float, or a class of numbers of the caller's own
        return math.nan


def checked_eps(name: str, eps: Any) -> float:
    """The eps of a norm as a float. Raises ArgumentError, with `name` for it."""
    value = as_float(eps)
    if not LEAST_FLOAT32 <= value <= FLOAT32.largest:
        raise ArgumentError(
            f"{name} is {shown(eps)}: it must be a finite float32 above 0, from {LEAST_FLOAT32:.3g} on"
        )
    return value


def check_over_softcap(scale: float, softcap: float) -> None:
    """Raise ArgumentError where kernels could not divide them in float32."""
    if softcap and abs(scale) > softcap * FLOAT32.largest:
        raise ArgumentError(f"softcap is {softcap:g}: with scale {scale:g} a score over it is no float32")


def _checked_softcap(softcap: Any) -> float:
    value = as_float(softcap)
    if value != 0 and not LEAST_FLOAT32 <= value <= LARGEST_SCALE:
        raise ArgumentError(
            f"softcap is {shown(softcap)}: it must be 0, or a finite float32 above 0, from "
            f"{LEAST_FLOAT32:.3g} to {LARGEST_SCALE_TOLD}"
        )
    return value
