"""cuda.atomic: every active lane in turn, in the order of the schedule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.simulator.access import ATOMIC, Accesses
from flashcore_numba.simulator.memory import GLOBAL, Choice
from flashcore_numba.simulator.rules import Value, convert

UNSIGNED = "IL"
INTEGERS = "il" + UNSIGNED
NUMBERS = INTEGERS + "fd"


def _method(name: str, update: Callable[..., Any], kinds: str = NUMBERS) -> Callable[..., Value]:
    """An atomic operation (array, index, value) that stores update(old, value) and returns old.

    `kinds` are the types of array that Numba has it for.
    """

    def run(self: "Atomics", site: int, array: Any, index: Any, value: Value) -> Value:
        _check_kind(name, array, kinds)
        return self.change(site, array, index, update, value)

    return run


def _check_kind(name: str, array: Any, kinds: str) -> None:
    if array.dtype.char not in kinds:
        raise TypeError(f"Numba has no atomic.{name} for {array.dtype}")


def _unless_nan(extreme: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """max or min where a NaN in memory stays: Numba's loop compares, and stores only what is beyond."""
    return lambda old, value: np.where(np.isnan(old), old, extreme(old, value))


def _turns(where: np.ndarray, order: np.ndarray) -> list[np.ndarray]:
    """The lanes `order` in groups of different elements, so that each element has its lanes in that order."""
    by_element = np.argsort(where[order], kind="stable")
    elements = where[order][by_element]
    starts = np.flatnonzero(np.diff(elements, prepend=-1))
    earlier = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    turn = np.empty(len(order), np.int64)
    turn[by_element] = earlier
    by_turn = np.argsort(turn, kind="stable")
    return np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


class Atomics:
    """Stands for `cuda.atomic` inside a kernel."""

    def __init__(self, lanes: Accesses) -> None:
        self.lanes = lanes

    add = _method("add", np.add)
    sub = _method("sub", np.subtract)
    max = _method("max", _unless_nan(np.fmax))
    min = _method("min", _unless_nan(np.fmin))
    nanmax = _method("nanmax", np.fmax)
    nanmin = _method("nanmin", np.fmin)
    and_ = _method("and_", np.bitwise_and, INTEGERS)
    or_ = _method("or_", np.bitwise_or, INTEGERS)
    xor = _method("xor", np.bitwise_xor, INTEGERS)
    exch = _method("exch", lambda old, value: value, INTEGERS)
    inc = _method("inc", lambda old, limit: np.where(old >= limit, 0, old + 1), UNSIGNED)
    dec = _method("dec", lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1), UNSIGNED)

    def cas(self, site: int, array: Any, index: Any, expected: Value, value: Value) -> Value:
        def swap(old: Value, expected: Value, value: Value) -> Value:
            return np.where(old == expected, value, old)

        _check_kind("cas", array, INTEGERS)
        return self.change(site, array, index, swap, expected, value)

    def compare_and_swap(self, site: int, array: Any, expected: Value, value: Value) -> Value:
        return self.cas(site, array, 0, expected, value)

    def change(
        self, site: int, array: Any, index: Any, update: Callable[..., Any], *operands: Value
    ) -> Value:
        """element = update(element, *operands), lane after lane; returns the old elements."""
        lanes, launch = self.lanes, self.lanes.launch
        if type(array) is Choice:
            return lanes.each_part(array, lambda part: self.change(site, part, index, update, *operands))
        if type(index) is tuple and len(index) == 1:
            raise TypeError("Numba has no atomic operation for a tuple of one index")
        index = index if type(index) is tuple else (index,)
        element, memory = lanes.address(array, index, site), array.memory
        if launch.counting:
            lanes.record(memory, site, ATOMIC, element)
        if memory.space == GLOBAL:
            lanes.group.signalled[lanes.block[lanes.active()]] = True
        lanes.check_written(memory, element, site)
        where = np.broadcast_to(element, lanes.n)
        kind = memory.flat.dtype.char
        vectors = [np.broadcast_to(convert(operand, kind), lanes.n) for operand in operands]
        order = np.flatnonzero(lanes.active())
        if launch.reverse:
            order = order[::-1]
        old = np.zeros(lanes.n, memory.flat.dtype)
        for turn in _turns(where, order):
            old[turn] = memory.flat[where[turn]]
            memory.flat[where[turn]] = update(old[turn], *(vector[turn] for vector in vectors))
        if launch.program.waits and np.any(memory.flat[where[order]] != old[order]):
            launch.changes += 1
        return old
