"""The cell magic `%%write`: a cell's lines are the answer to an exercise."""

from typing import Any

from flashcore_numba.core.problem import ArgumentError

_last: list[Any] = []  # the session made last


def register(session: Any) -> None:
    """Bring `%%write` into the running IPython, if there is one, for `session` and all lessons."""
    from IPython import get_ipython

    _last[:] = [session]
    shell = get_ipython()
    if shell is not None:
        shell.register_magic_function(_write, "cell", "write")


def _write(line: str, cell: str) -> Any:
    """%%write 5: hand in the cell's lines as the answer to lesson 5; without a number, to the last lesson().

    The lines do not run here: course.check() judges them in a process of their own.
    """
    from flashcore_numba.course.session.session import begin

    (session,) = _last
    if number := line.strip():
        if not number.isdecimal():
            raise ArgumentError(f"%%write {number}: a lesson's number is accepted, for example %%write 5")
        if int(number) != session.lesson.number:
            session = begin(number)
    return session.write(cell)
