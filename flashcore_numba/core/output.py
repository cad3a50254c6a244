"""What an operation writes: outputs by name, each with a shape and a type that follow from the problem."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT32


@dataclass(frozen=True)
class Output:
    """One array that a stage writes, under its name among the arguments of `Stage.launch`.

    shape and dtype are functions of the problem; axes name the dimensions in messages. symbol: what messages
    call it, `note` what they add to a value of it; described: where its shape comes from. asked: how a caller
    asks for an output that is not always written; empty for one that is. written: of `Inputs` on the host,
    which elements a stage writes, while all others keep their bits; None for an output that is written whole.
    """

    name: str
    shape: Callable[[Any], tuple[int, ...]]
    dtype: Callable[[Any], np.dtype]
    axes: tuple[str, ...]
    symbol: str
    note: str = ""
    described: str = ""
    asked: str = ""
    written: Callable[[Any], np.ndarray] | None = None

    @property
    def optional(self) -> bool:
        return bool(self.asked)


OUT = Output(
    "out",
    lambda p: (*p.q.shape[:3], p.value_dim),
    lambda p: FLOAT32.dtype if p.features.float32_out else p.element.dtype,
    ("b", "h", "row", "col"),
    "out",
    described="the rows of q with the columns of v",
)
LSE = Output(
    "lse",
    lambda p: tuple(p.q.shape[:3]),
    lambda p: FLOAT32.dtype,
    ("b", "h", "row"),
    "LSE",
    note=" (natural logarithm)",
    asked="return_lse=True",
)
