"""How a lesson begins, and the cell magic `%%write`: a cell's lines are the answer to an exercise."""

import sys
from typing import Any

from flashcore_numba.core.problem import ArgumentError
from flashcore_numba.course import lessons
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session

_last: list[Session] = []  # the session made last


def begin(number: int | str) -> Session:
    """Begin or go on with a lesson. In IPython this also brings the cell magic `%%write`.

    Raises ArgumentError for a lesson that does not exist.
    """
    session = Session(lessons.find(number), Journal())
    if "IPython" in sys.modules:
        _register(session)
    return session


def _register(session: Session) -> None:
    """Bring `%%write` into the running IPython, if there is one, for `session` and all lessons."""
    from IPython import get_ipython  # of an extra

    _last[:] = [session]
    shell = get_ipython()
    if shell is not None:
        shell.register_magic_function(_write, "cell", "write")


def _write(line: str, cell: str) -> Any:
    """%%write 5: hand in the cell's lines as the answer to lesson 5; without a number, to the last lesson().

    The lines do not run here: course.check() judges them in a process of their own.
    """
    (session,) = _last
    if number := line.strip():
        if not number.isdecimal():
            raise ArgumentError(f"%%write {number}: a lesson's number is accepted, for example %%write 5")
        if int(number) != session.lesson.number:
            session = begin(number)
    return session.write(cell)
