"""What a wrong answer probably means: it is compared with what well-known mistakes compute."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flashcore_numba.checks.bounds import Reference
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.features import OFF
from flashcore_numba.core.operation import Verdict

UNDERFLOW, OVERFLOW = -87.0, 88.0  # where exp leaves the normal range of float32
CLOSE = 0.01  # relative to the largest |v|: how near a mistake must come to be named


def _attention(x: Inputs, **changes: Any) -> np.ndarray:
    y = x.but(**changes)
    return oracle.attention(y.q, y.k, y.v, y.causal, y.scale, features=y.features)[0]


def _masked(x: Inputs, seen: np.ndarray) -> np.ndarray:
    return oracle.attention(x.q, x.k, x.v, scale=x.scale, seen=seen, features=x.features)[0]


def _suspects(x: Inputs) -> list[tuple[str, Callable[[], np.ndarray]]]:
    heads, kv_heads = x.q.shape[1], x.k.shape[1]
    found = [("the scale is missing: this is softmax(Q K^T) V", lambda: _attention(x, scale=1.0))]
    if x.scale is not None:
        found.append(("the given scale is ignored: 1 / sqrt(D) was used", lambda: _attention(x, scale=None)))
    if x.causal:
        found.append(("the causal mask is missing", lambda: _attention(x, causal=False)))
    if x.causal and not {"cu_seqlens_q", "seqused_k"} & {*x.features.names}:  # one mask for all sequences
        rows, keys = np.arange(x.mask.seq_q)[:, None], np.arange(x.mask.seq_k)
        _, end = x.mask.interval(rows)
        found += [
            ("the causal mask is aligned top-left, not bottom-right", lambda: _masked(x, keys <= rows)),
            ("the causal mask hides the diagonal: `<` for `<=`", lambda: _masked(x, keys < end - 1)),
            ("the causal mask shows one key too many", lambda: _masked(x, keys < end + 1)),
        ]
    for name in x.features.names:
        without = replace(x.features, **{name: getattr(OFF, name)})
        if name not in ("cu_seqlens_q", "cu_seqlens_k", "float32_out"):
            found.append((f"{name} has no effect", partial(_attention, x, features=without)))
    if heads > kv_heads > 1:
        wrong = np.arange(heads) % kv_heads
        sentence = "query head h reads K/V head h % H_kv; it must be h // group"
        found.append((sentence, lambda: _attention(x, k=x.k[:, wrong], v=x.v[:, wrong])))
    batch_0 = {name: np.broadcast_to(a[:1], a.shape) for name, a in (("k", x.k), ("v", x.v))}
    head_0 = {name: a[:, [0] * heads] for name, a in (("k", x.k), ("v", x.v))}
    group = heads // kv_heads
    whole = {"k": x.k, "v": x.v}
    for names in ("kv", "k", "v"):
        arrays = " and ".join(names.upper())
        if x.q.shape[0] > 1:
            changed = {name: batch_0[name] for name in names}
            found.append((f"every batch reads batch 0 of {arrays}", partial(_attention, x, **changed)))
        if heads > 1:
            kept = {name: np.repeat(a, group, axis=1) for name, a in whole.items()}
            changed = kept | {name: head_0[name] for name in names}
            found.append((f"every head reads head 0 of {arrays}", partial(_attention, x, **changed)))
    return found


def explain(x: Inputs, out: np.ndarray, ref: Reference, verdict: Verdict) -> str:
    """One sentence about the likely cause, or an empty string."""
    out = out.astype(np.float64)
    wrong = verdict.wrong
    if wrong is None or not wrong.any():
        return ""
    if np.isnan(out).any():
        return f"Likely: {_explain_nan(x, out)}"
    reach = CLOSE * float(np.abs(x.v).astype(np.float64).max())
    for sentence, mistake in _suspects(x):
        if np.abs(out - mistake()).max() <= reach:
            return f"Likely: {sentence}"
    ratio = _row_ratio(out, ref.out) if np.isfinite(out).all() else None
    if ratio is not None:
        return f"Likely: {ratio}"
    return _where(wrong).capitalize()


def _explain_nan(x: Inputs, out: np.ndarray) -> str:
    nan = np.isnan(out)
    begin, end = x.mask.interval(np.arange(x.mask.seq_q))
    if nan.all(axis=3).any() and (begin == end).any() and not nan[:, :, begin < end].any():
        return "only rows that see no key are NaN: 0 / 0, or exp(-inf - -inf)"
    scale = 1 / math.sqrt(x.q.shape[3]) if x.scale is None else x.scale
    group = x.q.shape[1] // x.k.shape[1]
    keys = np.repeat(x.k.astype(np.float64), group, axis=1)
    scores = scale * (x.q.astype(np.float64) @ keys.swapaxes(2, 3))
    if scores.max() < UNDERFLOW:
        return (
            f"no score is above {scores.max():.4g}, so exp underflows and 0 / 0 is NaN unless the row "
            "maximum is subtracted first: it must start at -inf, not at 0 or 1e-30"
        )
    if scores.max() > OVERFLOW:
        return (
            f"scores reach {scores.max():.4g}, so exp overflows unless the maximum of all the row's scores, "
            "scaled like them, is subtracted first"
        )
    return (
        "a NaN comes from memory that was never written or lies past an end (0 * NaN is NaN, so a weight of "
        "zero does not hide it), or from 0 / 0 or inf - inf. " + _where(nan).capitalize()
    )


def _row_ratio(out: np.ndarray, expected: np.ndarray) -> str | None:
    """Rows that are right up to a factor: their sum l is wrong, not their direction."""
    weight = (expected * expected).sum(axis=3, keepdims=True)
    some = weight > 0
    factor = np.where(some, (out * expected).sum(axis=3, keepdims=True) / np.where(some, weight, 1), 1)
    rest = np.abs(out - factor * expected).max()
    if rest > CLOSE * np.abs(out).max() or np.abs(factor - 1).max() < 0.01:
        return None
    low, high = float(factor[some].min()), float(factor[some].max())
    if low == high == 0:  # nothing points anywhere
        return None
    return (
        f"every output row is the right one times a factor, {low:.3g} to {high:.3g}: is the weighted sum "
        "divided by the sum of the weights, once, and does that sum count every key once?"
    )


def _where(wrong: np.ndarray) -> str:
    """Which rows and columns are wrong, when that tells something."""
    batch, heads, rows, columns = wrong.shape
    bad_rows = np.flatnonzero(wrong.any(axis=(0, 1, 3)))
    bad_columns = np.flatnonzero(wrong.any(axis=(0, 1, 2)))
    bad_heads = np.flatnonzero(wrong.any(axis=(0, 2, 3)))
    bad_batches = np.flatnonzero(wrong.any(axis=(1, 2, 3)))
    parts = []
    for what, bad, size in (
        ("rows", bad_rows, rows),
        ("columns", bad_columns, columns),
        ("heads", bad_heads, heads),
        ("batches", bad_batches, batch),
    ):
        if len(bad) < size:
            parts.append(f"{what} {_span(bad)} of {size}")
    return "wrong only in " + ", ".join(parts) if parts else "wrong in every row, column, head and batch"


def _span(numbers: np.ndarray) -> str:
    if len(numbers) == numbers[-1] - numbers[0] + 1 and len(numbers) > 1:
        return f"{numbers[0]} to {numbers[-1]}"
    shown = ", ".join(str(n) for n in numbers[:6])
    return shown + (", ..." if len(numbers) > 6 else "")
