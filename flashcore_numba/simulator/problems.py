"""What can be wrong with a kernel, and how it is reported."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

KINDS = {
    "race": "two threads of a block touch one element, at least one writes, and no barrier is between them",
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
    launch kept calls apart.
    """

    file: str
    line: int
    text: str
    caller: "Site | None" = None


class Line(NamedTuple):
    """A line of the kernel's file that a problem's text names."""

    number: int

    def __str__(self) -> str:
        return f"line {self.number}"


@dataclass
class KernelProblem:
    """One thing that is wrong, at one place or, for a race, between two.

    `kind` is a key of `KINDS`; `line` and `other_line` are 1-based lines of `file` (`other_line` is None
    where only one place is involved). Of the first occurrence: `array` is the array or the variable ("" where
    none is involved), `element` its element, as the text counts them, `threads` the (block, thread) pairs
    that the text names; `pieces` are what `text` is made of. `count` says how often it occurred.
    """

    kind: str
    site: Site
    other: Site | None
    pieces: tuple[str | Line, ...]
    count: int = 1
    array: str = ""
    element: tuple[int, ...] | None = None
    threads: tuple[tuple[int, int], ...] = ()

    @property
    def text(self) -> str:
        """What happened the first time: to which element, by which threads."""
        return "".join(map(str, self.pieces))

    @property
    def lines(self) -> list[int]:
        """The lines that the message names, in its order."""
        sites = [site.line for site in (self.site, self.other) if site]
        return [*sites, *(piece.number for piece in self.pieces if isinstance(piece, Line))]

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
        return self.told(lambda file, line, usual: usual)

    def told(self, place: Callable[[str, int, str], str]) -> str:
        """The message. `place(file, line, usual)` says how it names a line: `usual` is "kernel.py:5", or
        "line 5" for a further line of the same file.
        """
        where = f"{_place(self.site, place)} `{self.site.text}`"
        if self.other and self.other.file == self.file:
            line = self.other.line
            where += f" and {place(self.file, line, f'line {line}')} `{self.other.text}`"
        elif self.other:
            where += f" and {_place(self.other, place)} `{self.other.text}`"
        text = "".join(
            place(self.file, piece.number, str(piece)) if isinstance(piece, Line) else piece
            for piece in self.pieces
        )
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {where}: {text}{times}"


def _place(site: Site, place: Callable[[str, int, str], str]) -> str:
    return place(site.file, site.line, f"{PurePath(site.file).name}:{site.line}")


class SimulationError(Exception):
    """A simulated kernel has problems: the message lists them, `problems` holds them."""

    def __init__(self, kernel_name: str, problems: list[KernelProblem]):
        self.problems = problems
        super().__init__("\n".join([f"{kernel_name}: {len(problems)} problem(s)", *map(str, problems)]))


class Unsupported(Exception):
    """The kernel uses Python or CUDA that the simulator does not know, at a line of a file.

    unknown: what it is that is not known, with the line's text; "" for another reason. raised: what Python or
    NumPy raised when the line ran; None where it did not run.
    """

    def __init__(
        self, file: str, line: int | None, message: str, *, unknown: str = "", raised: Exception | None = None
    ) -> None:
        super().__init__(f"{file}: {message}" if line is None else f"{file}:{line}: {message}")
        self.file, self.line, self.message = file, line, message
        self.unknown, self.raised = unknown, raised

    def __reduce__(self) -> tuple[Any, ...]:
        return _unsupported, (self.file, self.line, self.message, self.unknown, self.raised)


def _unsupported(
    file: str, line: int | None, message: str, unknown: str, raised: Exception | None
) -> Unsupported:
    """What unpickling calls: it passes no keywords."""
    return Unsupported(file, line, message, unknown=unknown, raised=raised)


class Fault(Exception):
    """Ends a launch after a problem that a GPU would not survive either."""
