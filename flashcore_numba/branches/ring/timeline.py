"""What every stream of every rank does in one call, by events: what each process of a run does.

`flashcore ring --gpus N --timeline` starts N of these by torchrun. Every GPU is held by a kernel that only
waits until the host has queued the whole call; a barrier follows, and the call. So no operation begins
while its host is still at work on it, and the times of all ranks begin at that barrier's end.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.ring.call import out_and_lse
from flashcore_numba.branches.ring.compare import Timed, drawn, error_of, join, leave, topology
from flashcore_numba.branches.ring.numerics import Stages
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, Layer
from flashcore_numba.branches.ring.rank import Rank
from flashcore_numba.branches.ring.sequence import Split, even
from flashcore_numba.branches.ring.stamps import Piece, Stamped
from flashcore_numba.core.shapes import Shape, parse_any
from flashcore_numba.records import environment, ring_timeline

WARM = 3  # calls of each kind before those that count: kernels are compiled and loaded, memory is made
HOLD_CLOCKS = 50_000_000  # of an SM, some 25 ms: the host queues a call in a few


class Taken(NamedTuple):
    """Calls of a rank. stamped: of each its us and its pieces, as the record has them. plain_us: of each call
    without stamps. ahead: whether each was queued before its GPU began.
    """

    stamped: list[dict[str, Any]]
    plain_us: list[float]
    ahead: bool


def main(arguments: Sequence[str] | None = None) -> None:
    """Stamp calls on this process's GPU; rank 0 writes the record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", required=True, help="with the rows of all GPUs")
    parser.add_argument("--way", required=True, choices=[*FORWARD])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(arguments)
    number, count, seed = join()
    import torch.distributed as dist

    shape = parse_any(args.shape)
    found, right = _run(shape, args.causal, args.way, args.backward, args.rounds, seed)
    every: list[Any] = [None] * count
    dist.all_gather_object(every, found)
    if number == 0:
        made = ring_timeline.record(
            str(shape),
            args.causal,
            args.way,
            args.backward,
            [each.stamped for each in every],
            [max(us) for us in zip(*(each.plain_us for each in every), strict=True)],
            seed,
            environment.gpu(),
            topology(count),
            right=right,
            ahead=all(each.ahead for each in every),
        )
        ring_timeline.save(made, args.file)
    leave()


def _run(shape: Shape, causal: bool, way: str, backward: bool, rounds: int, seed: int) -> tuple[Taken, bool]:
    """Calls of this rank, and whether what a stamped one wrote is right on every rank."""
    from flashcore_numba.branches.ring.gpus import GpuRank

    rank = GpuRank()
    split, whole = even(shape.seq, rank.count, way != "ulysses"), drawn(shape, seed, backward)
    call, written = program(way, backward, rank, Layer(split, causal, Stages()), split, whole)
    start = Start()
    for _ in range(WARM):
        call(rank)
    found = taken(rank, call, start, rounds)
    for each in written:
        each.fill_(float("nan"))  # or a result of the calls before would be right
    value = (lambda: written) if backward else (lambda: written[0])
    rows: np.ndarray = split.indices(rank.number)
    entry = Timed(way, lambda: call(Stamped(rank, start.clock)), "stage", value, whole, rows)
    return found, error_of(entry, causal, seed)["right"]


def program(
    way: str, backward: bool, rank: Rank, layer: Layer, split: Split, whole: Sequence[Any]
) -> tuple[Callable[[Rank], None], list[Any]]:
    """A call of a way, to be queued through whatever stands for `rank`, and what it writes: out, or dq, dk
    and dv. whole: q, k and v of the sequence, and dout for the backward pass, before which the forward pass
    runs here.
    """
    q, k, v, *dout = (split.cut(each, rank.number) for each in whole)
    out, lse = out_and_lse(q)
    if not backward:
        return (lambda through: FORWARD[way](through, layer, q, k, v, out, lse)), [out]
    FORWARD[way](rank, layer, q, k, v, out, lse)
    gradients = [each.new_empty(each.shape) for each in (q, k, v)]
    arrays = (q, k, v, out, lse, *dout, *gradients)
    return (lambda through: BACKWARD[way](through, layer, *arrays)), gradients


def taken(rank: Rank, call: Callable[[Rank], None], start: "Start", rounds: int) -> Taken:
    """Calls with stamps and without, which take turns."""
    pieces: list[Piece] = []

    def with_stamps() -> None:
        through = Stamped(rank, start.clock)
        call(through)
        pieces[:] = through.pieces

    stamped, plain, ahead = [], [], True
    for number in range(WARM + rounds):
        _, us, was_ahead = start.timed(lambda: call(rank))
        first, stamped_us, both_ahead = start.timed(with_stamps)
        if number >= WARM:
            plain.append(us)
            ahead = ahead and was_ahead and both_ahead
            stamped.append({"us": stamped_us, "pieces": [told(each, first) for each in pieces]})
    return Taken(stamped, plain, ahead)


def told(piece: Piece, first: Any) -> dict[str, Any]:
    """A piece as the record has it. first: the event from which its times count."""
    begin, end = (max(0.0, first.elapsed_time(mark.value) * 1e3) for mark in (piece.begin, piece.end))
    return {
        "stream": piece.stream, "kind": piece.kind, "what": piece.what, "step": piece.step,
        "begin_us": begin, "end_us": end,
    }  # fmt: skip


class Start:
    """Where calls of all ranks begin at once: a barrier with memory of its own, which calls do not use.

    All ranks make it, and time, alike.
    """

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist
        import torch.distributed._symmetric_memory as symmetric

        self._torch, self._dist = torch, dist
        device = torch.device("cuda", torch.cuda.current_device())
        self._memory = symmetric.empty((1,), dtype=torch.float32, device=device)
        self._handle = symmetric.rendezvous(self._memory, dist.group.WORLD)

    def clock(self) -> Any:
        """An event on the current stream, here."""
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, call: Callable[[], None]) -> tuple[Any, float, bool]:
        """(the event at the barrier's end, microseconds until the main stream was through, whether all was
        queued by then).
        """
        cuda = self._torch.cuda
        cuda.synchronize()
        self._dist.barrier()  # or a host that is late queues its call when the others' GPUs are held no more
        cuda.synchronize()
        cuda._sleep(HOLD_CLOCKS)
        self._handle.barrier(channel=0)  # or the ranks' times would not begin at one moment
        first = self.clock()
        call()
        last = self.clock()
        ahead = not first.query()
        cuda.synchronize()
        return first, first.elapsed_time(last) * 1e3, ahead


if __name__ == "__main__":
    main()
