"""What is written: the normed rows of all heads, and when asked for what they were before the norm."""

from typing import Any

import numpy as np

from flashcore_numba.core.output import Output


def _shape(problem: Any) -> tuple[int, ...]:
    return problem.batch, 1, problem.seq_q, problem.heads * problem.head_dim


def _dtype(problem: Any) -> np.dtype:
    return problem.element.dtype


AXES = ("b", "all heads", "row", "col")
OUT = Output("out", _shape, _dtype, AXES, "out", described="the rows of q with the columns of all heads")
SUMMED = Output(
    "summed",
    _shape,
    _dtype,
    AXES,
    "sum before the norm",
    described="the rows of q with the columns of all heads",
    asked="return_sum=True",
)
WRITTEN = (OUT, SUMMED)
