"""The stage with an answer in it."""

from collections.abc import Iterator
from contextlib import contextmanager

from flashcore_numba.core.executor import Executor
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.spec import Lesson
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage, edited

LAUNCH_SECONDS = 15.0  # of the CPU executor: a launch of the checks takes a tenth of a second


@contextmanager
def loaded(lesson: Lesson, answer: Answer) -> Iterator[Stage]:
    """The lesson's stage with the answer in it, while the context is open. Raises EditError."""
    number, changed = lesson.exercise.stage, {lesson.exercise.file: answer.text}
    if answer.is_cuda:  # kept, so that the same answer is compiled once
        yield _limited(edited.load(number, changed))
        return
    with edited.loaded(number, changed) as stage:
        yield stage


def _limited(stage: Stage) -> Stage:
    """The stage with a limit for each of its launches on the CPU executor."""

    def limited(executor: Executor) -> Executor:
        if isinstance(executor, Simulator):
            executor.options.setdefault("time_limit", LAUNCH_SECONDS)
        return executor

    return stage.through(limited)
