"""When each rank would do what, if every kernel and every copy took a given time: a model, no measurement."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.ring.machine import Order
from flashcore_numba.course.ranks.together import Asked, plan_of, run

STEP, PIECE = 4.0, 1.5
"""Units of time: attention of a step, which is the same for all ranks, and the copy of half a chunk."""


class Span(NamedTuple):
    """What a stream did from `start` to `stop`: attention or a copy of step `step`."""

    stream: str
    what: str
    step: int
    start: float
    stop: float


def spans(asked: list[list[Asked]], pieces: float) -> list[list[Span]]:
    """By rank what its streams did. pieces: rows of a piece. Streams work in order, kernels and copies side
    by side; an event passes when what was before it has ended, a barrier when all ranks are there.
    """
    queues = {
        (rank, stream): deque(each for each in some if each.stream == stream)
        for rank, some in enumerate(asked)
        for stream in ("main", "side")
    }
    clock = dict.fromkeys(queues, 0.0)
    passed: dict[int, float] = {}
    met: dict[tuple[str, int], dict[int, float]] = {}
    visits: dict[tuple[int, str], int] = {}
    found: list[list[Span]] = [[] for _ in asked]
    while any(queues.values()):
        moved = False
        for at, queue in queues.items():
            while queue and _done(at, queue[0], pieces, clock, passed, met, visits, found, len(asked)):
                queue.popleft()
                moved = True
        if not moved:  # a program that the machine carries out never comes here
            raise RuntimeError(f"nothing can go on: {[queue[0].what for queue in queues.values() if queue]}")
    return found


def _done(
    at: tuple[int, str],
    each: Asked,
    pieces: float,
    clock: dict[tuple[int, str], float],
    passed: dict[int, float],
    met: dict[tuple[str, int], dict[int, float]],
    visits: dict[tuple[int, str], int],
    found: list[list[Span]],
    ranks: int,
) -> bool:
    """Whether what is first in a queue has ended."""
    rank, stream = at
    now = clock[at]
    if each.what in ("attention", "copy"):
        clock[at] = now + (STEP if each.what == "attention" else PIECE * round(each.about / pieces))
        found[rank].append(Span(stream, each.what, each.step, now, clock[at]))
    elif each.what == "record":
        passed[id(each.about)] = now
    elif each.what == "wait":
        if id(each.about) not in passed:
            return False
        clock[at] = max(now, passed[id(each.about)])
    else:
        number = visits.setdefault((rank, each.about), 0)
        there = met.setdefault((each.about, number), {})
        there[rank] = now
        if len(there) < ranks:
            return False
        clock[at] = max(there.values())
        visits[rank, each.about] = number + 1
    return True


def timeline(pull: Callable[..., Any], ranks: int) -> list[list[Span]]:
    """The first call of `pull` on so many ranks. Raises what `together.run` raises."""
    done = run(pull, ranks, Order("late"), np.random.default_rng(0))
    halves = plan_of(ranks, ranks - 1)[-1].keys
    return spans(done.asked[0], halves.stop - halves.start)


def end(found: list[list[Span]]) -> float:
    """When the last rank has done its last kernel."""
    return max(each.stop for some in found for each in some if each.what == "attention")
