"""A look at an answer before anything of it runs, by its language and by the kind of its exercise."""

from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import screen_cuda, screen_functions, screen_python
from flashcore_numba.course.judge.verdict import Refusal
from flashcore_numba.course.spec import FunctionsExercise, Lesson


def screen(lesson: Lesson, answer: Answer) -> Refusal | None:
    """The first thing that keeps an answer from being run, or None.

    Raises ArgumentError for a whole file that is not one of this lesson.
    """
    if isinstance(lesson.exercise, FunctionsExercise):
        return screen_functions.screen(lesson, answer)
    return (screen_cuda if answer.is_cuda else screen_python).screen(lesson, answer)
