"""A look at an answer before anything of it runs, in the language it is written in."""

from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import screen_cuda, screen_python
from flashcore_numba.course.judge.verdict import Refusal
from flashcore_numba.course.spec import Lesson


def screen(lesson: Lesson, answer: Answer) -> Refusal | None:
    """The first thing that keeps an answer from being run, or None.

    Raises ArgumentError for a whole file that is not one of this lesson.
    """
    return (screen_cuda if answer.is_cuda else screen_python).screen(lesson, answer)
