"""cuda.atomic: every active lane in turn, in the order of the schedule."""

import numpy as np

from flashcore_numba.simulator.access import ATOMIC
from flashcore_numba.simulator.memory import Choice
from flashcore_numba.simulator.rules import convert


def _method(update):
    """An atomic operation (array, index, value) that stores update(old, value) and returns old."""

    def run(self, site, array, index, value):
        return self.change(site, array, index, update, value)

    return run


class Atomics:
    """Stands for `cuda.atomic` inside a kernel."""

    def __init__(self, lanes):
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

    def cas(self, site, array, index, expected, value):
        def swap(old, expected, value):
            return np.where(old == expected, value, old)

        return self.change(site, array, index, swap, expected, value)

    def compare_and_swap(self, site, array, expected, value):
        return self.cas(site, array, 0, expected, value)

    def change(self, site, array, index, update, *operands):
        """element = update(element, *operands), lane after lane; returns the old elements."""
        lanes, launch = self.lanes, self.lanes.launch
        if type(array) is Choice:
            return lanes.each_part(array, lambda part: self.change(site, part, index, update, *operands))
        index = index if type(index) is tuple else (index,)
        element, memory = lanes.address(array, index, site), array.memory
        if launch.counting:
            lanes.record(memory, site, ATOMIC, element)
        if memory.written is not None:
            lanes.check_written(memory, element, site)
        where = np.broadcast_to(element, lanes.n)
        kind = memory.flat.dtype.char
        operands = [np.broadcast_to(convert(operand, kind), lanes.n) for operand in operands]
        order = np.flatnonzero(lanes.active())
        if launch.reverse:
            order = order[::-1]
        old = np.zeros(lanes.n, memory.flat.dtype)
        all_different = len(np.unique(where[order])) == len(order)
        for turn in [order] if all_different else order:
            old[turn] = memory.flat[where[turn]]
            memory.flat[where[turn]] = update(old[turn], *(operand[turn] for operand in operands))
        if launch.program.waits and np.any(memory.flat[where[order]] != old[order]):
            launch.changes += 1
        return old
