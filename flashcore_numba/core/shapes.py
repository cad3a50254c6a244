"""Problem shapes as the command line writes them: a name of the project's plan, or BxHxSxD."""

import re
from dataclasses import dataclass

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import HEAD_DIMS, listed

PLAN_SHAPES = {  # B, H, S, D
    "small": (1, 2, 64, 64),
    "medium": (1, 4, 128, 64),
    "mission": (1, 8, 512, 64),
    "large": (1, 8, 1024, 64),
    "multi_batch": (4, 8, 256, 64),
}


@dataclass(frozen=True)
class Shape:
    """B x H x S x D, as many keys as query rows.

    kv_heads, value_dim: H_kv and D_v; 0 stands for H and D. shortest: where it is given, the batch is ragged:
    B sequences of `shortest` to `seq` tokens.
    """

    batch: int
    heads: int
    seq: int
    head_dim: int
    kv_heads: int = 0
    value_dim: int = 0
    shortest: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "value_dim", self.value_dim or self.head_dim)

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.kv_heads == self.heads else f"{self.heads}/{self.kv_heads}"
        seq = f"{self.seq}" if self.shortest is None else f"{self.shortest}-{self.seq}"
        dims = f"{self.head_dim}" if self.value_dim == self.head_dim else f"{self.head_dim}/{self.value_dim}"
        return f"{self.batch}x{heads}x{seq}x{dims}"

    @property
    def plain(self) -> bool:
        """Whether it is B x H x S x D and no more."""
        return (self.kv_heads, self.value_dim, self.shortest) == (self.heads, self.head_dim, None)

    def inputs(
        self, rng: np.random.Generator, element: Element = FLOAT16
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q [B, H, S, D], k [B, H_kv, S, D], v [B, H_kv, S, D_v]: fresh standard normal NumPy arrays of the
        element type.
        """
        sizes = (self.kv_heads, self.head_dim), (self.kv_heads, self.value_dim)
        k, v = (_normal(rng, (self.batch, heads, self.seq, dim), element) for heads, dim in sizes)
        return self.queries(rng, self.seq, element), k, v

    def untouched(self, element: Element = FLOAT16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrays like `inputs`, whose memory nobody has touched: for what depends on shapes alone."""
        sizes = (self.heads, self.head_dim), (self.kv_heads, self.head_dim), (self.kv_heads, self.value_dim)
        q, k, v = (np.empty((self.batch, heads, self.seq, dim), element.dtype) for heads, dim in sizes)
        return q, k, v

    def queries(self, rng: np.random.Generator, rows: int, element: Element = FLOAT16) -> np.ndarray:
        """q of so many rows, [B, H, rows, D]: fresh standard normal numbers of the element type."""
        return _normal(rng, (self.batch, self.heads, rows, self.head_dim), element)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], element: Element) -> np.ndarray:
    return element.round(rng.standard_normal(shape, dtype=np.float32))


_NUMBER = "[1-9][0-9]{0,11}"
_FORM = (
    r"(?P<batch>#)x(?P<heads>#)(/(?P<kv_heads>#))?x((?P<shortest>#)-)?(?P<seq>#)x"
    r"(?P<head_dim>#)(/(?P<value_dim>#))?"
).replace("#", _NUMBER)


def parse(text: str) -> Shape:
    """`mission` or `1x8x512x64`. Raises ArgumentError."""
    shape = _read(text)
    if shape is None or not shape.plain:
        names = ", ".join(PLAN_SHAPES)
        raise ArgumentError(f"shape {shown(text)}: accepted are BxHxSxD, for example 1x8x512x64, and {names}")
    return shape


def parse_any(text: str) -> Shape:
    """Also with H_kv, with D_v, and with two lengths for a ragged batch: `1x32/8x4096x192/128`,
    `16x32x128-8192x64`. Raises ArgumentError.
    """
    shape = _read(text)
    if shape is None:
        raise ArgumentError(
            f"shape {shown(text)}: accepted are BxHxSxD, for example 1x8x512x64, with H/H_kv, D/D_v or two "
            f"lengths S-S, for example 16x32/8x128-8192x128, and {', '.join(PLAN_SHAPES)}"
        )
    if shape.heads % shape.kv_heads:
        raise ArgumentError(f"shape {shown(text)}: H must be a multiple of H_kv")
    if shape.shortest is not None and shape.shortest > shape.seq:
        raise ArgumentError(f"shape {shown(text)}: the shorter length comes first")
    return shape


def _read(text: str) -> Shape | None:
    """None for what is no shape. Raises ArgumentError for a head dimension that nothing serves."""
    if text in PLAN_SHAPES:
        return Shape(*PLAN_SHAPES[text])
    found = re.fullmatch(_FORM, text)
    if not found:
        return None
    shape = Shape(**{name: int(number) for name, number in found.groupdict().items() if number})
    if not {shape.head_dim, shape.value_dim} <= {*HEAD_DIMS}:
        first = found["value_dim"] and shape.head_dim not in HEAD_DIMS
        where = "the number before the last /" if first else "the last number"
        raise ArgumentError(
            f"shape {shown(text)}: the head dimension ({where}) must be one of {listed(HEAD_DIMS)}"
        )
    return shape
