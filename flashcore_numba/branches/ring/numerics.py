"""What a rank computes at a step: attention over one chunk, merged with the steps before it; and backward.

Queries and outputs are [B, H, rows, D], keys and values [B, H_kv, rows, D].
"""

import math
from functools import cache
from typing import Any, Protocol

import numpy as np

from cuda_reference.extras import explained
from flashcore_numba.attention import attention, best_stage
from flashcore_numba.branches.backward.call import attention_backward
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.decode.merging import merged
from flashcore_numba.calls import find_stage, first_that_serves, refuse
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.features import MERGING, OFF, Features
from flashcore_numba.core.output import LSE
from flashcore_numba.core.problem import Problem

Arrays = tuple[Any, ...]


class Numerics(Protocol):
    """The arithmetic of a step. `attend` and `backward` are what `Rank.launch` takes, after their keywords
    are bound.
    """

    def check_waits(self) -> None:
        """Raise UnsupportedError unless `attend` waits for keys that still come."""

    def attend(
        self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None, keys_from: Any = None
    ) -> None:
        """reads: q, k, v, and where steps came before their out and LSE. writes: out and LSE of them all.

        The out of the steps before is float32; that which is written is float32 or q's type. LSE: float32,
        natural logarithm. keys_from: as for `attention`.
        """

    def backward(self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None) -> None:
        """reads: q, k, v, out and LSE over *all* keys, dout, dq so far. writes: dq with this step's part
        added, and the part of these rows in dk and dv, all float32.
        """


class Float32:
    """NumPy, in float32 throughout: it rounds to no other type. It runs when all keys have come."""

    def check_waits(self) -> None:
        """What carries out the programs with it does the waiting."""

    def attend(
        self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None, keys_from: Any = None
    ) -> None:
        q, k, v, *before = reads
        p, lse = _weights(q, k, causal, scale)
        put(p @ _repeated(v, q), lse, before, writes, np)

    def backward(self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None) -> None:
        q, k, v, out, lse, dout, dq = reads
        kv_heads = k.shape[1]
        k, v = _repeated(k, q), _repeated(v, q)
        q, out, dout = (each.astype(np.float32) for each in (q, out, dout))
        scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
        p = np.exp(_scores(q, k, causal, scale) - lse[..., None])
        ds = p * (dout @ v.swapaxes(2, 3) - (dout * out).sum(axis=3, keepdims=True))
        writes[0][...] = dq + np.float32(scale) * (ds @ k)
        parts = np.float32(scale) * (ds.swapaxes(2, 3) @ q), p.swapaxes(2, 3) @ dout
        for part, target in zip(parts, writes[1:], strict=True):
            batch, heads, rows, dim = part.shape
            target[...] = part.reshape(batch, kv_heads, heads // kv_heads, rows, dim).sum(axis=2)


class Stages:
    """FlashCore's kernels, wherever the arrays are. stage, backward_stage: as `attention` and
    `attention_backward` take them.

    A stage that serves `prior` merges as it writes, in float32. What another one computes is rounded to q's
    type, and merged afterwards.
    """

    def __init__(self, stage: Any = None, backward_stage: Any = None) -> None:
        self.stage, self.backward_stage = stage, backward_stage
        self.merges = stage is None or {*MERGING} <= {*find_stage(stage).features}
        self.takes_lengths = stage is None or "seqused_k" in find_stage(stage).features

    def check_waits(self) -> None:
        if self.stage is None and gpu.available() and (found := gpu.compute_capability()) != (9, 0):
            has = "{}.{}".format(*found or ("?", "?"))
            raise UnsupportedError(
                "way='gated' needs stage 15, which waits for keys on compute capability 9.0: this GPU has "
                f"{has}; way='gather' runs on it"
            )
        if self.stage is not None and "keys_from" not in find_stage(self.stage).features:
            label = find_stage(self.stage).label
            raise UnsupportedError(
                f"way='gated' needs a stage that waits for keys: {label} does not, 15 does"
            )

    def check(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, causal: bool, parts: bool) -> None:
        """Raise ArgumentError or UnsupportedError where `attend` would refuse arrays like these on the host.
        parts: whether out is computed in several, in float32.
        """
        features = OFF
        if parts and self.merges:
            before = np.empty(q.shape, np.float32), np.empty(q.shape[:3], np.float32)
            features = Features(float32_out=True, prior_out=before[0], prior_lse=before[1])
        problem = Problem(q, k, v, causal, features=features)
        if self.stage is None:
            best_stage(problem, (LSE,))
        else:
            refuse(find_stage(self.stage), problem, (LSE,))

    def check_backward(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        out: np.ndarray,
        lse: np.ndarray,
        dout: np.ndarray,
        *,
        causal: bool,
    ) -> None:
        """Raise ArgumentError or UnsupportedError where `backward` would refuse arrays like these on the
        host.
        """
        with explained():
            from flashcore_numba.branches.backward import ladder
        problem = BackwardProblem(Problem(q, k, v, causal), out, lse, dout)
        if self.backward_stage is None:
            first_that_serves(ladder.preferred(problem), ladder.LADDER, problem)
        else:
            refuse(ladder.find(self.backward_stage), problem)

    def attend(
        self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None, keys_from: Any = None
    ) -> None:
        q, k, v, *before = reads
        how: dict[str, Any] = {"causal": causal, "scale": scale, "stage": self.stage, "return_lse": True}
        if keys_from is not None:
            how["keys_from"] = keys_from
        if self.merges:
            _, lse = attention(q, k, v, prior=tuple(before) or None, out=writes[0], **how)
            assign(writes[1], lse)
        else:
            part, lse = attention(q, k, v, **how)
            put(part, lse, before, writes, module_of(q))

    def attend_both(
        self,
        reads: Arrays,
        writes: Arrays,
        half: int,
        ends: tuple[int, int],
        scale: float | None,
        keys_from: Any = None,
    ) -> bool:
        """`attend_pieces` of equal pieces in one call, as a batch of two sequences which see some of the same
        keys. Returns False, and nothing is written, where that cannot be.
        """
        q, k, v = reads
        if isinstance(q, np.ndarray) or q.shape[0] > 1 or q.shape[2] != 2 * half or not self.takes_lengths:
            return False
        heads = q.shape[1]
        pieces = [x.view(heads, 2, half, *x.shape[3:]).transpose(0, 1) for x in (q, *writes)]
        keys = [rows_of(x, slice(0, ends[1])).expand(2, -1, -1, -1) for x in (k, v)]
        used = _lengths(ends, q.device)
        how: dict[str, Any] = {"causal": True, "scale": scale, "stage": self.stage, "keys_from": keys_from}
        _, lse = attention(pieces[0], *keys, seqused_k=used, out=pieces[1], return_lse=True, **how)
        pieces[2].copy_(lse)
        return True

    def backward(self, reads: Arrays, writes: Arrays, *, causal: bool, scale: float | None) -> None:
        q, k, v, out, lse, dout, dq = reads
        parts = attention_backward(
            dout, q, k, v, out, lse, causal=causal, scale=scale, stage=self.backward_stage
        )
        module_of(dq).add(dq, parts[0], out=writes[0])
        for each, target in zip(parts[1:], writes[1:], strict=True):
            assign(target, each)


@cache
def _lengths(ends: tuple[int, int], device: Any) -> Any:
    """On the device, once: a call that is captured copies nothing from the host."""
    import torch

    return torch.tensor(ends, dtype=torch.int32, device=device)


def attend_pieces(
    reads: Arrays,
    writes: Arrays,
    *,
    numerics: Numerics,
    half: int,
    ends: tuple[int, int],
    scale: float | None,
    keys_from: Any = None,
) -> None:
    """reads: q, k, v. The first `half` of the rows see the keys up to ends[0], the others up to ends[1], each
    under a causal mask that is aligned bottom-right. writes: out and LSE.
    """
    q, k, v = reads
    if isinstance(numerics, Stages) and numerics.attend_both(reads, writes, half, ends, scale, keys_from):
        return
    how: dict[str, Any] = {"causal": True, "scale": scale}
    if keys_from is not None:
        how["keys_from"] = keys_from
    for rows, end in ((slice(half, None), ends[1]), (slice(0, half), ends[0])):  # the longest first
        one = (q[:, :, rows], k[:, :, :end], v[:, :, :end])
        numerics.attend(one, tuple(each[:, :, rows] for each in writes), **how)


def attend_as_they_come(
    reads: Arrays,
    writes: Arrays,
    *,
    numerics: Numerics,
    half: int,
    ends: tuple[int, int] | None,
    scale: float | None,
) -> None:
    """reads: q, k, v, of which keys still come, and the number from which on they are there. `attend_pieces`;
    without `ends` all rows see all keys.
    """
    *arrays, keys_from = reads
    if ends is None:
        numerics.attend(tuple(arrays), writes, causal=False, scale=scale, keys_from=keys_from)
    else:
        attend_pieces(
            tuple(arrays), writes, numerics=numerics, half=half, ends=ends, scale=scale, keys_from=keys_from
        )


def merge_parts(reads: Arrays, writes: Arrays) -> None:
    """reads: parts float32 [N, ..., D + 1], out and LSE side by side, over different keys. writes: out and
    LSE over all of them.
    """
    parts = reads[0]
    out, lse = parts[0, ..., :-1], parts[0, ..., -1]
    for part in parts[1:]:
        out, lse = merged(out, lse, part[..., :-1], part[..., -1], module_of(parts))
    writes[0][...], writes[1][...] = out, lse


def put(part: Any, lse: Any, before: list[Any], writes: Arrays, module: Any) -> None:
    """Write a step's out and LSE, merged with those before by the weights exp(LSE), in float32."""
    if before:
        part, lse = merged(before[0], before[1], part, lse, module)
    writes[0][...], writes[1][...] = part, lse


def rows_of(x: Any, rows: slice) -> Any:
    """These of [B, H, rows, ...]: x itself where they are all of them."""
    return x if rows.stop - rows.start == x.shape[2] else x[:, :, rows]


def assign(target: Any, source: Any) -> None:
    """Write an array of any type to one of its shape."""
    if isinstance(target, np.ndarray):
        target[...] = source
        return
    wide = _in_wide_elements(target, source)
    target, source = wide or (target, source)
    target.copy_(source)  # `target[...]` would make a view first


def _in_wide_elements(target: Any, source: Any) -> "tuple[Any, Any] | None":
    """Tensors that PyTorch would copy by a kernel as they are, in elements of 16 bytes: it moves one element
    of an array with gaps at a time, whatever its size. None where that cannot be.
    """
    import torch

    if target.dtype != source.dtype or (target.is_contiguous() and source.is_contiguous()):
        return None
    count = 16 // target.element_size()
    for x in (target, source):
        apart = (x.storage_offset(), x.shape[-1], *x.stride()[:-1])
        if x.stride(-1) != 1 or any(step % count for step in apart) or x.data_ptr() % 16:
            return None
    return target.view(torch.complex128), source.view(torch.complex128)


def module_of(array: Any) -> Any:
    """NumPy or PyTorch: both have the functions of `merged` by one name."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def _weights(
    q: np.ndarray, k: np.ndarray, causal: bool, scale: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """P and LSE, float32. A row without keys has weights 0 and LSE -inf."""
    scores = _scores(
        q.astype(np.float32), _repeated(k, q), causal, 1 / math.sqrt(q.shape[3]) if scale is None else scale
    )
    largest = scores.max(axis=3, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(largest), np.float32(0), largest))
    total = p.sum(axis=3, keepdims=True)
    some = total > 0
    with np.errstate(divide="ignore"):
        lse = np.where(some, largest + np.log(total), np.float32(-np.inf))
    return p / np.where(some, total, np.float32(1)), lse[..., 0]


def _scores(q: np.ndarray, k: np.ndarray, causal: bool, scale: Any) -> np.ndarray:
    scores = np.float32(scale) * (q @ k.swapaxes(2, 3))
    if causal:
        rows, keys = scores.shape[2:]
        hidden = np.arange(keys) > np.arange(rows)[:, None] + keys - rows
        scores[..., hidden] = -np.inf
    return scores


def _repeated(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """[B, H_kv, S, D] for every query head, float32."""
    return np.repeat(x.astype(np.float32), q.shape[1] // x.shape[1], axis=1)
