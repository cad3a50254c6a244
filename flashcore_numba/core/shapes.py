"""Problem shapes as the command line writes them: a name of the project's plan, or BxHxSxD."""

import re
from dataclasses import dataclass

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import HEAD_DIMS, ArgumentError

PLAN_SHAPES = {  # B, H, S, D
    "small": (1, 2, 64, 64),
    "medium": (1, 4, 128, 64),
    "mission": (1, 8, 512, 64),
    "large": (1, 8, 1024, 64),
    "multi_batch": (4, 8, 256, 64),
}


@dataclass(frozen=True)
class Shape:
    """B x H x S x D, as many keys as query rows."""

    batch: int
    heads: int
    seq: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}x{self.seq}x{self.head_dim}"

    def inputs(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, k and v: fresh standard normal NumPy arrays, float16 [B, H, S, D]."""
        size = (self.batch, self.heads, self.seq, self.head_dim)
        q, k, v = (FLOAT16.round(rng.standard_normal(size, dtype=np.float32)) for _ in range(3))
        return q, k, v


def parse(text: str) -> Shape:
    """`mission` or `1x8x512x64`. Raises ArgumentError."""
    if text in PLAN_SHAPES:
        return Shape(*PLAN_SHAPES[text])
    found = re.fullmatch("x".join([r"([1-9][0-9]{0,11})"] * 4), text)
    if not found:
        names = ", ".join(PLAN_SHAPES)
        raise ArgumentError(f"shape {shown(text)}: accepted are BxHxSxD, for example 1x8x512x64, and {names}")
    shape = Shape(*map(int, found.groups()))
    if shape.head_dim not in HEAD_DIMS:
        dims = " or ".join(map(str, HEAD_DIMS))
        raise ArgumentError(f"shape {shown(text)}: the head dimension (the last number) must be {dims}")
    return shape
