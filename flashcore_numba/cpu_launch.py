"""What the CPU executor counted and found in a CUDA C kernel, in the form of the simulator's results."""

from typing import Any

from cuda_reference import Source, load

from .simulator import ScratchArray, report
from .simulator.problems import SimulationError

__all__ = ["CpuLaunch", "run_on_cpu"]


class CpuLaunch:
    """The result of one launch; offers what `flashcore_numba.simulator.Launch` offers of its results."""

    def __init__(self, kernel: Source, grid: Any, block: Any, result: Any) -> None:
        self.kernel, self.grid, self.block, self.result = kernel, grid, block, result
        self.problems = result.problems

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
        return "\n".join([report.table(heading, self.lines(), self.totals()), *map(str, self.problems)])


def run_on_cpu(
    kernel: Source, grid: Any, block: Any, args: tuple, shared_bytes: int, options: dict
) -> CpuLaunch:
    """Run a kernel on NumPy arrays. The simulator's options that mean something here: `order`, where
    "lockstep" is the executor's own order, `races`, `time_limit`, and `ops`, without which nothing is
    counted.
    """
    order = options.get("order", "lockstep")
    result = load(kernel, "cpu")(
        _extents(grid),
        _extents(block),
        args,
        shared_mem=shared_bytes,
        scratch=[array for array in args if isinstance(array, ScratchArray) and _unwritten(array)],
        schedule="forward" if order == "lockstep" else order,
        checks=options.get("races", True),
        counts=options.get("ops", True),
        time_limit=options.get("time_limit"),
    )
    return CpuLaunch(kernel, grid, block, result)


def _unwritten(array: ScratchArray) -> bool:
    written = array.written()
    return written is not None and not written.any()


def _extents(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)
