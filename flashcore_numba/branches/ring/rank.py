"""`Rank`: what a program of one rank may use, whatever carries it out."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

MAIN, SIDE, ALSO = "main", "side", "also"
"""The streams of a rank: kernels run on the first and the third, transfers on the second."""

Function = Callable[[tuple[Any, ...], tuple[Any, ...]], None]
"""What a launch does: (reads, writes) -> None, on arrays of the rank."""


class Rank(Protocol):
    """One of `count` ranks. Its methods queue work on a stream and return; only the streams wait.

    Arrays are NumPy's or PyTorch's. Exchanges take contiguous arrays; a copy takes others too, if each head's
    [rows, D] are in one piece. step: of the schedule, for messages.
    """

    number: int
    count: int

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Memory of this rank, which no other one reads: of a type of its arrays, None is float32. The same
        name, shape and type is the same memory again.
        """

    def shared(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Memory that peers read through `of`; all ranks ask for the same shape and type."""

    def of(self, peer: int, name: str) -> Any:
        """What `shared` is on a peer."""

    def kept(self, make: Callable[..., Any], *how: Any) -> Any:
        """`make(self, *how)`, which asks for memory of this rank and of its peers, and takes views of it. It
        is made once for equal `how`, and again when any memory has been replaced. `make` is a function of a
        module, and `how` has no arrays: so nothing else can be in what is kept.
        """

    def word(self, name: str, count: int) -> Any:
        """Numbers of this rank, int32 [count], which `signal` writes and a `launch` looks at."""

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
        """Queue `function(reads, writes)`. An array in both is updated.

        late: [..., keys, D], of which keys still come when it begins: the function, which takes
        (*reads, *late, word), reads them from the last to the first, each when `word` is no more than its
        number. Of a word of several numbers each is for one head of [..., heads, keys, D], and the last head
        is read first.
        """

    def signal(self, stream: str, word: Any, value: int, step: int) -> None:
        """Queue the write of a number to all of a word, or of a slice of one, after all that is queued on the
        stream and without an SM. While a launch looks at it, it must only fall.
        """

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        """Queue a copy by the copy engine, of this rank's memory or a peer's, to this rank's."""

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        """Queue a send to one peer and a receive from one peer."""

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        """Queue the exchange of flat arrays: `send_sizes[p]` elements go to peer p, in the order of peers."""

    def all_gather(self, stream: str, receive: Any, send: Any) -> None:
        """Queue the collection of every rank's `send` in `receive[rank]`."""

    def barrier(self, stream: str, name: str) -> None:
        """Queue a point that the stream of no rank passes before those of all ranks have reached it."""

    def record(self, stream: str) -> Any:
        """An event: what has been queued on the stream so far."""

    def wait(self, stream: str, event: Any) -> None:
        """What is queued on the stream from now on begins after the event."""
