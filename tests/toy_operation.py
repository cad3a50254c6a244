"""An operation of one's own, of which no line of the library knows. One stage, and two wrong kernels for it.

It is the softmax of each row of x [rows, columns] float32, and the sums of the exponentials.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32

from flashcore_numba.checks.bounds import compare
from flashcore_numba.checks.trial import Failed, place
from flashcore_numba.core.operation import Case, Operation, Property, Verdict
from flashcore_numba.core.output import Output
from flashcore_numba.core.shapes import Shape
from flashcore_numba.stages import Stage

LANES = 32


@dataclass(frozen=True)
class Rows:
    """x [rows, columns] float32, NumPy or CuPy."""

    x: Any
    on_gpu: bool = False

    @property
    def flops(self) -> int:
        return 3 * self.x.size

    @property
    def exponentials(self) -> int:
        return self.x.size

    @property
    def min_bytes(self) -> int:
        return 2 * self.x.nbytes


@dataclass(frozen=True)
class RowInputs:
    x: np.ndarray

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": self.x}

    @property
    def label(self) -> str:
        return "rows={} columns={}".format(*self.x.shape)

    def problem(self, arrays: Mapping[str, Any]) -> Rows:
        return Rows(**arrays)


@dataclass(frozen=True)
class Reference:
    p: np.ndarray
    sums: np.ndarray


P = Output("p", lambda r: r.x.shape, lambda r: np.dtype(np.float32), ("row", "col"), "P")
SUMS = Output(
    "sums", lambda r: r.x.shape[:1], lambda r: np.dtype(np.float32), ("row",), "sum", asked="sums=True"
)


def draw(shape: Shape, causal: bool, rng: np.random.Generator) -> RowInputs:
    return normal(rng, shape.heads * shape.seq, shape.head_dim)


def normal(rng: np.random.Generator, rows: int, columns: int) -> RowInputs:
    return RowInputs(rng.standard_normal((rows, columns)).astype(np.float32))


def reference(inputs: RowInputs) -> Reference:
    x = inputs.x.astype(np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return Reference(p / p.sum(axis=1, keepdims=True), p.sum(axis=1))


def expected(output: Output, ref: Reference) -> np.ndarray:
    return {"p": ref.p, "sums": ref.sums}[output.name]


def judge(output: Output, value: np.ndarray, ref: Reference, gate: Any) -> Verdict:
    right = expected(output, ref)
    return compare(np.asarray(value, np.float64), right, 1e-5 * np.abs(right) + 1e-7)


def cases(stage: Stage, full_size: bool) -> list[Case]:
    def case(name: str, rows: int, columns: int, layout: str = "inside") -> Case:
        return Case(name, lambda rng: normal(rng, rows, columns), layout=layout)

    found = [
        case("ragged 33 x 45", 33, 45),
        case("one row", 1, 70, "contiguous"),
        case("one column", 40, 1, "mixed"),
    ]
    found.append(Case("large", lambda rng: RowInputs(normal(rng, 5, 33).x + np.float32(200))))
    found.append(
        Case("fixed", lambda rng: normal(rng, 64, 64), seed=7, scaled="" if full_size else "fixed smaller")
    )
    return found


def adds_up(run: Any, rng: np.random.Generator) -> float:
    answer = run(normal(rng, 9, 50))
    error = np.abs(answer.p.sum(axis=1) - 1)
    if not error.max() < 1e-5:
        raise Failed("property", f"row {place(['row'], [error.argmax()])} does not add up to one")
    return float(1e-5 / max(error.max(), 1e-12))


def explain(inputs: RowInputs, output: Output, value: Any, ref: Reference, verdict: Verdict) -> str:
    return "Likely: the maximum is not subtracted" if (value > expected(output, ref)).all() else ""


ROW_SOFTMAX = Operation(
    name="row_softmax",
    outputs=(P, SUMS),
    draw=draw,
    reference=reference,
    expected=expected,
    judge=judge,
    cases=cases,
    properties=lambda stage, backend: [Property("a row adds up to one", adds_up)],
    explain=explain,
    ladder=lambda: (STAGE,),
)


@cuda.jit
def row_softmax(x, p, sums, rows):
    row = cuda.grid(1)
    if row < rows:
        row_max = x[row, 0]
        for c in range(x.shape[1]):
            row_max = max(row_max, x[row, c])
        total = float32(0)
        for c in range(x.shape[1]):
            p[row, c] = cuda.libdevice.expf(x[row, c] - row_max)
            total += p[row, c]
        for c in range(x.shape[1]):
            p[row, c] = p[row, c] / total
        sums[row] = total


@cuda.jit
def without_maximum(x, p, sums, rows):
    row = cuda.grid(1)
    if row < rows:
        total = float32(0)
        for c in range(x.shape[1]):
            p[row, c] = cuda.libdevice.expf(x[row, c])
            total += p[row, c]
        for c in range(x.shape[1]):
            p[row, c] = p[row, c] / total
        sums[row] = total


@cuda.jit
def last_row_left_out(x, p, sums, rows):
    row = cuda.grid(1)
    if row < rows - 1:
        for c in range(x.shape[1]):
            p[row, c] = float32(1) / x.shape[1]
        sums[row] = float32(1)


def launcher(kernel: Any) -> Any:
    def launch(problem: Rows, p: Any, executor: Any, sums: Any = None, variant: str | None = None) -> None:
        rows = problem.x.shape[0]
        sums = executor.empty((rows,), np.float32) if sums is None else sums
        executor.launch(kernel, -(-rows // LANES), LANES, problem.x, p, sums, rows)

    return launch


def narrow(problem: Rows) -> str | None:
    return "does not serve more than 1024 columns" if problem.x.shape[1] > 1024 else None


STAGE = Stage(
    number=None,
    name="one_thread",
    title="One thread, one row",
    idea="A thread reads its row three times.",
    launch=launcher(row_softmax),
    operation=ROW_SOFTMAX,
    outputs=(P, SUMS),
    limit=narrow,
)
