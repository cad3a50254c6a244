"""`Stamped`: a `Rank` that notes when each queued operation begins and ends on its stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flashcore_numba.branches.ring.rank import ALSO, MAIN, SIDE, Function, Rank

STREAMS = (MAIN, SIDE, ALSO)


@dataclass(eq=False)
class Mark:
    """A point of a stream. value: what the clock gave there; None until the stream has reached it."""

    value: Any = None


class Piece(NamedTuple):
    """An operation on a stream, which begins where the one before it ends.

    kind: "kernel", "copy", "signal", "exchange", "barrier" or "wait". what: the work in a word or two, and of
    a wait the work that it waits for. step: of the schedule; None where it belongs to no step.
    """

    stream: str
    kind: str
    what: str
    step: int | None
    begin: Mark
    end: Mark


class _Known(NamedTuple):
    """An event of the rank within, and the work that it follows."""

    event: Any
    what: str
    step: int | None


class Stamped:
    """Another rank, whose work it queues with a mark after each operation; `pieces` are those queued so far.

    clock: called on the stream when a mark is reached, or, where streams are queues of a GPU, when it is
    queued: then it records an event there. What is queued must be queued ahead of what runs, or a piece
    begins while the host is still at work on it.
    """

    def __init__(self, rank: Rank, clock: Callable[[], Any]) -> None:
        self.number, self.count = rank.number, rank.count
        self.pieces: list[Piece] = []
        self._rank, self._clock = rank, clock
        self._before: dict[str, tuple[str, int | None]] = dict.fromkeys(STREAMS, ("the start", None))
        start = rank.record(MAIN)
        for stream in (SIDE, ALSO):
            rank.wait(stream, start)  # or their first pieces begin before the main stream is here
        self._reached = {stream: self._mark(stream) for stream in STREAMS}

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        return self._rank.empty(name, shape, dtype)

    def shared(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        return self._rank.shared(name, shape, dtype)

    def of(self, peer: int, name: str) -> Any:
        return self._rank.of(peer, name)

    def kept(self, make: Callable[..., Any], *how: Any) -> Any:
        return self._rank.kept(make, *how)

    def word(self, name: str, count: int) -> Any:
        return self._rank.word(name, count)

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
        self._rank.launch(stream, what, function, reads, writes, step, late, word)
        self._note(stream, "kernel", what, step)

    def signal(self, stream: str, word: Any, value: int, step: int) -> None:
        self._rank.signal(stream, word, value, step)
        self._note(stream, "signal", "signal", step)

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        self._rank.copy(stream, to, source, step)
        self._note(stream, "copy", "copy", step)

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        self._rank.exchange(stream, send, to, receive, source, step)
        self._note(stream, "exchange", "exchange", step)

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        self._rank.all_to_all(stream, receive, receive_sizes, send, send_sizes)
        self._note(stream, "exchange", "all-to-all", None)

    def all_gather(self, stream: str, receive: Any, send: Any) -> None:
        self._rank.all_gather(stream, receive, send)
        self._note(stream, "exchange", "all-gather", None)

    def barrier(self, stream: str, name: str) -> None:
        self._rank.barrier(stream, name)
        self._note(stream, "barrier", name, None)

    def record(self, stream: str) -> Any:
        return _Known(self._rank.record(stream), *self._before[stream])

    def wait(self, stream: str, event: Any) -> None:
        self._rank.wait(stream, event.event)
        self._note(stream, "wait", event.what, event.step)

    def _note(self, stream: str, kind: str, what: str, step: int | None) -> None:
        begin, end = self._reached[stream], self._mark(stream)
        self.pieces.append(Piece(stream, kind, what, step, begin, end))
        self._reached[stream] = end
        if kind != "wait":
            self._before[stream] = what, step

    def _mark(self, stream: str) -> Mark:
        mark = Mark()

        def reach(reads: tuple[Any, ...], writes: tuple[Any, ...]) -> None:
            mark.value = self._clock()

        self._rank.launch(stream, "the stamp", reach, (), (), 0)
        return mark
