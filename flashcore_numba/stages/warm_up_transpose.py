"""A matrix transposed by tiles, the warm-up of lesson 07: an operation and its one stage, off the spine."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cuda_reference import source
from flashcore_numba.core.element import FLOAT32
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.operation import Case, Operation, Verdict
from flashcore_numba.core.output import Output
from flashcore_numba.stages.stage import Stage

TILE = 32  # rows and columns of a tile, and of a block's threads
MOST = np.iinfo(np.int32).max  # elements


@dataclass(frozen=True)
class Matrix:
    """x [rows, columns] float32, C-contiguous, NumPy or CuPy."""

    x: Any
    on_gpu: bool = False
    flops: int = 0
    exponentials: int = 0

    @property
    def min_bytes(self) -> int:
        return 2 * int(self.x.nbytes)


@dataclass(frozen=True)
class MatrixInputs:
    """x [rows, columns] float32 on the host."""

    x: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": self.x}

    @property
    def label(self) -> str:
        return "x [{}, {}]".format(*self.x.shape)

    def problem(self, arrays: Mapping[str, Any]) -> Matrix:
        return Matrix(arrays["x"], on_gpu=not isinstance(arrays["x"], np.ndarray))


def normal(rng: np.random.Generator, rows: int, columns: int) -> MatrixInputs:
    """Standard normal x [rows, columns]."""
    return MatrixInputs(rng.standard_normal((rows, columns), np.float32))


def _judge(output: Output, value: np.ndarray, right: np.ndarray, gate: Any) -> Verdict:
    """A copy is exact."""
    wrong = value != right
    passed, where = not wrong.any(), tuple(map(int, np.unravel_index(wrong.argmax(), wrong.shape)))
    error = abs(float(value[where]) - float(right[where]))
    reason = "" if passed else f"{int(wrong.sum())} of {wrong.size} elements are wrong"
    return Verdict(passed, error, 0.0, np.inf if passed else 0.0, where, reason, wrong)


def _cases(stage: Stage, full_size: bool) -> list[Case]:
    sizes = {"one tile": (32, 32), "whole tiles": (64, 96), "ragged": (45, 70)}
    sizes |= {"one row": (1, 100), "one column": (100, 1), "one element": (1, 1)}
    return [
        Case(f"{name}, {rows} x {columns}", partial(normal, rows=rows, columns=columns), layout="contiguous")
        for name, (rows, columns) in sizes.items()
    ]


def _ladder() -> tuple[Stage, ...]:
    return (STAGE,)


OUT = Output("out", lambda p: p.x.shape[::-1], lambda p: FLOAT32.dtype, ("row", "col"), "out")
TRANSPOSE = Operation(
    name="transpose",
    outputs=(OUT,),
    draw=lambda shape, causal, rng: normal(rng, shape.batch * shape.heads * shape.seq, shape.head_dim),
    reference=lambda inputs: inputs.x.T,
    expected=lambda output, right: np.asarray(right, np.float64),
    judge=_judge,
    cases=_cases,
    ladder=_ladder,
)


def launch(problem: Matrix, out: Array, executor: Executor, variant: str | None = None) -> None:
    """Queue the kernel: out [columns, rows] = x^T."""
    rows, columns = problem.x.shape
    grid = (-(-columns // TILE), -(-rows // TILE))
    kernel = source("warm_up_transpose", "transpose")
    executor.launch(kernel, grid, (TILE, TILE), problem.x, out, np.int32(rows), np.int32(columns))


def _too_large(problem: Matrix) -> str | None:
    """The kernel's indices are int."""
    size = int(np.prod(problem.x.shape, dtype=np.int64))
    return f"does not serve {size:,} elements, only up to {MOST:,}" if size > MOST else None


STAGE = Stage(
    number=None,
    name="tiles",
    title="A tile transposed",
    idea="A tile turns in shared memory, so loads and stores both move neighbours.",
    launch=launch,
    language="CUDA C",
    outputs=(OUT,),
    operation=TRANSPOSE,
    limit=_too_large,
)
