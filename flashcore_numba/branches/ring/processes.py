"""A `Rank` that is a process of `torch.distributed` without a GPU: NumPy arrays, transfers by gloo."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from cuda_reference.extras import explained
from flashcore_numba.branches.ring.rank import Function
from flashcore_numba.core.errors import ArgumentError, UnsupportedError

with explained():
    import torch
    import torch.distributed as dist


ALONE = (
    "way='pull', way='gather' and way='gated' need GPUs that read each other's memory; "
    "way='ring' runs on CPUs"
)


class ProcessRank:
    """The process as a rank of a process group.

    What is launched runs at once, and `exchange` goes on beside it until an event recorded after it is
    waited for. There is no memory that peers read, so `pull`, `gather` and `gated` do not run
    here.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.number, self.count = dist.get_rank(group), dist.get_world_size(group)
        self._memory: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}
        self._under_way: dict[str, list[Any]] = {}

    def agree(self, call: dict[str, Any]) -> None:
        """Wait until all ranks have said what they are called with, by the names of arguments. Raises
        ArgumentError on all of them where two differ, or where one refuses its arguments.
        """
        every = self._told(call, "")
        for number, (other, refused) in enumerate(every):
            if refused:
                raise ArgumentError(f"rank {number} refuses its arguments, and no rank begins: {refused}")
            for name in every[0][0] | other:
                first, here = (each.get(name, "not given") for each in (every[0][0], other))
                if here != first:
                    raise ArgumentError(
                        f"{name} is {first} on rank 0 and {here} on rank {number}: all ranks must be called "
                        "alike"
                    )

    def refuse(self, error: ArgumentError) -> NoReturn:
        """Tell the others, who wait in `agree`, and raise it."""
        self._told({}, str(error))
        raise error

    def _told(self, call: dict[str, Any], refused: str) -> list[Any]:
        """What every rank says."""
        every: list[Any] = [None] * self.count
        dist.all_gather_object(every, (call, refused), self.group)
        return every

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        dtype = np.dtype(np.float32 if dtype is None else dtype)
        found = self._memory.get((name, shape))
        if found is None or found.dtype != dtype:
            found = self._memory[name, shape] = np.empty(shape, dtype)
        return found

    def shared(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        raise UnsupportedError(ALONE)

    def of(self, peer: int, name: str) -> np.ndarray:
        raise UnsupportedError(ALONE)

    def kept(self, make: Callable[..., Any], *how: Any) -> Any:
        return make(self, *how)

    def word(self, name: str, count: int) -> np.ndarray:
        raise UnsupportedError(ALONE)

    def signal(self, stream: str, word: Any, value: int, step: int) -> None:
        raise UnsupportedError(ALONE)

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
        function(tuple(reads), tuple(writes))

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        to[...] = source

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        self._finish(stream)  # a stream works in order
        operations = [
            dist.P2POp(dist.isend, _bytes(send), self._peer(to), self.group),
            dist.P2POp(dist.irecv, _bytes(receive), self._peer(source), self.group),
        ]
        self._under_way[stream] = dist.batch_isend_irecv(operations)

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        sizes = (
            [size * array.itemsize for size in of]
            for array, of in ((receive, receive_sizes), (send, send_sizes))
        )
        dist.all_to_all_single(_bytes(receive), _bytes(send), *sizes, group=self.group)

    def all_gather(self, stream: str, receive: Any, send: Any) -> None:
        dist.all_gather([_bytes(each) for each in receive], _bytes(send), self.group)

    def barrier(self, stream: str, name: str) -> None:
        dist.barrier(self.group)

    def record(self, stream: str) -> list[Any]:
        return self._under_way.get(stream, [])

    def wait(self, stream: str, event: list[Any]) -> None:
        while event:
            event.pop().wait()

    def _finish(self, stream: str) -> None:
        self.wait(stream, self._under_way.pop(stream, []))

    def _peer(self, number: int) -> int:
        """The number that the whole job knows a rank of the group by."""
        return number if self.group is None else dist.get_global_rank(self.group, number)


def _bytes(array: np.ndarray) -> Any:
    """The memory of a contiguous array as a tensor of bytes: of any type, also those that gloo lacks."""
    return torch.from_numpy(array.reshape(-1).view(np.uint8))
