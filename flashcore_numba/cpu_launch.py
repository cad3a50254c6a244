"""What the CPU executor counted and found in a CUDA C kernel, in the shapes of the simulator's results."""

import linecache
from dataclasses import fields
from typing import Any

from cuda_reference import Source, load

from .simulator import report
from .simulator.problems import Problem, SimulationError, Site

__all__ = ["CpuLaunch", "run_on_cpu"]

ROW_FIELDS = tuple(field.name for field in fields(report.Row) if field.name != "text")


class CpuLaunch:
    """The result of one launch; offers what `flashcore_numba.simulator.Launch` offers of its results."""

    def __init__(self, kernel: Source, grid: Any, block: Any, result: Any) -> None:
        self.kernel, self.grid, self.block, self.result = kernel, grid, block, result
        self.problems = [_problem(found) for found in result.problems]

    def totals(self) -> dict[str, Any]:
        return self.result.totals()

    def lines(self) -> list[report.Row]:
        return [_row(row) for row in self.result.lines()]

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
    """Run a kernel on NumPy arrays. Of the simulator's options, `order` and `races` have a meaning here:
    "lockstep" is the executor's own order.
    """
    order = options.get("order", "lockstep")
    result = load(kernel, "cpu")(
        grid,
        block,
        args,
        shared_mem=shared_bytes,
        schedule="forward" if order == "lockstep" else order,
        checks=options.get("races", True),
    )
    return CpuLaunch(kernel, grid, block, result)


def _site(file: str, line: int) -> Site:
    return Site(file, line, linecache.getline(file, line).strip())


def _problem(found: Any) -> Problem:
    other = None if found.other_line is None else _site(found.file, found.other_line)
    return Problem(found.kind, _site(found.file, found.line), other, found.text, found.count)


def _row(row: Any) -> report.Row:
    text = row.text or linecache.getline(row.file, row.line).strip()
    return report.Row(**{name: getattr(row, name) for name in ROW_FIELDS}, text=text)
