"""A `Rank` that is a process of `torch.distributed` with a GPU: streams, events, NCCL, symmetric memory.

Chunks are pulled by `cudaMemcpyAsync` from a peer's memory, which a copy engine does: no SM takes part.
No call uses multicast. Written for torch 2.11 to 2.13; `_symmetric_memory` is torch's private name for it.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from operator import mul
from typing import Any

from cuda_reference.extras import explained
from flashcore_numba.branches.ring.rank import ALSO, MAIN, SIDE, Function

with explained():
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symmetric

CHANNELS = {"start": 0, "end": 1, "parts": 2}
"""Barriers by name: each has its own signals, so that a rank may be at one while a peer is at the other."""

ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""By its name since torch 2.13, where the one before warns."""

PITCH_LIMIT = 2**31 - 1
"""Bytes from row to row of what one two-dimensional copy moves: CUDA's memPitch."""


class GpuRank:
    """The process and its current GPU as a rank of a process group; arrays are PyTorch's.

    The main stream is the caller's current one. Memory is kept from call to call: nothing is allocated in a
    call that an equal one has come before, and such a call can be captured into a CUDA graph. NCCL must stay
    outside of one: captured together with the barriers of symmetric memory it was seen to hang.

    To change PyTorch's current stream takes the host several microseconds: it is done only for kernels and
    collectives of the other two streams.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.number, self.count = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.device = torch.device("cuda", torch.cuda.current_device())
        transfers = torch.cuda.Stream(self.device, priority=-1)  # which go first
        self._streams = {SIDE: transfers, ALSO: torch.cuda.Stream(self.device)}
        self._on = {name: torch.cuda.stream(stream) for name, stream in self._streams.items()}
        self._on[MAIN] = nullcontext()  # it is the current one already
        self._memory: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._handles: dict[str, tuple[Any, Any]] = {}
        self._peers: dict[tuple[str, int], Any] = {}
        self._numbers: dict[tuple[int, int], Any] = {}
        self._kept: dict[tuple[Any, ...], Any] = {}

    def empty(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        dtype = torch.float32 if dtype is None else dtype
        found = self._memory.get((name, shape))
        if found is None or found.dtype != dtype:
            self._kept.clear()  # which may be views of what is replaced
            found = self._memory[name, shape] = torch.empty(shape, dtype=dtype, device=self.device)
        return found

    def shared(self, name: str, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """All ranks must ask at once when the memory is new: they wait for each other."""
        dtype = torch.float32 if dtype is None else dtype
        kept = self._handles.get(name)
        if kept is None or tuple(kept[0].shape) != shape or kept[0].dtype != dtype:
            self._kept.clear()
            made = symmetric.empty(shape, dtype=dtype, device=self.device)
            kept = self._handles[name] = made, symmetric.rendezvous(made, self.group)
            self._peers = {key: view for key, view in self._peers.items() if key[0] != name}
        return kept[0]

    def of(self, peer: int, name: str) -> Any:
        if (name, peer) not in self._peers:
            own, handle = self._handles[name]
            self._peers[name, peer] = handle.get_buffer(peer, tuple(own.shape), own.dtype)
        return self._peers[name, peer]

    def held(self) -> tuple[Any, ...]:
        """All memory of the calls so far, of which another shape or type may replace some."""
        every = self._memory, self._handles, self._peers, self._numbers, self._kept
        return tuple(value for each in every for value in each.values())

    def kept(self, make: Callable[..., Any], *how: Any) -> Any:
        key = make, how
        found = self._kept.get(key)
        if found is None:
            found = make(self, *how)
            self._kept[key] = found
        return found

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
        with self._on[stream]:
            function((*reads, *late, word) if late else tuple(reads), tuple(writes))

    def word(self, name: str, count: int) -> Any:
        found = self._memory.get((name, (count,)))
        if found is None:
            made = torch.zeros(count, dtype=torch.int32, device=self.device)
            found = self._memory[name, (count,)] = made
        return found

    def signal(self, stream: str, word: Any, value: int, step: int) -> None:
        """By a copy from pinned memory, which a copy engine does: a kernel that writes the number, or a
        memset, might wait for an SM, and all SMs may be held by the launch that waits for it.
        """
        from cupy.cuda import runtime

        key = value, word.numel()
        number = self._numbers.get(key)
        if number is None:  # kept, since a graph may copy it again
            number = self._numbers[key] = torch.full(key[1:], value, dtype=torch.int32).pin_memory()
        handle, size = self._stream(stream).cuda_stream, 4 * key[1]
        runtime.memcpyAsync(word.data_ptr(), number.data_ptr(), size, runtime.memcpyHostToDevice, handle)

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        copy(to, source, self._stream(stream).cuda_stream)

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        with self._on[stream]:
            operations = [
                dist.P2POp(dist.isend, send, dist.get_global_rank(self.group, to), self.group),
                dist.P2POp(dist.irecv, receive, dist.get_global_rank(self.group, source), self.group),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()  # makes the stream wait, not the host

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        with self._on[stream]:
            dist.all_to_all_single(receive, send, receive_sizes, send_sizes, group=self.group)

    def all_gather(self, stream: str, receive: Any, send: Any) -> None:
        with self._on[stream]:
            ALL_GATHER(receive, send, group=self.group)

    def barrier(self, stream: str, name: str) -> None:
        (_, handle), *_ = self._handles.values()
        with self._on[stream]:
            handle.barrier(channel=CHANNELS[name])

    def record(self, stream: str) -> Any:
        return self._stream(stream).record_event()

    def wait(self, stream: str, event: Any) -> None:
        self._stream(stream).wait_event(event)

    def _stream(self, stream: str) -> Any:
        return torch.cuda.current_stream(self.device.index) if stream == MAIN else self._streams[stream]


def copy(to: Any, source: Any, stream: int) -> None:
    """Queue a copy on the stream of this handle. Of [..., H, rows, D] the heads may be apart, if each is
    contiguous: PyTorch would copy that by a kernel. Heads farther apart than a pitch may be are copied one by
    one.
    """
    from cupy.cuda import runtime

    if to.is_contiguous() and source.is_contiguous():
        size = to.element_size() * to.numel()
        runtime.memcpyAsync(to.data_ptr(), source.data_ptr(), size, runtime.memcpyDefault, stream)
        return
    *outer, heads, rows, dim = to.shape
    width, steps = to.element_size(), (to.stride(), source.stride())
    assert {each[-2:] for each in steps} == {(dim, 1)}, "rows of a head follow each other"
    pitches, begins = [width * each[-3] for each in steps], (to.data_ptr(), source.data_ptr())
    for index in product(*map(range, outer)):
        one, other = (
            begin + width * sum(map(mul, index, each)) for begin, each in zip(begins, steps, strict=True)
        )
        size = width * rows * dim
        if max(pitches) <= PITCH_LIMIT:
            runtime.memcpy2DAsync(
                one, pitches[0], other, pitches[1], size, heads, runtime.memcpyDefault, stream
            )
            continue
        for head in range(heads):
            of_head = one + head * pitches[0], other + head * pitches[1]
            runtime.memcpyAsync(*of_head, size, runtime.memcpyDefault, stream)
