"""What can be wrong with a kernel, and how it is reported."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

KINDS = {
    "race": "two threads of a block touch one element, at least one writes, and no barrier lies between",
    "race between blocks": "one block writes an element of global memory that another block touches",
    "divergent barrier": "some threads of a block wait at a barrier that others do not reach",
    "barrier after exit": "threads of a block returned before a barrier that the others reach",
    "out of bounds": "an index is negative or not below the array's extent",
    "uninitialised read": "shared, local or scratch memory, or a variable, is read before it is written",
    "misaligned": "a wide access does not start at a multiple of its size, or its array may not",
    "warp mask": "a warp instruction names other lanes than those that execute it, or reads an absent one",
    "endless loop": "a loop turned more often than `max_turns`, or waits for what no thread will do",
    "time limit": "the launch took longer than `time_limit` seconds",
    "division by zero": "an integer division by zero",
    "not a number": "arithmetic on numbers made a NaN (0 / 0, inf - inf, 0 * inf) that reached global memory",
}
"""Every kind of problem that a report can name, and what it means."""


class Site(NamedTuple):
    """One place in a kernel's source. `caller` is the call of the device function that it is in, where the
    launch kept calls apart."""

    file: str
    line: int
    text: str
    caller: "Site | None" = None


@dataclass
class Problem:
    """One thing that is wrong, at one place or, for a race, between two.

    `kind` is a key of `KINDS`; `line` and `other_line` are 1-based lines of `file` (`other_line` is None
    where only one place is involved); `text` names the array, the element and the threads of the first
    occurrence; `count` says how often it occurred.
    """

    kind: str
    site: Site
    other: Site | None
    text: str
    count: int = 1

    @property
    def file(self) -> str:
        return self.site.file

    @property
    def line(self) -> int:
        return self.site.line

    @property
    def other_line(self) -> int | None:
        return self.other.line if self.other else None

    def __str__(self) -> str:
        where = f"{PurePath(self.file).name}:{self.line} `{self.site.text}`"
        if self.other:
            same = self.other.file == self.file
            place = (
                f"line {self.other.line}" if same else f"{PurePath(self.other.file).name}:{self.other.line}"
            )
            where += f" and {place} `{self.other.text}`"
        times = f" (x{self.count})" if self.count > 1 else ""
        return f"{self.kind}: {where}: {self.text}{times}"


class SimulationError(Exception):
    """A simulated kernel has problems: the message lists them, `problems` holds them."""

    def __init__(self, kernel_name: str, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join([f"{kernel_name}: {len(problems)} problem(s)", *map(str, problems)]))


class Unsupported(Exception):
    """The kernel uses Python or CUDA that the simulator does not know; the message names file and line."""


class Fault(Exception):
    """Ends a launch after a problem that a GPU would not survive either."""
