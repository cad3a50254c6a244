"""Host arrays of new tokens, their slots and their tables, for checks, counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashcore_numba.branches.prepare.problem import NAMES, PrepareProblem
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.scaled import SCALES, arrays_of, is_number

BASE = (
    10_000.0  # of the angles: position * BASE^(-2 i / R) for pair i (Su et al. 2021, RoFormer, section 3.2.2)
)


@dataclass(frozen=True)
class PrepareInputs:
    """Fields as `PrepareProblem`'s, on the host."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    slot_mapping: np.ndarray
    pages: int
    page: int
    positions: np.ndarray | None = None
    cos: np.ndarray | None = None
    sin: np.ndarray | None = None
    interleaved: bool = False
    norm_eps: float | None = None
    q_weight: np.ndarray | None = None
    k_weight: np.ndarray | None = None
    stored: Element | None = None
    k_scale: Any = 1.0
    v_scale: Any = 1.0

    def but(self, **changes: Any) -> "PrepareInputs":
        return replace(self, **changes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        given = {name: getattr(self, name) for name in ("q", "k", "v", *NAMES)}
        given |= arrays_of({name: getattr(self, name) for name in SCALES})
        return {name: array for name, array in given.items() if array is not None}

    def problem(self, arrays: Mapping[str, Any]) -> PrepareProblem:
        options = {name: getattr(self, name) for name in ("pages", "page", "interleaved", "norm_eps")}
        scales = {name: getattr(self, name) for name in SCALES}
        options |= {name: scale for name, scale in scales.items() if is_number(scale)}
        options["stored"] = self.stored and self.stored.dtype
        return PrepareProblem(**arrays, **options)

    @property
    def label(self) -> str:
        _, heads, tokens, head_dim = self.q.shape
        found = (
            f"tokens={tokens} H={heads} H_kv={self.k.shape[1]} D={head_dim} pages={self.pages}x{self.page}"
        )
        if self.norm_eps is not None:
            found += f" norm_eps={self.norm_eps:g}"
        if self.cos is not None:
            found += f" R={2 * self.cos.shape[1]}" + (" interleaved" if self.interleaved else "")
        if self.stored is not None:
            found += f" pools of {self.stored.name}"
        return found


def tables(positions: int, rotated: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the angles, float32 [positions, rotated / 2]."""
    angles = np.arange(positions)[:, None] * BASE ** (-np.arange(0, rotated, 2) / rotated)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def drawn(
    rng: np.random.Generator,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    element: Element = FLOAT16,
    page: int = 16,
    pages: int | None = None,
    padding: int = 0,
    rotated: int | None = None,
    interleaved: bool = False,
    norm_eps: float | None = 1e-6,
    weights: bool = True,
    slots: type = np.int64,
    positions: int = 300,
    **options: Any,
) -> PrepareInputs:
    """Normal rows, tokens at random positions in random slots of `pages` pages, by default three more than
    hold them.

    padding: tokens without a slot, anywhere among the others, with NaN in their rows and positions outside
    the tables. rotated: columns that RoPE rotates, all when None, 0 for no RoPE. options: fields
    of the pools.
    """
    pages = -(-tokens // page) + 3 if pages is None else pages
    rotated = head_dim if rotated is None else rotated

    def rows(count: int) -> np.ndarray:
        return element.round(rng.standard_normal((1, count, tokens, head_dim), np.float32))

    q, k, v = rows(heads), rows(kv_heads), rows(kv_heads)
    mapping: np.ndarray = rng.permutation(pages * page)[:tokens].astype(slots)
    at = rng.integers(0, positions, tokens).astype(np.int32)
    without = rng.permutation(tokens)[:padding]
    mapping[without], at[without] = -1, 2**30
    for x in (q, k, v):
        x[:, :, without] = np.nan
    cos, sin = tables(positions, rotated) if rotated else (None, None)
    normed = norm_eps is not None and weights
    q_weight, k_weight = (
        rng.standard_normal(head_dim).astype(np.float32) if normed else None for _ in range(2)
    )
    return PrepareInputs(
        *(q, k, v, mapping, pages, page, at if rotated else None, cos, sin, interleaved, norm_eps),
        *(q_weight, k_weight),
        **options,
    )
