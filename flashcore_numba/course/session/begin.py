"""How a lesson begins, and the cell magic `%%write`: a cell's lines are the answer to an exercise."""

import sys
from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import lessons
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session
from flashcore_numba.course.spec import Key

_last: list[Session] = []  # the session made last


def begin(key: Key) -> Session:
    """Begin or go on with a lesson. In IPython this also brings the cell magic `%%write`.

    Raises ArgumentError for a lesson that does not exist.
    """
    session = Session(lessons.find(key), Journal())
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
    """%%write 5: hand in the cell's lines as the answer to lesson 5, %%write warm-up to a warm-up; without
    either, to the last lesson().

    The lines do not run here: course.check() judges them in a process of their own.
    """
    (session,) = _last
    if key := line.strip():
        if not key.isdecimal() and key not in lessons.EVERY:
            raise ArgumentError(f"%%write {key}: a lesson's number is accepted, for example %%write 5")
        if lessons.find(key).key != session.lesson.key:
            session = begin(key)
    return session.write(cell)
