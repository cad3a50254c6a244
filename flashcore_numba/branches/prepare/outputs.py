"""What is written: the rows of Q for attention, and the rows of K and V in the pages of the cache."""

from typing import Any

import numpy as np

from flashcore_numba.core.output import Output


def tokens_written(x: Any) -> np.ndarray:
    """Which tokens have a slot, bool [tokens]; of inputs on the host."""
    return (x.slot_mapping >= 0) & (x.slot_mapping < x.pages * x.page)


def _rows_written(x: Any) -> np.ndarray:
    return np.broadcast_to(tokens_written(x)[None, None, :, None], x.q.shape)


def _slots_written(x: Any) -> np.ndarray:
    found = np.zeros((x.pages * x.page, *x.k.shape[1::2]), bool)
    found[x.slot_mapping[tokens_written(x)]] = True
    return found.reshape(x.pages, x.page, *found.shape[1:])


def _pool(of: str) -> Output:
    return Output(
        f"{of}_pool",
        lambda p: (p.pages, p.page, p.kv_heads, p.head_dim),
        lambda p: np.dtype(p.stored),
        ("page", "slot", "h", "col"),
        f"the pool of {of.upper()}",
        described=f"pages of the heads and columns of {of}",
        written=_slots_written,
    )


OUT = Output(
    "out",
    lambda p: tuple(p.q.shape),
    lambda p: p.element.dtype,
    ("b", "h", "token", "col"),
    "out",
    described="that of q",
    written=_rows_written,
)
K_POOL, V_POOL = _pool("k"), _pool("v")
WRITTEN = (OUT, K_POOL, V_POOL)
