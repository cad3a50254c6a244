"""N ranks in one process over NumPy: streams as queues, transfers as late as allowed, races named.

A program queues all its work; `Machine.run` then carries out one task after the other, in an order that an
`Order` chooses among all those that streams, events, barriers and transfers allow. What a transfer writes is
NaN from its start to its end, and it reads its source at its end.

Two tasks that touch the same memory, one of them writing, must be ordered. Vector clocks decide
that, so a missing order is found in every run, whatever the run's own order was.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.ring.clocks import Clock, Clocks
from flashcore_numba.branches.ring.rank import ALSO, MAIN, SIDE, Function

TILE = 3  # keys that a launch with late keys reads at a time


class Agent(NamedTuple):
    """A stream of a rank."""

    rank: int
    stream: str


class Hazard(RuntimeError):
    """Two accesses that nothing orders. The message is one sentence; what it says is in fields too.

    kind: "start barrier", "end barrier", "early write", "arrival", "reuse", "sending" or "order". owner: the
    rank whose memory `buffer` is. ranks: that did the two accesses. steps: of the schedule, of both.
    """

    def __init__(
        self, kind: str, owner: int, buffer: str, ranks: tuple[int, int], steps: tuple[int, int], message: str
    ) -> None:
        super().__init__(message)
        self.kind, self.owner, self.buffer, self.ranks, self.steps = kind, owner, buffer, ranks, steps


class Stuck(RuntimeError):
    """No stream can go on, and work is left. The message says what each waits for."""


@dataclass(frozen=True)
class Order:
    """Which of the tasks that may run does.

    late: a transfer ends only when nothing else can go on; otherwise as soon as it may. delayed: this rank
    works only when no other can. rng: chooses among the rest; None: the lowest rank.
    """

    name: str
    late: bool = True
    delayed: int | None = None
    rng: np.random.Generator | None = None

    def choose(self, ready: Sequence[tuple[Agent, bool]]) -> Agent:
        """One of these streams. The second of each pair: whether what it does next ends a transfer."""
        disliked = [(agent.rank == self.delayed, ends == self.late) for agent, ends in ready]
        able = [agent for (agent, _), each in zip(ready, disliked, strict=True) if each == min(disliked)]
        return able[0] if self.rng is None else able[int(self.rng.integers(len(able)))]


def orders(ranks: int, rng: np.random.Generator) -> list[Order]:
    """Transfers at once, transfers late, each rank delayed, and a drawn order of both kinds."""
    found = [Order("transfers at once", late=False), Order("transfers late")]
    found += [Order(f"rank {rank} delayed", delayed=rank) for rank in range(ranks)]
    return [*found, Order("drawn, at once", late=False, rng=rng), Order("drawn, late", rng=rng)]


@dataclass(frozen=True)
class Buffer:
    """Memory of a rank by its name."""

    owner: int
    name: str
    array: np.ndarray


@dataclass(eq=False)
class Event:
    """A point in a stream: all that was over there, once it has been passed."""

    stream: str
    clock: Clock | None = None


@dataclass(eq=False)
class _Work:
    """A task in the queue of a stream. `call` counts the programs before it."""

    agent: Agent
    what: str
    call: int
    step: int = 0
    reads: tuple[np.ndarray, ...] = ()
    writes: tuple[np.ndarray, ...] = ()
    begun: Clock | None = None
    tick: int = 0  # of its stream's clock
    transfers = False

    def begin(self, machine: "Machine") -> None:
        """Reach the front of the queue."""

    def may_end(self) -> bool:
        return True

    def end(self, machine: "Machine") -> bool:
        """Do what there is to do. Returns whether it is over."""
        return True

    @property
    def waits_for(self) -> str:
        return self.what


@dataclass(eq=False)
class _Launch(_Work):
    function: Function = field(kw_only=True)

    def end(self, machine: "Machine") -> bool:
        updated = [any(each is target for target in self.writes) for each in self.reads]
        for target in self.writes:
            if not any(target is each for each in self.reads):
                target[...] = np.nan
        pairs = zip(self.reads, updated, strict=True)
        self.function(
            tuple(each if keep or each is None else _read_only(each) for each, keep in pairs), self.writes
        )
        return True


@dataclass(eq=False)
class _LateLaunch(_Launch):
    """It reads `late` a tile of TILE keys at a time, the last ones first, each when its number in `word` says
    that it is there, as a kernel does, one head after the other. Without a word it waits for nothing.
    """

    late: tuple[np.ndarray, ...] = field(kw_only=True)
    word: np.ndarray | None = field(kw_only=True)
    head: int = 0  # or heads, that it reads: the number of theirs
    end_key: int = 0  # of their keys that it has not read

    def begin(self, machine: "Machine") -> None:
        self.end_key = self.late[0].shape[-2]
        if self.word is not None:
            self.head = len(self.word) - 1
            machine.access(self, self.word, how="look")

    @property
    def first_key(self) -> int:
        """Of the tile that it reads next."""
        return (self.end_key - 1) // TILE * TILE

    def may_end(self) -> bool:
        return self.word is None or self.end_key == 0 or int(self.word[self.head]) <= self.first_key

    def end(self, machine: "Machine") -> bool:
        if self.end_key:
            if self.word is not None:
                machine.clocks.join(self.agent, machine.said_by(self.word[self.head :]))
            for each in self.late:
                of_head = each if self.word is None or len(self.word) == 1 else each[..., self.head, :, :]
                machine.access(self, of_head[..., self.first_key : self.end_key, :])
            self.end_key = self.first_key
            if self.end_key == 0 and self.head > 0:
                self.head, self.end_key = self.head - 1, self.late[0].shape[-2]
            return False
        self.reads = tuple[Any, ...]((*self.reads, *self.late, self.word))
        return super().end(machine)

    @property
    def waits_for(self) -> str:
        return f"{self.what}, for key {self.first_key}"


@dataclass(eq=False)
class _Signal(_Work):
    word: np.ndarray = field(kw_only=True)
    value: int = field(kw_only=True)

    def begin(self, machine: "Machine") -> None:
        machine.access(self, self.word, True, "fall" if (self.value <= self.word).all() else "")

    def end(self, machine: "Machine") -> bool:
        self.word[...] = self.value
        machine.say(self.word, self.begun or {})
        return True


@dataclass(eq=False)
class _Copy(_Work):
    transfers = True

    def end(self, machine: "Machine") -> bool:
        self.writes[0][...] = self.reads[0]
        return True


@dataclass(eq=False)
class _Record(_Work):
    event: Event = field(kw_only=True)

    def end(self, machine: "Machine") -> bool:
        self.event.clock = self.begun
        return True


@dataclass(eq=False)
class _Wait(_Work):
    event: Event = field(kw_only=True)

    def may_end(self) -> bool:
        return self.event.clock is not None

    def end(self, machine: "Machine") -> bool:
        machine.clocks.join(self.agent, self.event.clock or {})
        return True

    @property
    def waits_for(self) -> str:
        return f"an event of the {self.event.stream} stream"


@dataclass(eq=False)
class _Exchange(_Work):
    """A send and a receive. The n-th send of a rank to another is the n-th that it receives."""

    to: int = field(kw_only=True)
    source: int = field(kw_only=True)
    sends: "list[_Exchange]" = field(default_factory=list)  # from `source` to this rank, as they begin
    number: int = 0
    sent: bool = False
    received: bool = False
    transfers = True

    def begin(self, machine: "Machine") -> None:
        machine.sends(self.agent.rank, self.to).append(self)
        self.sends = machine.sends(self.source, self.agent.rank)
        self.number = machine.count_receive(self.source, self.agent.rank)

    def may_end(self) -> bool:
        return self.sent if self.received else len(self.sends) > self.number

    def end(self, machine: "Machine") -> bool:
        if not self.received:
            sender = self.sends[self.number]
            self.writes[0][...] = sender.reads[0]
            machine.clocks.join(self.agent, sender.begun or {})
            self.received = sender.sent = True
        return self.sent

    @property
    def waits_for(self) -> str:
        return f"{self.what}, from rank {self.source} and to rank {self.to}"


@dataclass(eq=False)
class _Together(_Work):
    """What all ranks do at once: those that have begun are in `there`, by rank."""

    ranks: int = field(kw_only=True)
    there: "dict[int, _Together]" = field(default_factory=dict)
    moved: bool = False

    def begin(self, machine: "Machine") -> None:
        self.there = machine.meeting(self.agent.rank, self.what)
        self.there[self.agent.rank] = self

    def may_end(self) -> bool:
        return len(self.there) == self.ranks

    def end(self, machine: "Machine") -> bool:
        for other in self.there.values():
            machine.clocks.join(self.agent, other.begun or {})
        if not self.moved:  # what is sent may be overwritten as soon as its rank is through
            for other in self.there.values():
                other.moved = True
                other.receive()
        return True

    def receive(self) -> None:
        """Take what the others have sent."""

    @property
    def waits_for(self) -> str:
        missing = [str(rank) for rank in range(self.ranks) if rank not in self.there]
        return f"{self.what}, for rank {' and '.join(missing)}"


@dataclass(eq=False)
class _Gather(_Together):
    transfers = True

    def receive(self) -> None:
        for rank, other in self.there.items():
            self.writes[0][rank] = other.reads[0]


@dataclass(eq=False)
class _AllToAll(_Together):
    receive_sizes: list[int] = field(kw_only=True)
    send_sizes: list[int] = field(kw_only=True)
    transfers = True

    def receive(self) -> None:
        own, pieces = self.agent.rank, []
        for rank in range(self.ranks):
            other = self.there[rank]
            assert isinstance(other, _AllToAll)
            begin = sum(other.send_sizes[:own])
            pieces.append(other.reads[0][begin : begin + other.send_sizes[own]])
        sizes = [len(piece) for piece in pieces]
        if sizes != self.receive_sizes:
            raise Stuck(
                f"rank {own}: {self.what} receives {self.receive_sizes} elements, and {sizes} are sent"
            )
        self.writes[0][: sum(sizes)] = np.concatenate(pieces)


class Machine:
    """So many ranks in one process. Each program queues its work, and `run` does it.

    A program that is called again must not overwrite what a peer still reads: queue at least two calls, with
    `next_call` between them, so that a missing barrier at the end can be seen.

    kept: where hazards are put while the run goes on; None: the first one is raised.
    """

    def __init__(self, ranks: int, order: Order, kept: list[Hazard] | None = None) -> None:
        self.count, self.order, self.call, self.kept = ranks, order, 0, kept
        self.clocks = Clocks()
        self.ranks = [SimulatedRank(self, number) for number in range(ranks)]
        self._queues: dict[Agent, deque[_Work]] = {
            Agent(rank, stream): deque() for rank in range(ranks) for stream in (MAIN, SIDE, ALSO)
        }
        self._buffers: dict[int, Buffer] = {}
        self._accesses: dict[int, list[tuple[_Work, np.ndarray, bool, str]]] = {}
        self._said: dict[int, Clock] = {}
        self._sends: dict[tuple[int, int], list[_Exchange]] = {}
        self._receives: dict[tuple[int, int], int] = {}
        self._meetings: dict[tuple[str, int], dict[int, _Together]] = {}
        self._met: dict[tuple[int, str], int] = {}

    def next_call(self) -> None:
        """What is queued from now on is the next call of the program."""
        self.call += 1

    def run(self) -> None:
        """Do all that is queued. Raises Hazard, unless they are kept, or Stuck."""
        while any(self._queues.values()):
            heads = [(agent, queue[0]) for agent, queue in self._queues.items() if queue]
            ready = [
                (agent, work.begun is not None and work.transfers)
                for agent, work in heads
                if work.begun is None or work.may_end()
            ]
            if not ready:
                waiting = "; ".join(
                    f"rank {agent.rank}, {agent.stream} stream: {work.waits_for}" for agent, work in heads
                )
                raise Stuck(f"nothing can go on. {waiting}")
            agent = self.order.choose(ready)
            work = self._queues[agent][0]
            if work.begun is None:
                self._begin(work)
            elif work.end(self):
                self._queues[agent].popleft()

    def _begin(self, work: _Work) -> None:
        before = self.clocks.seen(work.agent)  # all but what begins: who hears of it does not know its end
        work.tick = self.clocks.tick(work.agent)
        for view, writes in (
            *((each, False) for each in work.reads),
            *((each, True) for each in work.writes),
        ):
            self.access(work, view, writes)
        work.begun = before
        if work.transfers:
            for target in work.writes:
                target[...] = np.nan
        work.begin(self)

    def say(self, word: np.ndarray, clock: Clock) -> None:
        """A signal has been written after all that is over in `clock`."""
        for i in range(len(word)):
            self._said[word[i:].ctypes.data] = clock

    def said_by(self, word: np.ndarray) -> Clock:
        """What is over for who reads the first of its numbers now."""
        return self._said.get(word.ctypes.data, {})

    def access(self, work: _Work, view: np.ndarray, writes: bool = False, how: str = "") -> None:
        """Note an access. One to the same memory before it that is not certain to be over makes a Hazard.

        how: "look" at a word while it may "fall" is no access like others: these two need no order.
        """
        memory = _memory(view)
        before = self._accesses.setdefault(memory, [])
        for other, other_view, other_writes, other_how in before:
            unordered = not self.clocks.is_over(other.agent, other.tick, work.agent)
            unordered &= {how, other_how} != {"look", "fall"}
            if (writes or other_writes) and unordered and np.shares_memory(view, other_view):
                found = _hazard(self._buffers[memory], other, work, other_writes)
                if self.kept is None:
                    raise found
                self.kept.append(found)
        before.append((work, view, writes, how))

    def queue(self, work: _Work) -> None:
        """Put a task at the end of its stream."""
        self._queues[work.agent].append(work)

    def own(self, owner: int, name: str, array: np.ndarray) -> None:
        """Say whose memory an array is, and what messages call it."""
        self._buffers.setdefault(_memory(array), Buffer(owner, name, array))  # kept: no address is used twice

    def sends(self, source: int, to: int) -> "list[_Exchange]":
        """All sends from one rank to another that have begun, in their order."""
        return self._sends.setdefault((source, to), [])

    def count_receive(self, source: int, to: int) -> int:
        """How many receives of `to` from `source` have begun before this one."""
        number = self._receives.get((source, to), 0)
        self._receives[source, to] = number + 1
        return number

    def meeting(self, rank: int, what: str) -> "dict[int, _Together]":
        """Where the n-th `what` of all ranks meets."""
        number = self._met.get((rank, what), 0)
        self._met[rank, what] = number + 1
        return self._meetings.setdefault((what, number), {})


class SimulatedRank:
    """A `Rank` of a `Machine`."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number, self.count = machine, number, machine.count
        self._memory: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}
        self._shared: dict[str, np.ndarray] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        dtype = np.dtype(np.float32 if dtype is None else dtype)
        found = self._memory.get((name, shape))
        if found is None or found.dtype != dtype:
            self._kept.clear()
            found = self._memory[name, shape] = np.full(shape, np.nan, dtype)
            self.machine.own(self.number, name, found)
        return found

    def shared(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        for rank in self.machine.ranks:  # all at once, as a rendezvous does
            found = rank.empty(name, shape, dtype)
            if rank._shared.get(name) is not found:
                rank._kept.clear()
                rank._shared[name] = found
        return self._shared[name]

    def kept(self, make: Callable[..., Any], *how: Any) -> Any:
        if (make, how) not in self._kept:
            found = make(self, *how)  # which may clear what was kept
            self._kept[make, how] = found
        return self._kept[make, how]

    def of(self, peer: int, name: str) -> np.ndarray:
        return self.machine.ranks[peer]._shared[name]

    def launch(
        self,
        stream: str,
        what: str,
        function: Function,
        reads: Sequence[Any],
        writes: Sequence[Any],
        step: int,
        late: Sequence[Any] = (),
        word: Any = None,
    ) -> None:
        for each in (*reads, *writes):
            self.machine.own(self.number, "the caller's arrays", each if each.base is None else each.base)
        arrays = tuple(reads), tuple(writes)
        if not late:
            self._queue(_Launch, stream, what, step, *arrays, function=function)
            return
        self._queue(_LateLaunch, stream, what, step, *arrays, function=function, late=tuple(late), word=word)

    def word(self, name: str, count: int) -> np.ndarray:
        if name not in self._shared or len(self._shared[name]) != count:
            self._shared[name] = np.zeros(count, np.int32)
            self.machine.own(self.number, name, self._shared[name])
        return self._shared[name]

    def signal(self, stream: str, word: Any, value: int, step: int) -> None:
        self._queue(_Signal, stream, "the signal", step, word=word, value=value)

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        self._queue(_Copy, stream, "the copy", step, (source,), (to,))

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        self._queue(_Exchange, stream, "the exchange", step, (send,), (receive,), to=to, source=source)

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        sizes = {"receive_sizes": receive_sizes, "send_sizes": send_sizes}
        self._queue(_AllToAll, stream, "the all-to-all", 0, (send,), (receive,), ranks=self.count, **sizes)

    def all_gather(self, stream: str, receive: Any, send: Any) -> None:
        self._queue(_Gather, stream, "the all-gather", 0, (send,), (receive,), ranks=self.count)

    def barrier(self, stream: str, name: str) -> None:
        self._queue(_Together, stream, f"the barrier at the {name}", ranks=self.count)

    def record(self, stream: str) -> Event:
        event = Event(stream)
        self._queue(_Record, stream, "an event", event=event)
        return event

    def wait(self, stream: str, event: Event) -> None:
        self._queue(_Wait, stream, "an event", event=event)

    def _queue(self, kind: Any, stream: str, what: str, *more: Any, **fields: Any) -> None:
        self.machine.queue(kind(Agent(self.number, stream), what, self.machine.call, *more, **fields))


def _hazard(buffer: Buffer, before: _Work, after: _Work, before_writes: bool) -> Hazard:
    """The sentence about two accesses that nothing orders; the program's order tells what is missing."""
    writer, other = (before, after) if before_writes else (after, before)
    ranks = before.agent.rank, after.agent.rank
    name, owner = buffer.name, buffer.owner
    in_time = (writer.call, writer.step) <= (other.call, other.step)
    if ranks[0] != ranks[1] and in_time:
        kind = "start barrier"
        sentence = (
            f"rank {other.agent.rank}, step {other.step}: {other.what} reads {name} of rank {owner}, and no "
            f"barrier before it says that rank {writer.agent.rank} has written them"
        )
    elif ranks[0] != ranks[1] and writer.call == other.call:
        kind = "early write"
        sentence = (
            f"rank {writer.agent.rank}, step {writer.step}: {writer.what} writes {name} of rank {owner}, "
            f"while {other.what} of rank {other.agent.rank}, step {other.step}, may still read them: no "
            "barrier is between the two"
        )
    elif ranks[0] != ranks[1]:
        kind = "end barrier"
        sentence = (
            f"rank {writer.agent.rank} writes {name} of rank {owner} for its next call, while {other.what} "
            f"of rank {other.agent.rank}, step {other.step}, may still read them: no barrier ends the call "
            "before"
        )
    elif writer.transfers and in_time:
        kind = "arrival"
        sentence = (
            f"rank {owner}, step {other.step}: {other.what} uses {name}, and nothing waits until "
            f"{writer.what} of step {writer.step} has arrived there"
        )
    elif writer.transfers:
        kind = "reuse"
        sentence = (
            f"rank {owner}, step {writer.step}: {writer.what} writes {name}, while {other.what} of step "
            f"{other.step} may still use it: nothing waits for its end"
        )
    elif other.transfers:
        kind = "sending"
        sentence = (
            f"rank {owner}, step {other.step}: {other.what} may still send {name}, while {writer.what} of "
            f"step {writer.step} writes there: nothing waits for its end"
        )
    else:
        kind = "order"
        sentence = (
            f"rank {owner}: {before.what} of step {before.step} and {after.what} of step {after.step} use "
            f"{name}, one of them writes, and nothing orders the two"
        )
    return Hazard(kind, owner, name, ranks, (before.step, after.step), sentence)


def _memory(view: np.ndarray) -> int:
    """Which allocation a view is of."""
    while isinstance(view.base, np.ndarray):
        view = view.base
    return id(view)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
