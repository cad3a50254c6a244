"""One simulated launch: the kernel over its grid, in lockstep or in an adversarial order of warps."""

import math
import numbers
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flashcore_numba.simulator import line_counts, races
from flashcore_numba.simulator.access import FLUSH_LANES, Access
from flashcore_numba.simulator.arguments import bind, three
from flashcore_numba.simulator.control import Stuck
from flashcore_numba.simulator.count import Counter
from flashcore_numba.simulator.group import MAX_SHARED, Group
from flashcore_numba.simulator.intrinsics import Waiting
from flashcore_numba.simulator.masks import LaneSet
from flashcore_numba.simulator.memory import GLOBAL, Memory, Merged
from flashcore_numba.simulator.names import python_function
from flashcore_numba.simulator.probe import Probed
from flashcore_numba.simulator.problems import Fault, KernelProblem, Line, SimulationError, Site, Unsupported
from flashcore_numba.simulator.record import Event, event, meeting
from flashcore_numba.simulator.rewrite import VectorFunction, program
from flashcore_numba.simulator.schedule import lockstep, take_turns
from flashcore_numba.simulator.typist import infer

WARP = 32
MAX_THREADS, MAX_BLOCK_Z = 1024, 64  # a block
MAX_GRID_YZ, MAX_BLOCKS = 65_535, 10_000_000
UNDEFINED_BITS = 0x5A3C_96E1_A5C3_691E


class Launch:
    """The result of `simulate`: counters, problems, `probes` (see `probe`) and, with `record=True`, the
    accesses themselves in `events`.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: tuple,
        *,
        shared_bytes: int,
        order: str,
        count_blocks: int | Iterable[int] | None,
        races: bool,
        ops: bool,
        record: bool,
        max_lanes: int,
        max_turns: int,
        calls: bool,
        time_limit: float | None,
    ) -> None:
        self.grid, self.block = three("grid", grid), three("block", block)
        threads = math.prod(self.block)
        if threads > MAX_THREADS:
            raise ValueError(f"block: {self.block} has {threads} threads; a block has at most {MAX_THREADS}")
        if self.block[2] > MAX_BLOCK_Z:
            raise ValueError(
                f"block: {self.block} has z = {self.block[2]}; a block has at most {MAX_BLOCK_Z}"
            )
        if max(self.grid[1:]) > MAX_GRID_YZ or math.prod(self.grid) > MAX_BLOCKS:
            raise ValueError(
                f"grid: {self.grid} is too large; y and z have at most {MAX_GRID_YZ}, and the simulator runs "
                f"at most {MAX_BLOCKS} blocks"
            )
        for name, value in {
            "shared_bytes": shared_bytes,
            "max_lanes": max_lanes,
            "max_turns": max_turns,
        }.items():
            if not isinstance(value, int | np.integer) or value < (name != "shared_bytes"):
                raise ValueError(f"{name}: {value!r} is not a whole number above zero")
        if not 0 <= shared_bytes <= MAX_SHARED:
            raise ValueError(
                f"shared_bytes: {shared_bytes} is not within 0 to {MAX_SHARED}, what a block can have"
            )
        if time_limit is not None and not (
            isinstance(time_limit, numbers.Real) and time_limit is not True and time_limit > 0
        ):
            raise ValueError(f"time_limit: {time_limit!r} is not a number of seconds above zero, or None")
        self.shared_bytes = int(shared_bytes)
        self.time_limit = time_limit
        self.deadline = None if time_limit is None else time.monotonic() + float(time_limit)
        self.counted_blocks = self._counted(count_blocks)
        self.wants = bool(races), bool(record), bool(ops), bool(calls)
        self.max_lanes, self.max_turns = max_lanes, max_turns
        self.padded = -(-threads // WARP) * WARP
        self.kernel = python_function(kernel)
        # In lockstep, and within a warp, one may wait for another that may run by itself.
        scheduled = "forward" if order == "lockstep" else order
        for attempt, split in dict.fromkeys([(order, False), (scheduled, False), (scheduled, True)]):
            try:
                self._launch(attempt, split, args)
                break
            except Stuck:
                for memory, state in zip(self.memories, self.before, strict=True):
                    memory.restore(state)

    def _launch(self, order: str, split: bool, args: tuple) -> None:
        self.split = split
        self.order = order
        self.scheduled, self.reverse = order != "lockstep", order == "reverse"
        self.random = self._generator(order)
        self.races, self.recording, ops, calls = self.wants
        self.changes = 0  # how often a store or an atomic changed memory, where that may be waited for
        self.problems: list[KernelProblem] = []
        self.events: list[Event] = []
        self.probes: list[Probed] = []
        self.quiet = False  # while a probe reads: nothing is reported
        self.nans: dict[int, str] = {}  # site that made a NaN out of numbers -> the first such numbers
        self.absent: set[int] = set()  # shuffles that read lanes which do not execute them
        self.counter, self.counting = Counter(), True
        self._merged: dict[tuple[int, ...], Merged] = {}
        self.program = program(self.kernel, self.scheduled, ops, calls)
        entry = self.program.function(self.kernel)
        values, self.memories = bind(self.kernel, args)
        self.types = infer(self.program, entry, values)
        self.allocations = list(dict.fromkeys(memory.allocation for memory in self.memories))
        blocks, counted = range(math.prod(self.grid)), self.counted_blocks
        self.blocks_run, self.blocks_counted = len(blocks), len(counted)
        together = 1 if self.scheduled else max(1, self.max_lanes // self.padded)
        chunks = []
        for counting in (True, False):
            chosen = [b for b in blocks if (b in counted) == counting]
            chunks += [
                (counting, chosen[start : start + together]) for start in range(0, len(chosen), together)
            ]
        self.undefined_sites: set[int] = set()  # shuffles of integers that read absent lanes
        self.pattern: dict[int, int] = {}  # other bits for them, in a second run
        again = self.program.shuffles or self.program.waits  # then it may have to run a second time
        self.before = [memory.copy() for memory in self.memories] if again else []
        self._run_all(entry, values, chunks)
        for memory in (*self._merged.values(), *self.memories):
            self.flush(memory, final=True)
        if self.undefined_sites:
            self._find_undefined(entry, values, chunks)

    def _run_all(self, entry: VectorFunction, values: list, chunks: list) -> None:
        with np.errstate(all="ignore"):
            try:
                if self.scheduled:
                    blocks = [(counting, block) for counting, chosen in chunks for block in chosen]
                    self._guarded(take_turns, self, blocks, entry, values)
                    return
                for self.counting, chosen in chunks:
                    self.group = Group(self, chosen)
                    try:
                        self._guarded(lockstep, self, self.group, entry, values)
                    finally:
                        self.group.finish()
            except Fault:
                pass

    def deadlock(self, waiting: list[Waiting]) -> None:
        """Every thread that has not finished waits for another one."""
        site, _, divided = waiting[0]
        if divided and not self.split and not self.program.collectives:
            raise Stuck(site)
        more = f", and {len(waiting) - 1} other block(s) wait too" if len(waiting) > 1 else ""
        if divided and not self.split:
            more += (
                "; the simulator does not run the lanes of a warp one by one where it has shuffles or votes"
            )
        text = f"a turn changes no variable and no memory, and no other thread can run{more}"
        self.problem("endless loop", site, None, text, fatal=True)

    def check_time(self, site: int, turns: int = 0) -> None:
        """Report that the time is over."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            blocks = f"block {self.group.blocks[0]} of {math.prod(self.grid)}"
            turn = f", turn {turns} of this loop" if turns else ""
            text = f"time_limit = {self.time_limit} s are over; {blocks} was running{turn}"
            self.problem("time limit", site, None, text, fatal=True)

    def undefined(self, site: int, dtype: np.dtype) -> Any:
        """An integer that nobody defined."""
        self.undefined_sites.add(site)
        bits = np.array(self.pattern.get(site, UNDEFINED_BITS), np.int64)
        return bits.astype(dtype)[()]

    def _find_undefined(self, entry: VectorFunction, values: list, chunks: list) -> None:
        """Run again with other bits for what absent lanes send, and report what comes out differently."""
        results = [memory.copy() for memory in self.memories]
        counting, races, self.races, self.quiet = self.counting, self.races, False, True
        recording, self.recording = self.recording, False
        for site in sorted(self.undefined_sites):
            self.pattern = {site: ~UNDEFINED_BITS}
            for memory, state in zip(self.memories, self.before, strict=True):
                memory.restore(state)
            self._run_all(entry, values, [(False, chosen) for _, chosen in chunks])
            for memory, (flat, _) in zip(self.memories, results, strict=True):
                self._compare_undefined(site, memory, flat)
        for memory, state in zip(self.memories, results, strict=True):
            memory.restore(state)
        self.counting, self.races, self.quiet, self.recording = counting, races, False, recording

    def _compare_undefined(self, site: int, memory: Memory, flat: np.ndarray) -> None:
        same = (memory.flat == flat) | ((memory.flat != memory.flat) & (flat != flat))
        differ = np.flatnonzero(~same)
        if len(differ):
            text = (
                f"element {int(differ[0])} of {memory.name}, and {len(differ)} in all, depend on "
                "the value of a lane that does not execute the shuffle"
            )
            first, at = self.program.sites[site], (int(differ[0]),)
            self.add(KernelProblem("warp mask", first, None, (text,), array=memory.name, element=at))

    # Arguments

    @staticmethod
    def _generator(order: str) -> random.Random | None:
        kind, _, seed = str(order).partition(":")
        if order in ("lockstep", "forward", "reverse"):
            return None
        if kind != "random" or not seed.lstrip("-").isdigit():
            raise ValueError(f"order: {order!r} is not lockstep, forward, reverse or random:<integer>")
        return random.Random(int(seed))

    def _counted(self, count_blocks: int | Iterable[int] | None) -> set[int]:
        blocks = math.prod(self.grid)
        if count_blocks is None:
            return set(range(blocks))
        if isinstance(count_blocks, int | np.integer) and count_blocks >= 0:
            return set(range(min(blocks, int(count_blocks))))
        chosen: set = set(count_blocks) if isinstance(count_blocks, Iterable) else {None}
        if not all(isinstance(block, int | np.integer) and 0 <= block < blocks for block in chosen):
            raise ValueError(
                f"count_blocks: {count_blocks!r} is no number of blocks and names none of 0 to {blocks - 1}"
            )
        return chosen

    # Running

    def _guarded(self, run: Callable, *args: Any) -> None:
        try:
            run(*args)
        except (Fault, Unsupported, Stuck, MemoryError):
            raise
        except Exception as error:
            self._explain(error)

    def _explain(self, error: Exception) -> None:
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
            self.add(KernelProblem("division by zero", Site(file, line, text), None, (str(error),)))
            raise Fault(str(error)) from error
        if isinstance(error, ValueError) and "shared memory" in str(error):
            raise error
        what = f"{type(error).__name__}: {error}"
        message = f"the simulator cannot run this line ({what}): {text}"
        raise Unsupported(file, line, message, raised=error) from error

    # Called while running

    def flush(self, memory: Memory, final: bool = False) -> None:
        """Count what was logged of one memory, and check the blocks against each other."""
        log, memory.log, memory.logged_lanes = memory.log, [], 0
        allocation = memory.allocation
        self.counter.count(memory, log)
        final = final and not allocation.several
        is_global = memory.space == GLOBAL and not isinstance(memory, Merged)
        if self.races and is_global and log and (allocation.ever_written or not final):
            races.check_blocks(self, allocation, log, final)
        if allocation.recent_lanes > FLUSH_LANES:
            races.end_epoch(self, allocation)

    def merged(self, memories: list[Memory]) -> Merged:
        """The memory in which an instruction that accesses all these arrays is counted."""
        known = self._merged if memories[0].space == GLOBAL else self.group.merged
        key = tuple(map(id, memories))
        if key not in known:
            known[key] = Merged(memories)
        return known[key]

    def record(self, access: Access) -> None:
        self.events.append(event(access, self.program.sites))

    def meet(self, op: str, site: int, lanes: LaneSet) -> None:
        """Count and record a barrier, syncwarp, shuffle or vote of the active lanes."""
        if not self.counting:
            return
        if op == "barrier":
            self.counter.barrier(site, lanes)
        else:
            self.counter.collective(op, site, lanes)
        if self.recording:
            self.events.append(meeting(op, site, lanes, self.program.sites))

    def thread_name(self, block: int, thread: int) -> str:
        return f"block {block} thread {thread} (warp {thread // WARP} lane {thread % WARP})"

    def thread_of(self, ident: int) -> tuple[int, int]:
        """Block and thread of what the race check numbered `ident`."""
        block, thread = divmod(ident, self.padded)
        return self.group.blocks[block], thread

    def problem(
        self,
        kind: str,
        site: int,
        other: int | None,
        text: str | tuple[str | Line, ...],
        fatal: bool = False,
        array: str = "",
        element: tuple[int, ...] | None = None,
        threads: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Report a problem; a fatal one ends the launch. See `KernelProblem` for the fields."""
        at, also = self.program.sites[site], None if other is None else self.program.sites[other]
        pieces = (text,) if isinstance(text, str) else text
        if not self.quiet:
            self.add(KernelProblem(kind, at, also, pieces, 1, array, element, threads))
        if fatal:
            raise Fault(kind)

    def add(self, problem: KernelProblem) -> None:
        for known in self.problems:
            if (known.kind, known.site, known.other) == (problem.kind, problem.site, problem.other):
                known.count += 1
                return
        self.problems.append(problem)

    # Results

    def totals(self) -> dict[str, Any]:
        """All counters of the counted blocks.

        For op in load, store, atomic: `global_{op}_requests` (warp instructions), `_lanes`, `_sectors` (of
        32 bytes), `_bytes_requested` (by lanes), `_bytes_needed` (each element once per request),
        `_bytes_moved` (sectors times 32); `shared_{op}_requests`, `_lanes`, `_bytes_requested`,
        `_wavefronts`, `_ideal_wavefronts`, `_conflicts` (wavefronts minus ideal). `barriers`, `shuffle`,
        `vote`, `syncwarp`: warp instructions. Arithmetic by thread: `fma32`, `add32`, `mul32`, `div32`,
        `exp32`, ... and the same for 64 and 16 bits, where they occur. `local_bytes_per_thread`,
        `shared_bytes_per_block`; `footprint_bytes`: bytes touched at all, by array name.
        """
        return line_counts.totals(self.counter)

    def lines(self) -> list[line_counts.LineCounts]:
        """The counters by source line."""
        return line_counts.rows(self.counter, self.program.sites)

    def check(self) -> "Launch":
        """Raise SimulationError when there is any problem; otherwise return the launch itself."""
        if self.problems:
            raise SimulationError(self.kernel.__name__, self.problems)
        return self

    def __str__(self) -> str:
        blocks = f"{self.blocks_counted} of {self.blocks_run} blocks counted"
        heading = f"{self.kernel.__name__}: grid {self.grid}, block {self.block}, {blocks}"
        return "\n".join([line_counts.table(heading, self.lines(), self.totals()), *map(str, self.problems)])


def simulate(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *args: Any,
    shared_bytes: int = 0,
    order: str = "lockstep",
    count_blocks: int | Iterable[int] | None = None,
    races: bool = True,
    ops: bool = True,
    record: bool = False,
    max_lanes: int = 4096,
    max_turns: int = 1_000_000,
    calls: bool = False,
    time_limit: float | None = None,
) -> Launch:
    """Run a `@cuda.jit` kernel on NumPy arrays without a GPU, count what it does and report what is wrong
    with it.

    `args` are NumPy arrays, updated in place, and numbers. `order` says how blocks and their warps take
    turns: "lockstep" (all blocks and lanes together: fast), or block after block, in each warp by warp from
    barrier to barrier, "forward", "reverse" or "random:7" (a seed). `count_blocks` restricts counting and
    race checking to the first n blocks, or to the blocks given by number; all blocks run. `races` switches
    the race check, `ops`
    the count of arithmetic, `record` keeps every access, barrier and shuffle in `events`. `max_lanes` is how
    many lanes run together; `max_turns` bounds every loop. `calls` keeps the calls of a device function
    apart: sites in it then have a `caller`, and its rows in `lines()` are by call. `time_limit` is in
    seconds, of wall clock: a launch that takes longer ends with a problem "time limit", which says how far it
    came; None is no limit. A loop that waits for another thread is endless when no thread can go on: that is
    reported at once. Warps and blocks may wait for each other under every order: a launch in lockstep that
    cannot go on is run again in the order "forward", and one where lanes of a warp wait for each other lane
    by lane, where each lane counts as a request of its own.

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
        calls=calls,
        time_limit=time_limit,
    )
