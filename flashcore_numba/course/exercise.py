"""Exercises: the marked region of a stage's file, the starter made by removing it, the answer put back."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from .. import stages
from ..problem import ArgumentError
from .spec import Exercise, Lesson

__all__ = [
    *("LARGEST_ANSWER", "Answer", "Region", "answer_in_cell", "answer_in_file", "region", "source_text"),
    *("starter", "starter_cell"),
]

BEGIN, END = "# <exercise>", "# </exercise>"
WIDTH = 96  # of the task's comment in a starter
LARGEST_ANSWER = 200_000  # characters
STAGES = Path(stages.__file__).parent


@dataclass(frozen=True)
class Region:
    """The lines between the markers of a file: `text` as it stands there, from line `first_line` on."""

    text: str
    first_line: int
    indent: int

    @property
    def last_line(self) -> int:
        return self.first_line + self.text.count("\n") - 1


@dataclass(frozen=True)
class Answer:
    """The exercise's module with somebody's answer in it.

    text: the module. file: how messages call it. first, last: the lines of the region in `text`; None where
    a file handed in has no markers. is_cell: the answer was only the region's lines, so a line of it is
    counted from the answer's own first line.
    """

    text: str
    file: str
    first: int | None
    last: int | None
    is_cell: bool

    @property
    def lines(self) -> list[str]:
        """The lines of the region, or of the whole file where it has no markers."""
        every = self.text.splitlines()
        return every if self.first is None or self.last is None else every[self.first - 1 : self.last]

    def inside(self, line: int) -> bool:
        """Is this line of the module one of the region's?"""
        return self.first is None or (self.last is not None and self.first <= line <= self.last)

    def number(self, line: int) -> int:
        """The line as its author counts."""
        return line - self.first + 1 if self.is_cell and self.first is not None else line

    def place(self, line: int) -> str:
        """How a message names a line of the module."""
        if self.is_cell and self.inside(line):
            return f"line {self.number(line)} of your answer"
        return f"{self.file}:{line}"

    def source(self, line: int) -> str:
        """The text of a line of the module."""
        every = self.text.splitlines()
        return every[line - 1].strip() if 0 < line <= len(every) else ""


def source_text(file: str) -> str:
    """The text of a module of `flashcore_numba.stages`."""
    return (STAGES / f"{file}.py").read_text()


def region(file: str) -> Region:
    """The marked region of a module of `flashcore_numba.stages`.

    Raises ArgumentError when it has not exactly one.
    """
    found = _marked(source_text(file))
    if found is None:
        raise ArgumentError(f"{file}.py has not exactly one region from {BEGIN} to {END}")
    return found


def _marked(text: str) -> Region | None:
    lines = text.splitlines(keepends=True)
    begins = [n for n, line in enumerate(lines) if line.strip() == BEGIN]
    ends = [n for n, line in enumerate(lines) if line.strip() == END]
    if len(begins) != 1 or len(ends) != 1 or ends[0] <= begins[0]:
        return None
    begin, end = begins[0], ends[0]
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    return Region("".join(lines[begin + 1 : end]), begin + 2, indent)


def _task(exercise: Exercise) -> list[str]:
    """The task and the given names as comment lines."""
    out = [f"# {line}".rstrip() for line in textwrap.dedent(exercise.task).strip().splitlines()]
    if exercise.given:
        out.append("# Given:")
        for name, meaning in exercise.given.items():
            text = f"{name}: {meaning}"
            out += textwrap.wrap(text, WIDTH, initial_indent="#   ", subsequent_indent="#     ")
    return out


def starter_cell(lesson: Lesson) -> str:
    """What a notebook's cell shows before anything is written: the task as comments, then `...`."""
    return "\n".join([*_task(lesson.exercise), "..."]) + "\n"


def starter(lesson: Lesson) -> str:
    """The stage's file with the region replaced by the task; it imports from anywhere."""
    from ..checks.mutation import absolute_imports

    found = region(lesson.exercise.file)
    cell = textwrap.indent(starter_cell(lesson), " " * found.indent)
    return absolute_imports(_with(lesson.exercise.file, cell))


def _with(file: str, lines: str) -> str:
    """The module's text with other lines in its region."""
    found = region(file)
    every = source_text(file).splitlines(keepends=True)
    every[found.first_line - 1 : found.last_line] = lines.splitlines(keepends=True)
    return "".join(every)


def answer_in_cell(lesson: Lesson, text: str) -> Answer:
    """The answer of a notebook's cell: the region's lines alone, all indented alike.

    Raises ArgumentError for what is no text, is too long, or is indented with tabs.
    """
    text = _checked("the answer", text)
    tabs = [
        n for n, line in enumerate(text.splitlines(), 1) if "\t" in line[: len(line) - len(line.lstrip())]
    ]
    if tabs:
        raise ArgumentError(
            f"the answer: line {tabs[0]} is indented with a tab; four spaces a level are accepted"
        )
    kept = [line for line in text.splitlines() if line.strip() not in (BEGIN, END)]
    lines = textwrap.dedent("\n".join(kept)).splitlines() or [""]
    found = region(lesson.exercise.file)
    indented = "".join(" " * found.indent + line + "\n" if line.strip() else "\n" for line in lines)
    name = f"{lesson.exercise.file}.py"
    return Answer(
        _with(lesson.exercise.file, indented), name, found.first_line, found.first_line + len(lines) - 1, True
    )


def answer_in_file(lesson: Lesson, text: str, name: str) -> Answer:
    """A whole file: the starter with its region filled in. Messages name it `name`, with its own lines.

    Raises ArgumentError for what is no text or is too long.
    """
    text = _checked(name, text)
    found = _marked(text)
    if found is None:
        return Answer(text, name, None, None, False)
    return Answer(text, name, found.first_line, found.last_line, False)


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise ArgumentError(
            f"{what}: {type(text).__name__} is not text; the lines of the exercise are accepted"
        )
    if len(text) > LARGEST_ANSWER:
        raise ArgumentError(f"{what}: {len(text)} characters; at most {LARGEST_ANSWER} are accepted")
    if "\0" in text:
        raise ArgumentError(f"{what}: a zero byte; Python source text is accepted")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ArgumentError(f"{what}: half of a surrogate pair; text that UTF-8 can encode is accepted")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "").removeprefix("\ufeff")
    return re.sub("[\v\x1c-\x1e\x85\u2028\u2029]", " ", text)  # ends a line for str, not for Python
