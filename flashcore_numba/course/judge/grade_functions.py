"""The check of functions that an exercise asks for, whatever they are called on: items, and how it ends."""

import traceback
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge.answer_stage import NotLoaded
from flashcore_numba.course.judge.causes import stated
from flashcore_numba.course.judge.grading import LONGEST, Step, at
from flashcore_numba.course.judge.verdict import CheckResult, Item
from flashcore_numba.course.spec import Lesson


class Found(Exception):
    """A result that ends the check."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result.what)
        self.result = result


class FunctionsGrading(ABC):
    """One answer under check. kind: of what fails, where no other is named."""

    kind = ""

    def __init__(self, lesson: Lesson, answer: Answer, seed: int, step: Step) -> None:
        self.lesson, self.answer, self.seed, self.step = lesson, answer, seed, step
        self.items: list[Item] = []
        self.total = 1

    @abstractmethod
    def run(self) -> CheckResult:
        """Check one thing after the other: the result of an answer that is right. Raises Found, NotLoaded."""

    def result(self) -> CheckResult:
        try:
            return replace(self.run(), items=tuple(self.items))
        except Found as end:
            return replace(end.result, items=tuple(self.items))
        except NotLoaded as error:
            cause = error.__cause__
            assert cause is not None
            result = CheckResult(self.lesson.key, "failed", f"It cannot be run: {error}", kind="error")
            line = _line_of(cause, self.answer.file)
            return result if line is None else at(result, self.answer, line)

    def begin(self, label: str) -> None:
        """Go on to the next item."""
        self.step(len(self.items), self.total, label)
        self.items.append(Item(label, False, self.kind))

    def end(self) -> None:
        """The item is passed."""
        self.items[-1] = replace(self.items[-1], passed=True, kind="")

    def fail(
        self, cause: str, what: str, line: int | None, look: str = "", kind: str = "", **words: Any
    ) -> None:
        """Raise the result, with the cause that is proven."""
        kind = kind or self.kind
        result = CheckResult(self.lesson.key, "failed", what[:LONGEST], look=look, kind=kind)
        self.items[-1] = replace(self.items[-1], message=what[:LONGEST], kind=kind)
        if line is not None and self.answer.inside(line):
            result = at(result, self.answer, line)
        raise Found(stated(result, cause, words))

    def raised(self, error: Exception, of: str) -> None:
        """Raise the result on a function that raises."""
        line = _line_of(error, self.answer.file)
        text = f"{type(error).__name__}: {error}"
        what = f"`{of}` raises {text}"[:LONGEST]
        result = CheckResult(self.lesson.key, "failed", what, kind="error")
        self.items[-1] = replace(self.items[-1], message=what, kind="error")
        raise Found(result if line is None else at(result, self.answer, line))

    def rng(self, *numbers: int) -> np.random.Generator:
        """Random numbers of this check."""
        return np.random.default_rng([self.seed, *numbers])


def _line_of(error: BaseException, file: str) -> int | None:
    """The last line of a file that an exception passed."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    return lines[-1] if lines else None
