"""The lesson machine: exercises cut from the stages, checkers, predictions, figures and progress."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashcore_numba.course.session.session import Session

__all__ = ["lesson"]


def lesson(number: "int | str") -> "Session":
    """Begin or go on with a lesson, 5 for example, or "warm-up": see `session.Session` for what it can do.

    Raises ArgumentError for a lesson that does not exist.
    """
    # Here, because the process that judges an answer needs none of it.
    from flashcore_numba.course.session.begin import begin

    return begin(number)
