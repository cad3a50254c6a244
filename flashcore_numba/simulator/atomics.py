"""cuda.atomic: every active lane in turn, in the order of the schedule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.simulator.access import ATOMIC, Accesses
from flashcore_numba.simulator.memory import Choice
from flashcore_numba.simulator.rules import Value, convert


def _method(update: Callable[..., Any]) -> Callable[..., Value]:
    """An atomic operation (array, index, value) that stores update(old, value) and returns old."""

    def run(self: "Atomics", site: int, array: Any, index: Any, value: Value) -> Value:
        return self.change(site, array, index, update, value)

    return run


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

    add = _method(np.add)
    sub = _method(np.subtract)
    max = _method(np.fmax)
    min = _method(np.fmin)
    nanmax, nanmin = max, min
    and_ = _method(np.bitwise_and)
    or_ = _method(np.bitwise_or)
    xor = _method(np.bitwise_xor)
    exch = _method(lambda old, value: value)
    inc = _method(lambda old, limit: np.where(old >= limit, 0, old + 1))
    dec = _method(lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1))

    def cas(self, site: int, array: Any, index: Any, expected: Value, value: Value) -> Value:
        def swap(old: Value, expected: Value, value: Value) -> Value:
            return np.where(old == expected, value, old)

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
        index = index if type(index) is tuple else (index,)
        element, memory = lanes.address(array, index, site), array.memory
        if launch.counting:
            lanes.record(memory, site, ATOMIC, element)
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
