"""An independent simulator: one greenlet a thread, the kernel's own bytecode, arrays that log their accesses.

It shares no code and no assumption with `flashcore_numba.simulator` except what a finished warp request
costs, which it computes again, slowly and plainly. The k-th visits of one bytecode instruction by the lanes
of a warp form one request; without divergence inside loops that is what the hardware does too.
"""

import dis
import functools
import math
import sys
import types
from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
from greenlet import getcurrent, greenlet
from numba import cuda

__all__ = ["Fault", "Oracle"]

WARP, SECTOR, WORD = 32, 32, 4
LOAD, STORE, ATOMIC = "load", "store", "atomic"


class Fault(Exception):
    """An index outside an array."""


@functools.cache
def _instruction_starts(code) -> list[int]:
    """For each code unit the offset of its instruction: f_lasti may point into an inline cache."""
    starts = [0] * (len(code.co_code) // 2 + 1)
    for instruction in dis.get_instructions(code):
        for unit in range(instruction.offset // 2, len(starts)):
            starts[unit] = instruction.offset
    return starts


def _place(frame):
    """The bytecode instruction that a frame executes."""
    return frame.f_code, _instruction_starts(frame.f_code)[frame.f_lasti // 2]


@dataclass
class Thread:
    number: int
    position: tuple[int, int, int]
    running: greenlet
    log: dict = field(default_factory=lambda: defaultdict(list))  # (place, op, array) -> elements
    waits_for: str | None = None
    offered: tuple | None = None  # a shuffle: kind, value, argument
    reply: object = None
    started: bool = False


class RecordingArray:
    """A flat buffer that logs who touches what, and finds races in shared memory."""

    def __init__(self, oracle, flat, shape, strides, space, base=0):
        self.oracle, self.flat, self.shape, self.strides = oracle, flat, shape, strides
        self.space, self.base = space, base
        self.itemsize = flat.itemsize
        self.touched = defaultdict(set)  # element -> (thread, op) since the last barrier

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    dtype = property(lambda self: self.flat.dtype)

    def __len__(self):
        return self.shape[0]

    def element(self, index, op, depth=2) -> int:
        index = index if isinstance(index, tuple) else (index,)
        element = 0
        for i, extent, stride in zip(index, self.shape, self.strides, strict=True):
            if not 0 <= i < extent:
                raise Fault(
                    f"line {sys._getframe(depth).f_lineno}: {index} of an array of shape {self.shape}"
                )
            element += int(i) * stride
        thread = self.oracle.now
        thread.log[_place(sys._getframe(depth)), op, self].append(element)
        if self.space == "shared":
            self.check(thread, element, op)
        return element

    def check(self, thread, element, op):
        mine = (thread.number, op)
        for other, other_op in self.touched[element] - {mine}:
            conflicting = (op, other_op) not in ((LOAD, LOAD), (ATOMIC, ATOMIC))
            if other != thread.number and conflicting:
                self.oracle.races.add(element)
        self.touched[element].add(mine)

    def __getitem__(self, index):
        return self.flat[self.element(index, LOAD)]

    def __setitem__(self, index, value):
        self.flat[self.element(index, STORE)] = value


class Axes:
    """cuda.threadIdx: the position of the thread that runs now."""

    def __init__(self, oracle):
        self._oracle = oracle

    x = property(lambda self: self._oracle.now.position[0])
    y = property(lambda self: self._oracle.now.position[1])
    z = property(lambda self: self._oracle.now.position[2])


def _three(extents) -> tuple[int, int, int]:
    extents = extents if isinstance(extents, tuple) else (extents,)
    return (*extents, 1, 1)[:3]


class Oracle:
    """Runs a kernel at once; `counts[space, op]` has requests, lanes, sectors and wavefronts."""

    def __init__(self, kernel, grid, block, args):
        self.grid, self.block = _three(grid), _three(block)
        self.counts = defaultdict(lambda: dict.fromkeys(("requests", "lanes", "sectors", "wavefronts"), 0))
        self.barriers = self.shuffles = 0
        self.races: set[int] = set()
        self.fault: str | None = None
        self.functions: dict = {}
        self.module = self.cuda_module()
        function = self.function(kernel.py_func)
        values, base = [], 0
        for arg in args:
            if not isinstance(arg, np.ndarray):
                values.append(arg)
                continue
            strides = [step // arg.itemsize for step in arg.strides]
            values.append(RecordingArray(self, arg.reshape(-1), arg.shape, strides, "global", base))
            base += -(-arg.nbytes // 256) * 256
        try:
            for number in range(math.prod(self.grid)):
                self.run_block(function, values, number)
        except Fault as fault:
            self.fault = str(fault)

    def function(self, function):
        """The same code object, with globals in which `cuda` and the number types are ours."""
        if function not in self.functions:
            scope = dict(function.__globals__)
            new = types.FunctionType(
                function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
            )
            self.functions[function] = new
            for name in function.__code__.co_names:
                value = scope.get(name)
                if value is cuda:
                    scope[name] = self.module
                elif hasattr(value, "py_func"):
                    scope[name] = self.function(value.py_func)
                elif isinstance(getattr(value, "name", None), str) and hasattr(np, value.name):
                    scope[name] = getattr(np, value.name)
        return self.functions[function]

    def run_block(self, function, args, number):
        gx, gy, _ = self.grid
        self.module.blockIdx = SimpleNamespace(x=number % gx, y=number // gx % gy, z=number // (gx * gy))
        self.shared_arrays: dict = {}
        bx, by, _ = self.block
        threads = [
            Thread(i, (i % bx, i // bx % by, i // (bx * by)), greenlet(function))
            for i in range(math.prod(self.block))
        ]
        alive = threads
        while alive:
            self.run_to_barrier(alive, args)
            alive = [thread for thread in alive if not thread.running.dead]
            self.barriers += len({thread.number // WARP for thread in alive})
            for array in self.shared_arrays.values():
                array.touched.clear()
        self.account(threads)

    def run_to_barrier(self, threads, args):
        """Run every thread until all wait at a barrier or have ended; warps meet at shuffles on the way."""
        pending = threads
        while pending:
            for thread in pending:
                self.now, thread.waits_for = thread, None
                if thread.started:
                    thread.running.switch(thread.reply)
                else:
                    thread.started = True
                    thread.running.switch(*args)
            pending = [thread for thread in pending if thread.waits_for == "shuffle"]
            warps = defaultdict(dict)
            for thread in pending:
                warps[thread.number // WARP][thread.number % WARP] = thread
            for lanes in warps.values():
                self.shuffle(lanes)

    def shuffle(self, lanes):
        self.shuffles += 1
        for lane, thread in lanes.items():
            kind, value, argument = thread.offered
            source = {
                "idx": argument,
                "xor": lane ^ argument,
                "up": lane - argument,
                "down": lane + argument,
            }[kind]
            thread.reply = lanes[source].offered[1] if source in lanes else value

    def wait(self, what, offered=None):
        self.now.waits_for, self.now.offered = what, offered
        return getcurrent().parent.switch()

    def cuda_module(self):
        def grid(ndim):
            position = tuple(
                self.now.position[axis] + getattr(module.blockIdx, "xyz"[axis]) * self.block[axis]
                for axis in range(ndim)
            )
            return position[0] if ndim == 1 else position

        def shared_array(shape, dtype, alignment=None):
            key = _place(sys._getframe(1))
            if key not in self.shared_arrays:
                shape = shape if isinstance(shape, tuple) else (shape,)
                flat = np.zeros(math.prod(shape), getattr(dtype, "name", dtype))
                strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
                self.shared_arrays[key] = RecordingArray(self, flat, shape, strides, "shared")
            return self.shared_arrays[key]

        def atomic_add(array, index, value):
            element = array.element(index, ATOMIC)
            old = array.flat[element]
            array.flat[element] = old + value
            return old

        def shuffle(kind):
            return lambda mask, value, argument: self.wait("shuffle", (kind, value, argument))

        module = SimpleNamespace(
            threadIdx=Axes(self),
            warpsize=WARP,
            blockDim=SimpleNamespace(x=self.block[0], y=self.block[1], z=self.block[2]),
            gridDim=SimpleNamespace(x=self.grid[0], y=self.grid[1], z=self.grid[2]),
            grid=grid,
            shared=SimpleNamespace(array=shared_array),
            local=SimpleNamespace(array=lambda shape, dtype: np.zeros(shape, getattr(dtype, "name", dtype))),
            atomic=SimpleNamespace(add=atomic_add),
            syncthreads=lambda: self.wait("barrier"),
            shfl_sync=shuffle("idx"),
            shfl_xor_sync=shuffle("xor"),
            shfl_up_sync=shuffle("up"),
            shfl_down_sync=shuffle("down"),
        )
        return module

    def account(self, threads):
        """Cost the requests of a finished block."""
        for start in range(0, len(threads), WARP):
            warp = threads[start : start + WARP]
            for key in dict.fromkeys(key for thread in warp for key in thread.log):
                _, op, array = key
                rows = [thread.log.get(key, []) for thread in warp]
                for visit in range(max(map(len, rows))):
                    lanes = {lane: row[visit] for lane, row in enumerate(rows) if visit < len(row)}
                    self.request(array, op, lanes)

    def request(self, array, op, lanes: dict[int, int]):
        """Count one warp request: the element that each of its lanes touches."""
        count = self.counts[array.space, op]
        count["requests"] += 1
        count["lanes"] += len(lanes)
        if array.space == "global":
            sectors = {(array.base + e * array.itemsize) // SECTOR for e in lanes.values()}
            count["sectors"] += len(sectors)
        else:
            count["wavefronts"] += wavefronts(lanes, array.itemsize)


def wavefronts(lanes: dict[int, int], itemsize: int) -> int:
    """What a request to shared memory costs: a half warp at a time with 8 bytes a lane, a quarter with 16.

    Twice as many lanes go at a time when neighbours, or lanes two apart, read the same elements in pairs.
    """
    unit = max(WORD, itemsize)
    together = WARP * WORD // unit
    paired = any(all(lanes[lane] == lanes.get(lane ^ bit, lanes[lane]) for lane in lanes) for bit in (1, 2))
    if unit > WORD and paired:
        together *= 2
    total = 0
    for first in range(0, WARP, together):
        banks = defaultdict(set)
        for lane, element in lanes.items():
            if first <= lane < first + together:
                word = element * itemsize // unit
                banks[word % (128 // unit)].add(word)
        total += max(map(len, banks.values()), default=0)
    return total
