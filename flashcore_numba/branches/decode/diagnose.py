"""What a wrong output of decoding probably means: it is compared with what well-known mistakes compute."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs
from flashcore_numba.checks.bounds import Reference
from flashcore_numba.checks.diagnose import CLOSE
from flashcore_numba.core import oracle
from flashcore_numba.core.features import OFF
from flashcore_numba.core.operation import Verdict
from flashcore_numba.core.output import OUT, Output


def _decoded(x: DecodeInputs) -> np.ndarray:
    requests = [x.request(number) for number in range(len(x.lengths))]
    found = [oracle.attention(r.q, r.k, r.v, r.causal, r.scale, features=r.features)[0] for r in requests]
    return np.concatenate(found)


def _scaled(x: DecodeInputs, name: str) -> bool:
    return bool(np.any(np.asarray(x.scales[name]) != 1))


def _suspects(x: DecodeInputs) -> list[tuple[str, Callable[[], np.ndarray]]]:
    """Sentences, and what each mistake would compute."""

    def changed(**changes: Any) -> Callable[[], np.ndarray]:
        return lambda: _decoded(x.but(**changes))

    table = x.block_table
    in_order = np.broadcast_to(np.arange(table.shape[1], dtype=table.dtype) % len(x.k_pool), table.shape)
    found = [
        ("the last key of a request is left out", changed(lengths=np.maximum(x.lengths - 1, 0))),
        ("pages are read in the order of the pool, not through the table", changed(block_table=in_order)),
    ]
    if x.causal and x.q.shape[2] > 1:
        found.append(("the causal mask is missing", changed(causal=False)))
    heads, kv_heads = x.q.shape[1], x.k_pool.shape[2]
    if heads > kv_heads > 1:
        # Query heads in an order in which those that read the same K/V head by mistake are neighbours.
        order = np.arange(heads).reshape(-1, kv_heads).T.ravel()
        turned = x.but(q=x.q[:, order])
        sentence = "query head h reads K/V head h % H_kv; it must be h // group"
        found.append((sentence, lambda: _decoded(turned)[:, np.argsort(order)]))
    if (x.lengths <= x.lengths[0]).all():
        first = np.broadcast_to(table[:1], table.shape)
        found.append(("every request reads the first row of the table", changed(block_table=first)))
    found += [(f"{name} has no effect", changed(**{name: 1.0})) for name in x.scales if _scaled(x, name)]
    if _scaled(x, "k_scale") or _scaled(x, "v_scale"):
        exchanged = changed(k_scale=x.v_scale, v_scale=x.k_scale)
        found.append(("k_scale multiplies V, and v_scale K", exchanged))
    for name in x.features.names:
        without = replace(x.features, **{name: getattr(OFF, name)})
        found.append((f"{name} has no effect", changed(features=without)))
    return found


def explain(x: DecodeInputs, output: Output, value: np.ndarray, ref: Reference, verdict: Verdict) -> str:
    """One sentence about the likely cause, or an empty string."""
    if output is not OUT or verdict.passed:
        return ""
    found = value.astype(np.float64)
    if np.isnan(found).any():
        return (
            "Likely: a NaN comes from a slot that holds no key: of a page past the last key, or of a page "
            "that another entry of the table names; a weight of 0 does not hide it, because 0 * NaN is NaN"
        )
    reach = CLOSE * max(1.0, float(np.abs(ref.out).max()))
    with np.errstate(all="ignore"):
        for sentence, mistake in _suspects(x):
            made = mistake()
            if np.isfinite(made).all() and np.abs(found - made).max() <= reach:
                return f"Likely: {sentence}"
    wrong = np.flatnonzero(np.asarray(verdict.wrong).any(axis=(1, 2, 3)))
    return f"Wrong in requests {', '.join(map(str, wrong[:8]))} of {len(found)}"
