"""One simulated launch: the kernel over its grid, in lockstep or in an adversarial order of warps."""

import inspect
import math
import numbers
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import races, report
from .access import FLUSH_LANES, Access
from .count import Counter
from .cuda import Arrival, CudaModule, reduce_block
from .lanes import Lanes
from .memory import GLOBAL, SHARED, Allocation, Memory, ScratchArray, View
from .problems import Fault, Problem, SimulationError, Site, Unsupported
from .rewrite import program, python_function

__all__ = ["Event", "Launch", "simulate"]

WARP = 32
MAX_THREADS = 1024  # a block
MAX_STATIC_SHARED = 48 * 1024
MAX_SHARED = 227 * 1024  # a block, static and dynamic, on compute capability 9.0
ALIGN = 256  # device allocations start at a multiple


@dataclass(frozen=True)
class Event:
    """One recorded access: all vectors have one entry a lane.

    `element` numbers the first element of `array` (flat, in shared memory within the block) that a lane
    touches, and `width` how many neighbours. `active` marks the lanes that take part; `warp` is their
    warp's number in the block.
    """

    site: Site
    op: str
    space: str
    array: str
    itemsize: int
    width: int
    element: np.ndarray
    active: np.ndarray
    block: np.ndarray
    thread: np.ndarray

    @property
    def warp(self) -> np.ndarray:
        return self.thread // WARP


def _three(name: str, value) -> tuple[int, int, int]:
    """A grid or block as three extents."""
    extents = tuple(value) if isinstance(value, tuple | list) else (value,)
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) and n > 0 for n in extents)
    if not 1 <= len(extents) <= 3 or not whole:
        raise ValueError(f"{name}: {value!r} is not one to three positive integers")
    return (*map(int, extents), 1, 1)[:3]


class Group:
    """Blocks that run together in lockstep, a single one when warps take turns, and their shared memory."""

    def __init__(self, launch: "Launch", blocks: list[int]):
        self.launch, self.blocks = launch, blocks
        self.scheduled = launch.scheduled
        self.memories: dict = {}
        self.allocations: list[Allocation] = []
        self.pool: tuple | None = None  # dynamic shared memory: allocation, bytes, which were written

    def shared_memory(self, site: int, shape: tuple[int, ...], dtype: np.dtype):
        """The memory and the shape of a shared array; shape 0 is the dynamic pool as elements of `dtype`."""
        dynamic = math.prod(shape) == 0
        key = ("dynamic", dtype) if dynamic else site
        if dynamic:
            shape = (self.launch.shared_bytes // dtype.itemsize,)
        if key not in self.memories:
            name = self.launch.program.name_of(site)
            make = self._dynamic_memory if dynamic else self._static_memory
            self.memories[key] = make(name, math.prod(shape) * dtype.itemsize, dtype)
        return self.memories[key], shape

    def _allocate(self, name: str, nbytes: int):
        padded = -(-nbytes // 128) * 128
        total = padded * len(self.blocks)
        allocation = Allocation(name, SHARED, total, padded)
        self.allocations.append(allocation)
        return allocation, np.full(total, 0xFF, np.uint8)  # 0xFF is NaN in every float type

    def _static_memory(self, name, nbytes, dtype):
        counter = self.launch.counter
        counter.shared_bytes[name, len(self.memories)] = nbytes
        static = sum(size for key, size in counter.shared_bytes.items() if key != "dynamic")
        if static > MAX_STATIC_SHARED:
            raise ValueError(
                f"{name}: {static} bytes of static shared memory; a block has at most {MAX_STATIC_SHARED}: "
                f"take dynamic shared memory (shape 0 and shared_bytes=...)"
            )
        if static + self.launch.shared_bytes > MAX_SHARED:
            raise ValueError(
                f"{name}: {static} static and {self.launch.shared_bytes} dynamic bytes of shared memory; "
                f"a block has at most {MAX_SHARED}"
            )
        allocation, raw = self._allocate(name, nbytes)
        flat = raw.view(dtype)
        return Memory(allocation, flat, written=np.zeros((len(flat), 1), bool))

    def _dynamic_memory(self, name, nbytes, dtype):
        if self.pool is None:
            allocation, raw = self._allocate(name, self.launch.shared_bytes)
            self.pool = (allocation, raw, np.zeros(len(raw), bool))
            self.launch.counter.shared_bytes["dynamic"] = self.launch.shared_bytes
        allocation, raw, written = self.pool
        return Memory(allocation, raw.view(dtype), written=written.reshape(-1, dtype.itemsize))

    def end_epoch(self):
        """All threads of all blocks of the group are at a barrier."""
        for allocation in [*self.allocations, *self.launch.allocations]:
            races.end_epoch(self.launch, allocation)
        for memory in self.memories.values():
            if memory.written is not None and memory.written.all():
                memory.written = None

    def finish(self):
        self.end_epoch()
        for memory in self.memories.values():
            self.launch.flush(memory)


class Launch:
    """The result of `simulate`: counters, problems and, with `record=True`, the accesses themselves."""

    def __init__(self, kernel, grid, block, args, *, shared_bytes, order, count_blocks, races, ops, record,
                 max_lanes, max_turns):  # fmt: skip
        self.grid, self.block = _three("grid", grid), _three("block", block)
        threads = math.prod(self.block)
        if threads > MAX_THREADS:
            raise ValueError(f"block: {self.block} has {threads} threads; a block has at most {MAX_THREADS}")
        if not 0 <= shared_bytes <= MAX_SHARED:
            raise ValueError(
                f"shared_bytes: {shared_bytes} is not within 0 to {MAX_SHARED}, what a block can have"
            )
        self.order, self.shared_bytes = order, int(shared_bytes)
        self.scheduled, self.reverse = order != "lockstep", order == "reverse"
        self.random = self._generator(order)
        self.races, self.recording, self.max_turns = bool(races), bool(record), max_turns
        self.problems: list[Problem] = []
        self.events: list[Event] = []
        self.counter, self.counting = Counter(), True
        self.allocations: list[Allocation] = []
        self.memories: list[Memory] = []
        self.padded = -(-threads // WARP) * WARP

        self.kernel = python_function(kernel)
        self.program = program(self.kernel, self.scheduled, bool(ops))
        entry = self.program.function(self.kernel)
        values = self._arguments(args)
        blocks, counted = range(math.prod(self.grid)), self._counted(count_blocks)
        self.blocks_run, self.blocks_counted = len(blocks), len(counted)
        together = 1 if self.scheduled else max(1, max_lanes // self.padded)
        with np.errstate(all="ignore"):
            try:
                for self.counting in (True, False):
                    chosen = [b for b in blocks if (b in counted) == self.counting]
                    for start in range(0, len(chosen), together):
                        self._run(entry, chosen[start : start + together], values)
            except Fault:
                pass
        for memory in self.memories:
            self.flush(memory, final=True)

    # Arguments

    @staticmethod
    def _generator(order: str) -> random.Random | None:
        kind, _, seed = str(order).partition(":")
        if order in ("lockstep", "forward", "reverse"):
            return None
        if kind != "random" or not seed.lstrip("-").isdigit():
            raise ValueError(f"order: {order!r} is not lockstep, forward, reverse or random:<integer>")
        return random.Random(int(seed))

    def _counted(self, count_blocks) -> set[int]:
        blocks = math.prod(self.grid)
        if count_blocks is None:
            return set(range(blocks))
        if isinstance(count_blocks, numbers.Integral):
            return set(range(min(blocks, int(count_blocks))))
        return set(map(int, count_blocks))

    def _arguments(self, args) -> list:
        parameters = inspect.signature(self.kernel).parameters
        if len(args) != len(parameters):
            names = ", ".join(parameters)
            raise TypeError(
                f"{self.kernel.__name__}({names}) takes {len(parameters)} arguments, got {len(args)}"
            )
        return [self._argument(value, name) for value, name in zip(args, parameters, strict=True)]

    def _argument(self, value, name: str):
        if isinstance(value, np.ndarray):
            return self._array(value, name)
        if isinstance(value, bool | np.bool_):
            return bool(value)
        if isinstance(value, numbers.Integral):
            return int(value)
        if type(value) is float:
            return np.float64(value)
        if isinstance(value, np.number) or value is None:
            return value
        if isinstance(value, tuple):
            return tuple(self._argument(item, name) for item in value)
        raise TypeError(f"argument {name}: {type(value).__name__} is neither a NumPy array nor a number")

    def _array(self, array: np.ndarray, name: str) -> View:
        itemsize = array.itemsize
        if array.dtype.kind not in "fiubc" or not array.dtype.isnative:
            raise TypeError(f"argument {name}: an array of {array.dtype}; kernels take numbers")
        if any(step < 0 or step % itemsize for step in array.strides):
            raise ValueError(
                f"argument {name}: strides {array.strides} are negative or no multiple of the item size"
            )
        steps = [step // itemsize for step in array.strides]
        extent = (
            1 + sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True)) if array.size else 0
        )
        flat = np.lib.stride_tricks.as_strided(array.view(np.ndarray), (extent,), (itemsize,))
        written = array.written() if isinstance(array, ScratchArray) else None
        if written is not None and written.all():
            written = None
        if written is not None:
            written = np.lib.stride_tricks.as_strided(written, (extent, 1), (1, 1))
        base = sum(-(-max(1, memory.flat.nbytes) // ALIGN) * ALIGN for memory in self.memories)
        allocation = Allocation(name, GLOBAL, flat.nbytes, max(itemsize, flat.nbytes))
        self.allocations.append(allocation)
        self.memories.append(Memory(allocation, flat, base, written))
        return View(self.memories[-1], 0, array.shape, steps)

    # Running

    def _run(self, entry, blocks: list[int], values: list):
        self.group = group = Group(self, blocks)
        tid = np.tile(np.arange(self.padded), len(blocks))
        block = np.repeat(np.arange(len(blocks)), self.padded)
        try:
            if self.scheduled:
                starts = range(0, len(tid), WARP)
                warps = [Lanes(group, tid[i : i + WARP], block[i : i + WARP], CudaModule) for i in starts]
                self._schedule(group, entry, warps, values)
            else:
                entry(Lanes(group, tid, block, CudaModule), *values)
        except (Fault, Unsupported):
            raise
        except Exception as error:
            self._explain(error)
        finally:
            group.finish()

    def _explain(self, error: Exception):
        """Name the kernel's line for an exception that Python or NumPy raised while running it."""
        files = {site.file for site in self.program.sites} | {self.kernel.__code__.co_filename}
        line, file, trace = None, "", error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename in files and "_M" in trace.tb_frame.f_locals:
                line, file = trace.tb_lineno, trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        if line is None:
            raise error
        text = self.program.source_line(file, line)
        if isinstance(error, ZeroDivisionError):
            self.add(Problem("division by zero", Site(file, line, text), None, str(error)))
            raise Fault(str(error)) from error
        if isinstance(error, ValueError) and "shared memory" in str(error):
            raise error
        what = f"{type(error).__name__}: {error}"
        raise Unsupported(f"{file}:{line}: the simulator cannot run this line ({what}): {text}") from error

    def _schedule(self, group: Group, entry, warps: list[Lanes], values: list):
        """Each warp runs alone to its next barrier; the order of the warps is the adversary's choice."""
        running: dict = {}
        replies: dict = {}
        ready = list(range(len(warps)))
        while ready:
            ready.sort(reverse=self.reverse)
            if self.random:
                self.random.shuffle(ready)
            waiting: dict[int, Arrival] = {}
            for w in ready:
                try:
                    if w in running:
                        waiting[w] = running[w].send(replies[w])
                        continue
                    result = entry(warps[w], *values)
                    if entry.is_generator:
                        running[w] = result
                        waiting[w] = next(result)
                except StopIteration:
                    pass
            if waiting:
                replies = self._release(warps, waiting)
            ready = list(waiting)
            group.end_epoch()

    def _release(self, warps, waiting: dict[int, Arrival]) -> dict:
        """All warps that still run wait: check that it is at one barrier, and compute what it returns."""
        places = sorted({arrival.site for arrival in waiting.values()})
        if len(places) > 1:
            one, two = ([w for w in sorted(waiting) if waiting[w].site == place] for place in places[:2])
            text = f"warps {one} wait at one, warps {two} at the other"
            self.problem("divergent barrier", places[0], places[1], text, fatal=True)
        if len(waiting) < len(warps):
            left = [w for w in range(len(warps)) if w not in waiting]
            self.problem("barrier after exit", places[0], None, f"warps {left} have already left the kernel")
        name = next(iter(waiting.values())).name
        if name == "syncthreads":
            return dict.fromkeys(waiting)
        order = sorted(waiting)
        votes = np.concatenate([np.broadcast_to(waiting[w].predicate, WARP) for w in order])
        here = np.concatenate([waiting[w].here for w in order])
        result = reduce_block(name, votes[None], here[None])
        return dict.fromkeys(waiting, np.repeat(result, WARP))

    # Called while running

    def flush(self, memory: Memory, final: bool = False):
        """Count what was logged of one memory, and check the blocks against each other."""
        log, memory.log, memory.logged_lanes = memory.log, [], 0
        allocation = memory.allocation
        self.counter.count(memory, log)
        if self.races and memory.space == GLOBAL and log and (allocation.ever_written or not final):
            races.check_blocks(self, allocation, log, final)
        if allocation.recent_lanes > FLUSH_LANES:
            races.end_epoch(self, allocation)

    def record_event(self, access: Access):
        lanes, memory = access.lanes, access.memory
        element = np.broadcast_to(access.element, lanes.n)
        if memory.space == SHARED:
            element = element % memory.block_size
        active = np.ones(lanes.n, bool) if access.mask is None else access.mask
        self.events.append(
            Event(
                self.program.sites[access.site],
                report.OPS[access.op],
                memory.space,
                memory.name,
                memory.itemsize,
                access.width,
                element,
                active,
                lanes.block_number,
                lanes.tid,
            )
        )

    def thread_name(self, block: int, thread: int) -> str:
        return f"block {block} thread {thread} (warp {thread // WARP} lane {thread % WARP})"

    def lane_name(self, ident: int) -> str:
        """The thread that the race check numbered `ident`."""
        block, thread = divmod(ident, self.padded)
        return self.thread_name(self.group.blocks[block], thread)

    def problem(self, kind: str, site: int, other: int | None, text: str, fatal: bool = False):
        """Report a problem; a fatal one ends the launch."""
        sites = self.program.sites
        self.add(Problem(kind, sites[site], None if other is None else sites[other], text))
        if fatal:
            raise Fault(kind)

    def add(self, problem: Problem):
        for known in self.problems:
            if (known.kind, known.site, known.other) == (problem.kind, problem.site, problem.other):
                known.count += 1
                return
        self.problems.append(problem)

    # Results

    def totals(self) -> dict[str, Any]:
        """All counters of the counted blocks.

        For op in load, store, atomic: `global_{op}_requests` (warp instructions), `_lanes`, `_sectors` (of
        32 bytes), `_bytes_requested` (by lanes), `_bytes_needed` (each element once a request),
        `_bytes_moved` (sectors times 32); `shared_{op}_requests`, `_lanes`, `_bytes_requested`,
        `_wavefronts`, `_ideal_wavefronts`, `_conflicts` (wavefronts minus ideal). `barriers`, `shuffle`,
        `vote`, `syncwarp`: warp instructions. Arithmetic by thread: `fma32`, `add32`, `mul32`, `div32`,
        `exp32`, ... and the same for 64 and 16 bits, where they occur. `local_bytes_per_thread`,
        `shared_bytes_per_block`; `footprint_bytes`: bytes touched at all, by array name.
        """
        return report.totals(self.counter)

    def lines(self) -> list[report.Row]:
        """The counters by source line."""
        return report.rows(self.counter, self.program.sites)

    def check(self) -> "Launch":
        """Raise SimulationError when there is any problem; otherwise return the launch itself."""
        if self.problems:
            raise SimulationError(self.kernel.__name__, self.problems)
        return self

    def __str__(self) -> str:
        blocks = f"{self.blocks_counted} of {self.blocks_run} blocks counted"
        heading = f"{self.kernel.__name__}: grid {self.grid}, block {self.block}, {blocks}"
        return "\n".join([report.table(heading, self.lines(), self.totals()), *map(str, self.problems)])


def simulate(
    kernel,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *args,
    shared_bytes: int = 0,
    order: str = "lockstep",
    count_blocks: int | Iterable[int] | None = None,
    races: bool = True,
    ops: bool = True,
    record: bool = False,
    max_lanes: int = 4096,
    max_turns: int = 1_000_000,
) -> Launch:
    """Run a `@cuda.jit` kernel on NumPy arrays without a GPU, count what it does and report what is wrong
    with it.

    `args` are NumPy arrays, updated in place, and numbers. `order` says how the warps of a block take
    turns: "lockstep" (all blocks and lanes together: fast), or warp by warp from barrier to barrier,
    "forward", "reverse" or "random:7" (a seed). `count_blocks` restricts counting and race checking to the
    first n blocks, or to the blocks given by number; all blocks run. `races` switches the race check, `ops`
    the count of arithmetic, `record` keeps every access in `events`. `max_lanes` is how many lanes run
    together; `max_turns` bounds every loop.

    Raises ValueError or TypeError for a launch that no GPU accepts, and Unsupported, with file and line,
    for Python that the simulator does not know. What is wrong with the kernel itself is in `problems`;
    `check()` raises it.
    """
    return Launch(
        kernel,
        grid,
        block,
        args,
        shared_bytes=shared_bytes,
        order=order,
        count_blocks=count_blocks,
        races=races,
        ops=ops,
        record=record,
        max_lanes=max_lanes,
        max_turns=max_turns,
    )
