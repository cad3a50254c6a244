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
    starts, last = [], 0
    begins = {instruction.offset // 2 for instruction in dis.get_instructions(code)}
    for unit in range(len(code.co_code) // 2 + 1):
        last = unit if unit in begins else last
        starts.append(2 * last)
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
    waits_for: str | None = None  # "barrier" or "warp"
    offered: tuple = ()  # to a warp's collective: its kind, its mask, a value; to a barrier: a predicate
    reply: object = None
    started: bool = False
    clock: list = field(default_factory=lambda: [0] * WARP)  # how far each lane of the warp is known to be

    def __post_init__(self):
        self.clock[self.lane] = 1

    @property
    def warp(self) -> int:
        return self.number // WARP

    @property
    def lane(self) -> int:
        return self.number % WARP


class RecordingArray:
    """A flat buffer that logs who touches what, and finds races: accesses that nothing orders.

    Threads of a block are ordered by barriers, lanes of a warp by syncwarp, blocks by nothing; what is read
    only is not looked at. A row of it shares the buffer and what was logged.
    """

    def __init__(self, oracle, flat, shape, strides, space, base=0, root=None, offset=0):
        self.oracle, self.flat, self.shape, self.strides = oracle, flat, shape, strides
        self.space, self.base, self.offset = space, base, offset
        self.itemsize = flat.itemsize
        self.root = root or self
        if root is None:
            self.touched = defaultdict(
                dict
            )  # element -> (thread, op) -> clock, value; since the last barrier
            self.by_block = defaultdict(dict)  # block -> (element, op) -> value
            self.unwritten = None if space == "global" else set(range(len(flat)))

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: math.prod(self.shape))
    dtype = property(lambda self: self.flat.dtype)

    def __len__(self):
        return self.shape[0]

    def element(self, index, op, value=None, depth=2) -> int:
        element = self.offset
        for i, extent, stride in zip(index, self.shape, self.strides, strict=False):
            if not 0 <= i < extent:
                raise Fault(
                    f"line {sys._getframe(depth).f_lineno}: {index} of an array of shape {self.shape}"
                )
            element += int(i) * stride
        if len(index) < len(self.shape):
            return element
        root, thread = self.root, self.oracle.now
        if self.space != "local":
            thread.log[_place(sys._getframe(depth)), op, root].append(element)
            if self.flat.flags.writeable:
                root.check(thread, element, op, value)
                root.by_block[self.oracle.block_number][element, op] = value
        if root.unwritten:
            if op != LOAD:
                root.unwritten.discard(element)
            if op != STORE and element in root.unwritten:
                self.oracle.uninitialised.add(element)
        return element

    def check(self, thread, element, op, value):
        here = self.touched[element]
        for (other, other_op), (time, other_value) in here.items():
            if op == other_op == LOAD or op == other_op == ATOMIC or other == thread.number:
                continue
            if op == other_op == STORE and value == other_value:
                continue
            if other // WARP != thread.warp or thread.clock[other % WARP] < time:
                self.oracle.races.add(element)
        here[thread.number, op] = thread.clock[thread.lane], value

    def races_between_blocks(self) -> set[int]:
        """Elements that one block writes and another touches."""
        owner: dict = {}
        found = set()
        for block, accesses in self.by_block.items():
            for (element, op), value in accesses.items():
                for other, other_op, other_value in owner.setdefault(element, []):
                    harmless = op == other_op and (op != STORE or value == other_value)
                    if other != block and not harmless:
                        found.add(element)
                owner[element].append((block, op, value))
        return found

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        element = self.element(index, LOAD)
        if len(index) == len(self.shape):
            return self.flat[element]
        rest = len(index)
        return RecordingArray(
            self.oracle,
            self.flat,
            self.shape[rest:],
            self.strides[rest:],
            self.space,
            root=self.root,
            offset=element,
        )

    def __setitem__(self, index, value):
        index = index if isinstance(index, tuple) else (index,)
        value = self.flat.dtype.type(value)
        self.flat[self.element(index, STORE, value)] = value


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
        self.barriers = self.shuffles = self.votes = 0
        self.races: set[int] = set()
        self.uninitialised: set[int] = set()
        self.fault: str | None = None
        self.block_number = 0
        self.functions: dict = {}
        self.module = self.cuda_module()
        function = self.function(kernel.py_func)
        values, base, self.arrays = [], 0, []
        for arg in args:
            if not isinstance(arg, np.ndarray):
                values.append(arg)
                continue
            strides = [step // arg.itemsize for step in arg.strides]
            values.append(RecordingArray(self, arg.reshape(-1), arg.shape, strides, "global", base))
            self.arrays.append(values[-1])
            base += -(-arg.nbytes // 256) * 256
        try:
            for number in range(math.prod(self.grid)):
                self.block_number = number
                self.run_block(function, values, number)
        except Fault as fault:
            self.fault = str(fault)
        for array in self.arrays:
            self.races |= array.races_between_blocks()

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
            self.barriers += len({thread.warp for thread in alive})
            votes = [bool(thread.offered[0]) for thread in alive if thread.offered]
            for thread in alive:
                thread.reply = (sum(votes), int(all(votes)), int(any(votes)))
            for array in (*self.shared_arrays.values(), *self.arrays):
                array.touched.clear()
        self.account(threads)

    def run_to_barrier(self, threads, args):
        """Run every thread until all wait at a barrier or have ended; warps meet on the way."""
        pending = threads
        while pending:
            for thread in pending:
                self.now, thread.waits_for = thread, None
                if thread.started:
                    thread.running.switch(thread.reply)
                else:
                    thread.started = True
                    thread.running.switch(*args)
            waiting = [thread for thread in threads if thread.waits_for == "warp"]
            pending = []
            groups = defaultdict(list)
            for thread in waiting:
                groups[thread.warp, thread.offered[:2]].append(thread)
            alive = {thread.number for thread in threads if not thread.running.dead}
            for (warp, (kind, mask)), lanes in groups.items():
                named = {lane for lane in range(WARP) if mask >> lane & 1 and warp * WARP + lane in alive}
                if named == {thread.lane for thread in lanes}:
                    self.collective(kind, {thread.lane: thread for thread in lanes})
                    pending += lanes
            if waiting and not pending:
                raise Fault(
                    f"the lanes {[thread.number for thread in waiting]} wait for others of their masks"
                )

    def collective(self, kind, lanes):
        """All lanes that the mask names have arrived."""
        brought = {lane: thread.offered[2:] for lane, thread in lanes.items()}
        if kind == "syncwarp":
            for thread in lanes.values():
                thread.clock[thread.lane] += 1
            latest = [max(thread.clock[lane] for thread in lanes.values()) for lane in range(WARP)]
            for lane, thread in lanes.items():
                thread.clock = [*latest]
                thread.clock[lane] += 1
        elif kind.startswith("shfl"):
            self.shuffles += 1
            for lane, thread in lanes.items():
                value, argument = brought[lane]
                source = {
                    "shfl": argument % WARP,
                    "shfl_xor": lane ^ argument,
                    "shfl_up": lane - argument,
                    "shfl_down": lane + argument,
                }[kind]
                thread.reply = brought[source][0] if source in lanes else value
        else:
            self.votes += 1
            votes = {lane: bool(value) for lane, (value,) in brought.items()}
            ballot = sum(1 << lane for lane, vote in votes.items() if vote)
            for thread in lanes.values():
                thread.reply = {
                    "all": all(votes.values()),
                    "any": any(votes.values()),
                    "eq": len(set(votes.values())) == 1,
                    "ballot": np.int32(np.uint32(ballot)),
                }[kind]

    def wait(self, what, *offered):
        self.now.waits_for, self.now.offered = what, offered
        return getcurrent().parent.switch()

    def meet(self, kind, mask, *brought):
        """A collective of the lanes of the warp that the mask names."""
        return self.wait("warp", kind, int(mask) & 0xFFFFFFFF, *brought)

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

        def local_array(shape, dtype):
            flat = np.zeros(shape, getattr(dtype, "name", dtype))
            return RecordingArray(self, flat, (shape,), [1], "local")

        def atomic(update):
            def run(array, index, *operands):
                operands = [array.dtype.type(operand) for operand in operands]
                element = array.element(index if isinstance(index, tuple) else (index,), ATOMIC)
                old = array.flat[element]
                array.flat[element] = update(old, *operands)
                return old

            return run

        def shuffle(kind):
            return lambda mask, value, argument: self.meet(kind, mask, value, int(argument))

        def vote(kind):
            return lambda mask, predicate: self.meet(kind, mask, predicate)

        def barrier(which):
            return lambda predicate: self.wait("barrier", predicate)[which]

        def bits(value):
            return f"{int(value):0{8 * value.dtype.itemsize}b}"

        updates = {
            "add": lambda old, value: old + value,
            "sub": lambda old, value: old - value,
            "max": max,
            "min": min,
            "and_": lambda old, value: old & value,
            "or_": lambda old, value: old | value,
            "xor": lambda old, value: old ^ value,
            "exch": lambda old, value: value,
            "cas": lambda old, expected, value: value if old == expected else old,
        }
        module = SimpleNamespace(
            threadIdx=Axes(self),
            warpsize=WARP,
            blockDim=SimpleNamespace(x=self.block[0], y=self.block[1], z=self.block[2]),
            gridDim=SimpleNamespace(x=self.grid[0], y=self.grid[1], z=self.grid[2]),
            grid=grid,
            shared=SimpleNamespace(array=shared_array),
            local=SimpleNamespace(array=local_array),
            atomic=SimpleNamespace(**{name: atomic(update) for name, update in updates.items()}),
            syncthreads=lambda: self.wait("barrier"),
            syncthreads_count=barrier(0),
            syncthreads_and=barrier(1),
            syncthreads_or=barrier(2),
            syncwarp=lambda mask=0xFFFFFFFF: self.meet("syncwarp", mask),
            shfl_sync=shuffle("shfl"),
            shfl_xor_sync=shuffle("shfl_xor"),
            shfl_up_sync=shuffle("shfl_up"),
            shfl_down_sync=shuffle("shfl_down"),
            **{f"{kind}_sync": vote(kind) for kind in ("all", "any", "eq", "ballot")},
            popc=lambda value: bits(value).count("1"),
            clz=lambda value: len(bits(value)) - len(bits(value).lstrip("0")),
            ffs=lambda value: bits(value)[::-1].find("1") + 1,
            brev=lambda value: int(bits(value)[::-1], 2),
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
