"""What the CPU executor counted and found in a CUDA C kernel, in the form of the simulator's results."""

import re
from typing import Any

import numpy as np

from cuda_reference import Source, TensorMap, load
from flashcore_numba.simulator import ScratchArray, line_counts
from flashcore_numba.simulator.problems import KernelProblem, SimulationError, Site


class Counter(np.ndarray):
    """A uint32 [count] that is 0 before a launch, and that the launch must leave 0."""

    @classmethod
    def zero(cls, count: int = 1) -> "Counter":
        return np.zeros(count, np.uint32).view(cls)


class CpuLaunch:
    """The result of one launch; offers what `flashcore_numba.simulator.Launch` offers of its results."""

    def __init__(self, kernel: Source, grid: Any, block: Any, result: Any) -> None:
        self.kernel, self.grid, self.block, self.result = kernel, grid, block, result
        self.problems = list(result.problems)

    def totals(self) -> dict[str, Any]:
        return self.result.totals()

    def lines(self) -> list[Any]:
        return self.result.lines()

    def check(self) -> "CpuLaunch":
        """Raise SimulationError when there is any problem; otherwise return the launch itself."""
        if self.problems:
            raise SimulationError(self.kernel.label, self.problems)
        return self

    def __str__(self) -> str:
        heading = f"{self.kernel.label}: grid {self.grid}, block {self.block}"
        return "\n".join([line_counts.table(heading, self.lines(), self.totals()), *map(str, self.problems)])


def run_on_cpu(
    kernel: Source, grid: Any, block: Any, args: tuple, shared_bytes: int, options: dict
) -> CpuLaunch:
    """Run a kernel on NumPy arrays. The simulator's options that mean something here: `order`, where
    "lockstep" is the executor's own order, `races`, `time_limit`, and `ops`, without which nothing is
    counted.
    """
    order, checks = options.get("order", "lockstep"), options.get("races", True)
    loaded = load(kernel, "cpu")
    partly = _partly_written(args)
    result = loaded(
        _extents(grid),
        _extents(block),
        args,
        shared_mem=shared_bytes,
        scratch=partly,
        schedule="forward" if order == "lockstep" else order,
        checks=checks,
        counts=options.get("ops", True),
        time_limit=options.get("time_limit"),
    )
    launch = CpuLaunch(kernel, grid, block, result)
    if not checks or launch.problems:
        for _, written in partly:  # nobody looked at what the launch wrote, or a problem kept it from writing
            written[...] = True
    for parameter, value in zip(loaded.parameters, args, strict=True):
        if isinstance(value, Counter) and value.any() and not launch.problems:
            launch.problems.append(_left_over(kernel, parameter.name, int(value.max())))
    return launch


def _left_over(kernel: Source, name: str, value: int) -> KernelProblem:
    lines = kernel.text().splitlines()

    def found(pattern: str) -> list[int]:
        return [number for number, line in enumerate(lines, 1) if re.search(pattern, line)]

    uses, mentions = found(rf"(atomic(?!Exch)|arrive)\w*\(&?{name}\b"), found(rf"\b{name}\b")
    line = [*uses[:1], *mentions[-1:], 1][0]  # of mentions: a header adds to what the kernel hands it
    text = f"{name} is {value} after the launch: the next one must find the 0 that this one found"
    site = Site(str(kernel.path), line, lines[line - 1].strip())
    return KernelProblem("counter left over", site, None, (text,), array=name)


def _partly_written(args: tuple) -> list[tuple[ScratchArray, np.ndarray]]:
    """The scratch arrays of which not all is written, with what is."""
    arrays = (value.array if isinstance(value, TensorMap) else value for value in args)
    found = ((array, array.written()) for array in arrays if isinstance(array, ScratchArray))
    return [(array, written) for array, written in found if written is not None and not written.all()]


def _extents(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)
