"""A call of somebody's function, with the lines that it executed and the values of its variables there."""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PLAIN = (int, float, str, list, np.number)
MOST_LINES = 20_000  # of one call that are kept


@dataclass
class Followed:
    """value: what was returned; error: what was raised, None where nothing was. lines: the numbers of the
    function's own lines, in the order in which they ran. states: before each of them, its variables that are
    numbers, texts or lists.
    """

    value: Any = None
    error: Exception | None = None
    lines: list[int] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    @property
    def last(self) -> int | None:
        """The line that was executed last: that of a `return` where there is one."""
        return self.lines[-1] if self.lines else None


def follow(function: Callable, *arguments: Any, values: bool = False) -> Followed:
    """Call a function of the answer. values: whether to keep `states`."""
    found, code = Followed(), function.__code__

    def line(frame: Any, event: str, _: Any) -> Any:
        if event in ("line", "return") and len(found.lines) < MOST_LINES:
            if event == "line":
                found.lines.append(frame.f_lineno)
            if values:
                found.states.append(
                    {name: copy.copy(x) for name, x in frame.f_locals.items() if isinstance(x, PLAIN)}
                )
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: line if frame.f_code is code else None)
    try:
        found.value = function(*arguments)
    except Exception as error:  # of the answer
        found.error = error
    finally:
        sys.settrace(before)
    return found
