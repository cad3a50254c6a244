"""The lessons, one module each: `lessonNN` and `warm_up` export `LESSON`."""

import importlib
import numbers
import pkgutil
import re
from typing import Any

from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.lessons import warm_up
from flashcore_numba.course.spec import FunctionsExercise, Key, Lesson

__all__ = ["EVERY", "LESSONS", "OF_KERNELS", "find"]


def _all() -> dict[int, Lesson]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if re.fullmatch(r"lesson\d\d", m.name))
    lessons = [importlib.import_module(f"{__name__}.{name}").LESSON for name in names]
    return {lesson.number: lesson for lesson in lessons}


LESSONS = _all()
EVERY: dict[Key, Lesson] = {
    each.key: each
    for each in sorted([*LESSONS.values(), warm_up.LESSON], key=lambda each: (each.number, not each.name))
}
"""The lessons and their warm-ups, in the order in which they are done."""
OF_KERNELS = {key: each for key, each in EVERY.items() if not isinstance(each.exercise, FunctionsExercise)}
"""Those whose exercise is a region of a kernel."""


def find(key: Key) -> Lesson:
    """The lesson with this number (5, "5", "05"), or the warm-up with this name ("warm-up").

    Raises ArgumentError, which lists them.
    """
    wanted: Any = key.strip() if isinstance(key, str) else key
    if isinstance(wanted, str) and re.fullmatch("[0-9]{1,9}", wanted):
        wanted = int(wanted)
    known = isinstance(wanted, str | numbers.Integral) and not isinstance(wanted, bool)
    if known and wanted in EVERY:
        return EVERY[wanted]
    accepted = "; ".join(f"{lesson.key} {lesson.title}" for lesson in EVERY.values())
    raise ArgumentError(f"lesson {shown(key)}: accepted are {accepted}")
