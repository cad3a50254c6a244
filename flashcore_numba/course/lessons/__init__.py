"""The lessons, one module each: `lessonNN` exports `LESSON`."""

import importlib
import numbers
import pkgutil
import re

from cuda_reference.shown import shown
from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.course.spec import Lesson

__all__ = ["LESSONS", "find"]


def _all() -> dict[int, Lesson]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if re.fullmatch(r"lesson\d\d", m.name))
    lessons = [importlib.import_module(f"{__name__}.{name}").LESSON for name in names]
    return {lesson.number: lesson for lesson in lessons}


LESSONS = _all()


def find(number: int | str) -> Lesson:
    """The lesson with this number (5, "5", "05"). Raises ArgumentError, which lists the lessons."""
    wanted = int(number) if isinstance(number, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", number) else number
    if isinstance(wanted, numbers.Integral) and not isinstance(wanted, bool) and wanted in LESSONS:
        return LESSONS[int(wanted)]
    accepted = "; ".join(f"{lesson.number} {lesson.title}" for lesson in LESSONS.values())
    raise ArgumentError(f"lesson {shown(number)}: accepted are {accepted}")
