"""What the formulas of kernels whose blocks own keys share."""

from collections import Counter
from typing import Any

import numpy as np

from flashcore_numba.core.features import on_host
from flashcore_numba.core.mask import Mask
from flashcore_numba.predict.formula import ceil_div


def tiles_seen(mask: Mask, first_key: int, keys: int, rows: int) -> tuple[int, int]:
    """(begin, end): the tiles of so many rows that see some of so many keys from `first_key` on."""
    last = min(first_key + keys, mask.seq_k) - 1
    if last < first_key:
        return 0, 0
    return mask.rows(first_key)[0] // rows, ceil_div(mask.rows(last)[1], rows)


def sequences(p: Any) -> Counter:
    """(mask, keys with those that do not count) of the sequences, and how many are the same."""
    return Counter(zip((each.mask for each in p.sequences), keys_of(p), strict=True))


def keys_of(p: Any) -> list[int]:
    """Of every sequence, those included that do not count."""
    if not p.features.ragged:
        return [p.seq_k] * p.batch
    return [int(n) for n in np.diff(on_host(p.features.cu_seqlens_k))]
