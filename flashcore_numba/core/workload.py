"""What is measured: a problem before its numbers are drawn."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.element import FLOAT16, Element
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.shapes import Shape

DRAWN = ("sinks", "alibi_slopes", "seqused_k", "head_norm", "gate")
"""The features that are arrays of random numbers; a ragged batch is a matter of the shape."""
PAGE = 16  # keys of a page where none is named, as in most servers
NORM_EPS = 1e-6  # of most models
CONTIGUOUS = 0  # a cache without pages
E4M3_CACHE = "e4m3"
CHOICES: dict[str, Any] = {"tokens": None, "page": PAGE, "cache": None, "batch_invariant": None}
"""What an operation may add (see `Operation.choices`), and what is meant where nothing is said."""


@dataclass(frozen=True)
class Workload:
    """A shape, a mask, an element type and features.

    tokens: query rows of each sequence, where they are not what the operation has anyway (as many as keys, or
    1 in decoding). page: keys of a page of its cache, or `CONTIGUOUS`. cache: the name of its type, where
    it is not that of q. batch_invariant: True where the same bits are asked for whatever the batch.
    drawn: which of `DRAWN` are on. lengths: of the sequences of a ragged batch, once they are drawn.
    yardstick: whether it is here only to be compared with a ragged batch.
    """

    shape: Shape
    causal: bool = False
    element: Element = FLOAT16
    window: tuple[int, int] = OFF.window
    softcap: float = OFF.softcap
    drawn: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    yardstick: bool = False
    tokens: int | None = CHOICES["tokens"]
    page: int = CHOICES["page"]
    cache: str | None = CHOICES["cache"]
    batch_invariant: bool | None = CHOICES["batch_invariant"]

    @property
    def plain(self) -> bool:
        """Whether it is B x H x S x D, perhaps with the causal mask: what README and lessons show."""
        return self.shape.plain and not self.arguments and not self.yardstick and not self.chosen

    @property
    def chosen(self) -> dict[str, Any]:
        """Of `CHOICES`, those that are not as ever."""
        return {name: getattr(self, name) for name, usual in CHOICES.items() if getattr(self, name) != usual}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of `attention_varlen` that turn features on, see `Features.names`."""
        ragged = () if self.shape.shortest is None else ("cu_seqlens_q", "cu_seqlens_k")
        drawn = (FIELDS.get(name, name) for name in self.drawn)
        return *Features(self.window, self.softcap).names, *drawn, *ragged

    def drawn_with(self, seed: int) -> "list[Workload]":
        """What is measured of it: itself; of a ragged one also the same number of tokens in equal lengths.

        The lengths follow from the shape and the seed alone.
        """
        shape = self.shape
        if shape.shortest is None:
            return [self]
        rng = np.random.default_rng(seed)
        lengths = rng.integers(shape.shortest, shape.seq, shape.batch, endpoint=True)
        for _ in range(lengths.sum() % shape.batch):  # the longest lose a token until all could be equal
            lengths[lengths.argmax()] -= 1
        drawn = replace(self, lengths=tuple(map(int, lengths)))
        return [drawn, replace(self, shape=drawn.equal, yardstick=True)]

    @property
    def equal(self) -> Shape:
        """Of a ragged batch: the same number of tokens in sequences of equal lengths."""
        return replace(self.shape, seq=sum(self.lengths) // self.shape.batch, shortest=None)

    @property
    def arrays(self) -> Shape:
        """The shape of q, k and v: the sequences of a ragged batch are packed."""
        if not self.lengths:
            return self.shape
        return replace(self.shape, batch=1, seq=sum(self.lengths), shortest=None)

    def features(self, rng: np.random.Generator) -> Features:
        """With arrays on the host: normal sinks, the slopes of Press et al. 2022, keys that count; a norm's
        weights of all heads, and a gate, both normal and of q's type.
        """
        heads = self.shape.heads
        sequences = self.lengths or (self.shape.seq,) * self.shape.batch
        bounds = np.cumsum([0, *self.lengths], dtype=np.int32) if self.lengths else None
        arrays = {
            "sinks": _of_bfloat16(rng.standard_normal(heads)),
            "alibi_slopes": _of_bfloat16(2.0 ** (-8 * np.arange(1, heads + 1) / heads)),
            "seqused_k": rng.integers(1, sequences, endpoint=True).astype(np.int32),
        }
        chosen: dict[str, Any] = {name: arrays[name] for name in self.drawn if name in arrays}
        columns, rows = self.shape.value_dim, self.tokens or self.arrays.seq
        if "head_norm" in self.drawn:
            chosen |= {"norm_weight": self._normal(rng, columns), "norm_eps": NORM_EPS}
        if "gate" in self.drawn:
            chosen["gate"] = self._normal(rng, self.arrays.batch, heads, rows, columns)
        return Features(self.window, self.softcap, **chosen, cu_seqlens_q=bounds, cu_seqlens_k=bounds)

    def _normal(self, rng: np.random.Generator, *shape: int) -> np.ndarray:
        return self.element.round(rng.standard_normal(shape, dtype=np.float32))


FIELDS = {"head_norm": "norm_weight"}
"""The fields of `Features` for those of `DRAWN` that have other names."""


def _of_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values that bfloat16 has too, because some libraries take them in that type."""
    return (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def options(text: str) -> dict[str, Any]:
    """The fields of a `Workload` that `window=1023,0 softcap=50 sinks` names. Raises ArgumentError."""
    found: dict[str, Any] = {}
    drawn: set[str] = set()
    words = text.split()
    names = [word.partition("=")[0] for word in words]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ArgumentError(f"features {shown(text)}: {twice[0]} is there twice; once is accepted")
    for word in words:
        window = re.fullmatch(r"window=(-1|[0-9]{1,9}),(-1|[0-9]{1,9})", word)
        softcap = re.fullmatch(r"softcap=([0-9]{1,9}(?:\.[0-9]{1,9})?)", word)
        if window:
            found["window"] = (int(window[1]), int(window[2]))
        elif softcap and float(softcap[1]) > 0:
            found["softcap"] = float(softcap[1])
        elif word in DRAWN:
            drawn.add(word)
        elif text != "none":
            raise ArgumentError(
                f"features {shown(text)}: accepted are none, or window=LEFT,RIGHT (-1: unbounded), "
                f"softcap=NUMBER, {', '.join(DRAWN)}, with blanks between them"
            )
    return found | {"drawn": tuple(name for name in DRAWN if name in drawn)}


def tokens(text: str) -> int:
    """Of each request, as the command line names them. Raises ArgumentError."""
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ArgumentError(f"tokens {shown(text)}: a whole number from 1 to 999999 is accepted")
    return int(text)


def page(text: str) -> int:
    """`16`, or `contiguous`. Raises ArgumentError."""
    if text == "contiguous":
        return CONTIGUOUS
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise ArgumentError(
            f"page {shown(text)}: accepted are contiguous and a number of keys from 1 to 999999"
        )
    return int(text)


def cache(text: str) -> str | None:
    """`e4m3`, or `own` for the type of q. Raises ArgumentError."""
    if text not in ("own", E4M3_CACHE):
        raise ArgumentError(f"cache {shown(text)}: accepted are own, the type of q, and {E4M3_CACHE}")
    return None if text == "own" else text


def batch_invariant(text: str) -> bool | None:
    """`yes` or `no`. Raises ArgumentError."""
    if text not in ("yes", "no"):
        raise ArgumentError(f"batch-invariant {shown(text)}: accepted are yes and no")
    return True if text == "yes" else None


WORDS = {
    ("page", CONTIGUOUS): "contiguous",
    ("cache", None): "own",
    ("batch_invariant", True): "yes",
    ("batch_invariant", None): "no",
}


def word(name: str, value: Any) -> str:
    """A value of `CHOICES` as the command line names it."""
    return WORDS.get((name, value), str(value))


def fields(features: Features, chosen: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What an artifact says of features, whose arrays are on the host, and of `CHOICES`: numbers, words and
    lists of JSON.
    """
    words = ("sinks", "alibi_slopes", "head_norm", "gate")
    found: dict[str, Any] = {name: True for name in words if FIELDS.get(name, name) in features.arrays}
    if features.softcap:
        found = {"softcap": features.softcap} | found
    if features.window != OFF.window:
        found = {"window": list(features.window)} | found
    if features.seqused_k is not None:
        found["seqused_k"] = features.seqused_k.tolist()
    if features.cu_seqlens_q is not None:
        found["lengths"] = np.diff(features.cu_seqlens_q).tolist()
    told = {name: value for name, value in (chosen or {}).items() if value is not None}
    if told.get("page") == CONTIGUOUS:
        told["page"] = "contiguous"
    return told | found


def label(found: Mapping[str, Any]) -> str:
    """`tokens=4 page=16 window=1023,0 softcap=50 sinks`: `fields` in words, features as `options` reads them.
    Lengths are the shape's.
    """
    words = []
    for name, value in found.items():
        if name == "window":
            words.append(f"window={value[0]},{value[1]}")
        elif name == "softcap":
            words.append(f"softcap={value:g}")
        elif name in CHOICES and value is not True:
            words.append(f"{name}={value}")
        elif name != "lengths":
            words.append(name)
    return " ".join(words)
