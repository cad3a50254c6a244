"""The layers of the check of an answer, the cheapest first: which is at work, and how long each took."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from flashcore_numba.core.errors import ArgumentError

SCREEN, COMPILE, FIRST, CHECKS, GATES, CUBIN = "screen", "compile", "first case", "checks", "gates", "cubin"
ORDER = (SCREEN, COMPILE, FIRST, CHECKS, GATES, CUBIN)


@dataclass(frozen=True)
class Layer:
    """A layer that looked at an answer, and the seconds that it took."""

    name: str
    seconds: float


class Layers:
    """The clock of one check."""

    def __init__(self, through: str | None = None, entered: Callable[[str], None] = lambda _: None) -> None:
        """through: the last layer to run, all when None. entered(name): called as a layer begins.

        Raises ArgumentError for a layer that there is not.
        """
        if through is not None and through not in ORDER:
            raise ArgumentError(f"through: {through!r} is none of {', '.join(ORDER)}")
        self.last, self.entered = len(ORDER) if through is None else ORDER.index(through), entered
        self.current = ""
        self._seconds: dict[str, float] = {}
        self._since = 0.0

    def asked(self, name: str) -> bool:
        """Is a layer to run?"""
        return ORDER.index(name) <= self.last

    def enter(self, name: str) -> None:
        """A layer begins, and the one before ends."""
        self._end()
        self.current = name
        self.entered(name)

    def done(self) -> tuple[Layer, ...]:
        """Those that looked, in order, with all their seconds."""
        self._end()
        return tuple(Layer(name, self._seconds[name]) for name in ORDER if name in self._seconds)

    def _end(self) -> None:
        now = time.perf_counter()
        if self.current:
            self._seconds[self.current] = self._seconds.get(self.current, 0.0) + now - self._since
        self._since = now
