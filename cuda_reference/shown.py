"""Values in messages: short, on one line, and never an exception of their own."""

import reprlib
from typing import Any

MOST_DIGITS = 60


class _Shown(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring, self.maxother, self.maxlevel = 120, 120, 3

    def repr_int(self, x: int, level: int) -> str:
        digits = int(abs(x).bit_length() * 0.30103) + 1
        return repr(x) if digits <= MOST_DIGITS else f"an integer of {digits} digits"


def shown(value: Any) -> str:
    """What a message says of a value that a caller passed: its `repr`, cut where that is long."""
    try:
        return " ".join(_Shown().repr(value).split())
    except Exception:  # whatever its class does
        return f"<{type(value).__name__}>"
