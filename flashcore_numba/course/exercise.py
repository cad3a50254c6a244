"""Exercises: the region of a stage's file, the starter made by removing it, the answer put back.

In a Python file two comments mark the region. In a CUDA C file the exercise names the text of its first and
last line, so that the kernel needs no comments for the course.
"""

import re
import textwrap
from dataclasses import dataclass

import cuda_reference
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.spec import Exercise, Lesson
from flashcore_numba.stages import edited, files
from flashcore_numba.stages.edited import Region
from flashcore_numba.stages.files import is_cuda

WIDTH = 96  # of the task's comment in a starter
LARGEST_ANSWER = 200_000  # characters


@dataclass(frozen=True)
class Answer:
    """The exercise's module with somebody's answer in it.

    text: the module. file: how messages call it. first, last: the lines of the region in `text`; None where
    a file handed in has no markers. is_cell: the answer was only the region's lines, so a line of it is
    counted from the answer's own first line. is_cuda: it is CUDA C, not Python.
    """

    text: str
    file: str
    first: int | None
    last: int | None
    is_cell: bool

    is_cuda: bool = False

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

    def with_at_the_end(self, line: str, indent: int = 0) -> str:
        """The module's text with one more line where the region ends."""
        assert self.last is not None
        every = self.text.splitlines()
        every.insert(self.last, " " * indent + line)
        return "\n".join([*every, ""])

    def source(self, line: int) -> str:
        """The text of a line of the module."""
        every = self.text.splitlines()
        return every[line - 1].strip() if 0 < line <= len(every) else ""

    def code(self, line: int) -> str:
        """The text of a line of the module, without its comment."""
        return self.source(line).split("//" if self.is_cuda else "#")[0].strip()


def source_name(file: str) -> str:
    """The file's place in the repository."""
    return files.path(file).relative_to(cuda_reference.FOLDER.parent).as_posix()


def source_text(file: str) -> str:
    """The text of a module of `flashcore_numba.stages`, or of a file of `cuda_reference`."""
    return files.path(file).read_text()


def region(exercise: Exercise) -> Region:
    """The lines of the exercise's file that the learner writes.

    Raises ArgumentError when there is not exactly one such region.
    """
    text = source_text(exercise.file)
    if is_cuda(exercise.file):
        try:
            return edited.named_region(text, exercise.first, exercise.last, exercise.file)
        except edited.EditError as error:
            raise ArgumentError(str(error)) from None
    found = edited.marked_region(text, "Python")
    if found is None:
        begin, end = _marks(exercise)
        raise ArgumentError(f"{exercise.file}.py has not exactly one region from {begin} to {end}")
    return found


def _marks(exercise: Exercise) -> tuple[str, str]:
    """The lines around the region in a file that is handed in."""
    return edited.MARKS[_language(exercise)]


def _language(exercise: Exercise) -> str:
    return "CUDA C" if is_cuda(exercise.file) else "Python"


def _comment(exercise: Exercise) -> str:
    return "//" if is_cuda(exercise.file) else "#"


def _task(exercise: Exercise) -> list[str]:
    """The task and the given names as comment lines."""
    mark = _comment(exercise)
    out = [f"{mark} {line}".rstrip() for line in textwrap.dedent(exercise.task).strip().splitlines()]
    if exercise.given:
        out.append(f"{mark} Given:")
        for name, meaning in exercise.given.items():
            text = f"{name}: {meaning}"
            first, others = f"{mark}   ", f"{mark}     "
            out += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=others)
    return out


def starter_cell(lesson: Lesson) -> str:
    """What a notebook's cell shows before anything is written: the task as comments, then `...`."""
    return "\n".join([*_task(lesson.exercise), "..."]) + "\n"


def starter_name(lesson: Lesson) -> str:
    """The file that `flashcore starter` writes when none is named: lesson05.py, lesson08.cu, warm-up.cu."""
    name = lesson.name or f"lesson{lesson.number:02d}"
    return f"{name}.{'cu' if is_cuda(lesson.exercise.file) else 'py'}"


def starter(lesson: Lesson) -> str:
    """The stage's file with the region replaced by the task."""
    found = region(lesson.exercise)
    cell = starter_cell(lesson)
    if not is_cuda(lesson.exercise.file):
        return _with(lesson.exercise, textwrap.indent(cell, " " * found.indent))
    begin, end = _marks(lesson.exercise)
    return _with(lesson.exercise, textwrap.indent(f"{begin}\n{cell}{end}\n", " " * found.indent))


def _with(exercise: Exercise, lines: str) -> str:
    """The file's text with other lines in its region."""
    return edited.with_region(source_text(exercise.file), region(exercise), lines)


def answer_in_cell(lesson: Lesson, text: str) -> Answer:
    """The answer of a notebook's cell: the region's lines alone, all indented alike.

    Raises ArgumentError for what is no text, is too long, or, as Python, is indented with tabs.
    """
    exercise = lesson.exercise
    cuda = is_cuda(exercise.file)
    text = _checked("the answer", text)
    tabs = [
        n for n, line in enumerate(text.splitlines(), 1) if "\t" in line[: len(line) - len(line.lstrip())]
    ]
    if tabs and not cuda:
        raise ArgumentError(
            f"the answer: line {tabs[0]} is indented with a tab; four spaces a level are accepted"
        )
    kept = [line for line in text.splitlines() if line.strip() not in _marks(exercise)]
    found = region(exercise)
    lines = _dedented(kept, cuda) or [""]
    indented = "".join(_indented(line, found.indent, cuda) + "\n" for line in lines)
    name = exercise.file if cuda else f"{exercise.file}.py"
    whole = _with(exercise, indented)
    return Answer(whole, name, found.first_line, found.first_line + len(lines) - 1, True, cuda)


def _dedented(lines: list[str], cuda: bool) -> list[str]:
    """The lines without the indentation that all have; directives have a margin of their own."""
    if not cuda:
        return textwrap.dedent("\n".join(lines)).splitlines()
    lines = [line.expandtabs(4) for line in lines]
    margins = [len(line) - len(line.lstrip()) for line in lines if line.strip() and line[0] != "#"]
    margin = min(margins, default=0)
    return [line if line.startswith("#") else line[margin:] for line in lines]


def _indented(line: str, indent: int, cuda: bool) -> str:
    if not line.strip():
        return ""
    return line if cuda and line.startswith("#") else " " * indent + line


def answer_in_file(lesson: Lesson, text: str, name: str) -> Answer:
    """A whole file: the starter with its region filled in. Messages name it `name`, with its own lines.

    Raises ArgumentError for what is no text or is too long, and for a name of the other language.
    """
    text = _checked(name, text)
    cuda = is_cuda(lesson.exercise.file)
    if name.endswith(".py" if cuda else (".cu", ".cuh")):
        language, suffix = _language(lesson.exercise), ".cu" if cuda else ".py"
        raise ArgumentError(f"{name}: lesson {lesson.key} is in {language}, so a {suffix} file is accepted")
    found = edited.marked_region(text, _language(lesson.exercise)) or (
        _unmarked(lesson.exercise, text) if cuda else None
    )
    if found is None:
        return Answer(text, name, None, None, False, cuda)
    return Answer(text, name, found.first_line, found.last_line, False, cuda)


def _unmarked(exercise: Exercise, text: str) -> Region | None:
    """The region of a CUDA C file that has lost its marks: what stands where the stage has its own."""
    found, stage, lines = region(exercise), source_text(exercise.file).splitlines(), text.splitlines()
    head, tail = stage[: found.first_line - 1], stage[found.last_line :]
    if lines[: len(head)] != head or lines[len(lines) - len(tail) :] != tail:
        return None
    inside = lines[len(head) : len(lines) - len(tail)]
    return Region("".join(f"{line}\n" for line in inside), found.first_line, found.indent)


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):
        raise ArgumentError(
            f"{what}: {type(text).__name__} is not text; the lines of the exercise are accepted"
        )
    if len(text) > LARGEST_ANSWER:
        raise ArgumentError(f"{what}: {len(text)} characters; at most {LARGEST_ANSWER} are accepted")
    if "\0" in text:
        raise ArgumentError(f"{what}: a zero byte; source text is accepted")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ArgumentError(f"{what}: half of a surrogate pair; text that UTF-8 can encode is accepted")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "").removeprefix("\ufeff")
    return re.sub("[\v\x1c-\x1e\x85\u2028\u2029]", " ", text)  # ends a line for str, not for Python
