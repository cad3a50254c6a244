"""The validated input of attention."""

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["ArgumentError", "Problem"]


class ArgumentError(ValueError):
    """A bad argument: the message names it, its value and what is accepted."""


@dataclass(frozen=True, eq=False)
class Problem:
    q: Any
    k: Any
    v: Any
    causal: bool = False
    scale: float | None = None

    def __post_init__(self):
        if self.scale is None:
            object.__setattr__(self, "scale", 1 / math.sqrt(self.q.shape[-1]))

    batch = property(lambda self: self.q.shape[0])
    heads = property(lambda self: self.q.shape[1])
    kv_heads = property(lambda self: self.k.shape[1])
    seq_q = property(lambda self: self.q.shape[2])
    seq_k = property(lambda self: self.k.shape[2])
    head_dim = property(lambda self: self.q.shape[3])
