"""The state of control flow under way: if, loop and call, and the empty mask."""

from typing import Any

import numpy as np

NOBODY = np.zeros(0, bool)
Mask = Any  # the lanes that take part: a vector of booleans, or None for all of them


class _Undefined:
    """A local variable before its first assignment."""

    def __repr__(self) -> str:
        return "<a variable before its first assignment>"


UNDEFINED = _Undefined()


class Stuck(Exception):
    """Lanes wait in a loop for what only others can do, which do not run before they are done."""

    def __init__(self, site: int) -> None:
        self.site = site


class Branch:
    """An if statement under way: who came, who takes which side, and the line if they were divided."""

    __slots__ = ("divided_at", "no", "saved", "scope", "yes")

    def __init__(self, saved: Mask, yes: Mask, no: Mask, divided_at: int | None = None) -> None:
        self.saved, self.yes, self.no, self.divided_at = saved, yes, no, divided_at
        self.scope: Any = None


class Loop:
    """A loop under way: who entered, who still turns, and who left by break or continue."""

    __slots__ = (
        "broken",
        "continued",
        "divided",
        "idle",
        "mask",
        "now",
        "saved",
        "scope",
        "seen",
        "site",
        "turns",
    )

    def __init__(self, mask: Mask, site: int, scope: Mask) -> None:
        self.saved = self.mask = self.now = mask
        self.scope = scope
        self.site = site
        self.broken: Mask = None
        self.continued: Mask = None
        self.divided = False
        self.turns = self.idle = 0
        self.seen: Any = None


class Frame:
    """A function call under way: who entered, who returned, and what they returned."""

    __slots__ = ("arguments", "context", "empty", "outside", "point", "returned", "saved", "scope", "value")

    def __init__(self, saved: Mask, scope: Mask, point: int, outside: tuple, arguments: tuple) -> None:
        self.saved, self.scope, self.point, self.outside = saved, scope, point, outside
        self.arguments = arguments
        self.returned: Mask = None
        self.empty: Mask = None  # who returned without a value
        self.value: Any = None
