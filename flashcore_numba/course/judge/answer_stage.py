"""The stage with an answer in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from flashcore_numba.core.executor import Executor
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.ranks.together import Ring
from flashcore_numba.course.search.lineage import Hunt
from flashcore_numba.course.spec import Lesson, RanksExercise, SearchExercise
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage, edited

LAUNCH_SECONDS = 15.0  # of the CPU executor: a launch of the checks takes a tenth of a second


class NotLoaded(Exception):
    """The module with the answer raises when it is run; the cause is the exception."""


@contextmanager
def loaded(lesson: Lesson, answer: Answer) -> Iterator[Stage]:
    """The lesson's stage with the answer in it, while the context is open. Raises EditError."""
    number, changed = lesson.exercise.stage, {lesson.exercise.file: answer.text}
    if answer.is_cuda:  # kept, so that the same answer is compiled once
        yield _limited(edited.load(number, changed))
        return
    with edited.loaded(number, changed) as stage:
        yield stage


@contextmanager
def drawn_from(lesson: Lesson, answer: Answer) -> Iterator[Any]:
    """What figures draw of an answer: the stage with it, or its functions.

    Raises EditError, and NotLoaded.
    """
    if isinstance(lesson.exercise, SearchExercise):
        yield functions(answer)
        return
    if isinstance(lesson.exercise, RanksExercise):
        yield ring(answer)
        return
    with loaded(lesson, answer) as stage:
        yield stage


def functions(answer: Answer) -> Hunt:
    """`mutate` and `evaluate` of an answer. Raises NotLoaded."""
    module = _executed(answer)
    return Hunt(module.mutate, module.evaluate)


def ring(answer: Answer) -> Ring:
    """`pieces`, `seen` and `pull` of an answer. Raises NotLoaded."""
    module = _executed(answer)
    return Ring(module.pieces, module.seen, module.pull)


def _executed(answer: Answer) -> ModuleType:
    module = ModuleType("flashcore_answer")
    try:
        exec(compile(answer.text, answer.file, "exec"), module.__dict__)
    except Exception as error:  # of the answer
        raise NotLoaded(f"{type(error).__name__}: {error}") from error
    return module


def _limited(stage: Stage) -> Stage:
    """The stage with a limit for each of its launches on the CPU executor."""

    def limited(executor: Executor) -> Executor:
        if isinstance(executor, Simulator):
            executor.options.setdefault("time_limit", LAUNCH_SECONDS)
        return executor

    return stage.through(limited)
