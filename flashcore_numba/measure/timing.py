"""When to time what: how many launches a graph holds, and the order of the turns.

Nothing here touches a GPU: `measure` is given a clock (`measure.clock.GpuClock`, or a fake one
in the tests).
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flashcore_numba.measure.sensors import Reading

REPLAY_US = 4000.0  # long against the start of a graph (a few us), short against a drift of the clocks
MOST_LAUNCHES = 1000  # in one graph
REPLAYS, CALLS = 3, 10  # in one turn
FEWEST_ROUNDS = 5
ENTRY_SECONDS = 1.0
COLD_ROUNDS = 5


def launches_for(launch_us: float, replay_us: float = REPLAY_US) -> int:
    """How many launches of `launch_us` one graph holds so that a replay lasts about `replay_us`."""
    return max(1, min(MOST_LAUNCHES, round(replay_us / launch_us)))


def replays_for(replay_us: float) -> int:
    """How many replays one turn times: REPLAYS short ones, fewer when a single replay is long."""
    return max(1, min(REPLAYS, round(REPLAYS * REPLAY_US / replay_us)))


class Entry(Protocol):
    """One thing that is timed: a stage, one of its variants, or a peer.

    `launches` and `launch_us`, the graph's launches and the time of one, are set by `calibrate`.
    """

    label: str
    launches: int
    launch_us: float

    @property
    def call(self) -> Callable[[], Any] | None:
        """What a caller pays for; None for what has no caller's side."""

    def active(self) -> AbstractContextManager[None]:
        """The stream and settings under which it is replayed and called."""

    def capture(self, launches: int) -> None:
        """Make a graph of so many launches, which `replay` will run."""

    def replay(self) -> None:
        """Run the captured graph once."""


class Clock(Protocol):
    """What times an entry. All times are microseconds.

    `reading`: what the GPU's sensors said during the last `replays`, or None.
    """

    reading: Reading | None

    def replays(self, entry: Entry, count: int) -> list[float]:
        """The GPU time of one launch, from each of `count` graph replays."""

    def calls(self, entry: Entry, count: int) -> list[float]:
        """The time from event to event around each of `count` calls; empty when there is no caller's side."""


@dataclass
class Samples:
    """The times of one entry in microseconds, a list a round, and what the sensors said in each round."""

    gpu_us: list[list[float]] = field(default_factory=list)
    caller_us: list[list[float]] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return len(self.gpu_us)


def calibrate(entry: Entry, clock: Clock) -> None:
    """Capture the graph that `measure` will replay: as many launches as make a replay last about REPLAY_US.

    A graph of one launch shows its start as well as the kernel, so a short kernel is estimated a second time
    from a longer graph.
    """
    wanted = 1
    while True:
        entry.capture(wanted)
        entry.launches = wanted
        entry.launch_us = min(clock.replays(entry, 3))
        wanted = launches_for(entry.launch_us)
        if wanted <= 2 * entry.launches:
            return


def measure(
    entries: Sequence[Entry],
    rounds: int,
    clock: Clock,
    on_turn: Callable[[int, int, Entry], None] | None = None,
) -> list[Samples]:
    """Time calibrated entries in turns, A B C, C B A, A B C ..., `rounds` times over.

    Interleaving puts a slow drift (temperature, clocks, a neighbour on the host) on all entries alike, and
    every other round runs backward, so that nobody always follows the same heavy neighbour. An entry that has
    used ENTRY_SECONDS leaves after FEWEST_ROUNDS rounds. `on_turn(turn, turns, entry)` is called after each
    turn.
    """
    samples = [Samples() for _ in entries]
    spent = [0.0] * len(entries)
    for turn, index in turns(rounds, spent):
        entry, got = entries[index], samples[index]
        gpu = clock.replays(entry, replays_for(entry.launch_us * entry.launches))
        if clock.reading is not None:
            got.readings.append(clock.reading)
        caller = clock.calls(entry, CALLS if entry.launch_us < REPLAY_US else 1)
        got.gpu_us.append(gpu)
        if caller:
            got.caller_us.append(caller)
        spent[index] += (sum(gpu) * entry.launches + sum(caller)) / 1e6
        if on_turn:
            on_turn(turn, rounds * len(entries), entry)
    return samples


def measure_cold(entries: Sequence[Entry], flush: Entry, clock: Clock) -> list[list[list[float]]]:
    """The GPU times of launches that find their data in device memory: for each entry a list a round.

    entries: graphs of [flush, launch] pairs, and `flush`: a graph of the same flush alone; all calibrated.
    What a pair takes less the flush is one launch in a graph, as `measure` times it, start included: an event
    around a single launch would add several microseconds of its own. Both graphs are replayed in the same
    turn, so that their difference does not hold a drift. A time may come out below zero where the flush
    varies by more than the launch takes.
    """
    times: list[list[list[float]]] = [[] for _ in entries]
    for _, index in turns(COLD_ROUNDS, [0.0] * len(entries)):
        pairs = clock.replays(entries[index], REPLAYS)
        alone = statistics.median(clock.replays(flush, REPLAYS))
        times[index].append([pair - alone for pair in pairs])
    return times


def turns(rounds: int, spent: Sequence[float]) -> Iterator[tuple[int, int]]:
    """(number of the turn, index of the entry); `spent[i]`, entry i's seconds so far, is read anew."""
    for number in range(rounds):
        order = range(len(spent))
        for place, index in enumerate(reversed(order) if number % 2 else order):
            if number < FEWEST_ROUNDS or spent[index] < ENTRY_SECONDS:
                yield number * len(spent) + place + 1, index
