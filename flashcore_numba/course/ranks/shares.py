"""What each rank has to compute and to move: by the split of the rows, and by the way to the keys."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.branches.ring.machine import Machine, Order, orders
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.programs import FORWARD, Layer
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.course.ranks import together
from flashcore_numba.course.ranks.model import end, timeline

RANKS = 4  # of the lesson's examples
ELEMENT = 2  # bytes
KERNEL, LONG = "15 ping_pong", "1x16x16384x128"  # of a step, and the recorded shape whose rate is taken


def work(held: Sequence[Sequence[int]]) -> list[float]:
    """Pairs of pieces that each rank computes under a causal mask; a piece sees half of itself.

    held: by rank, the pieces that it holds.
    """
    return [sum(piece + 0.5 for piece in some) for some in held]


def contiguous(number: int, ranks: int) -> tuple[int, int]:
    """The pieces of a rank whose rows follow each other."""
    return 2 * number, 2 * number + 1


def moved(way: str, ranks: int, rows: int, heads: int, kv_heads: int, dim: int) -> float:
    """Bytes that a rank receives in one call on a sequence of `rows` rows, as a mean of all ranks. Elements
    have 2 bytes, under a causal mask; an LSE that travels is float32.
    """
    own, others = rows / ranks, ranks - 1
    chunk = 2 * kv_heads * own * dim * ELEMENT
    if way == "ring":
        return others * chunk
    if way in ("pull", "gather", "gated"):  # of later ranks the whole chunk, of earlier ones half of it
        return others * chunk * 3 / 4
    each = (2 * heads + 2 * kv_heads) * dim * ELEMENT + heads * 4  # q, k, v and out; LSE
    return each * own * others / ranks


class _Counting:
    """A rank of a `Machine` that counts the bytes which it receives from others."""

    def __init__(self, rank: Any) -> None:
        self._rank, self.bytes = rank, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rank, name)

    def copy(self, stream: str, to: Any, source: Any, step: int) -> None:
        self.bytes += source.nbytes
        self._rank.copy(stream, to, source, step)

    def exchange(self, stream: str, send: Any, to: int, receive: Any, source: int, step: int) -> None:
        self.bytes += receive.nbytes
        self._rank.exchange(stream, send, to, receive, source, step)

    def all_to_all(
        self, stream: str, receive: Any, receive_sizes: list[int], send: Any, send_sizes: list[int]
    ) -> None:
        whole = sum(receive_sizes)
        self.bytes += receive.nbytes * (whole - receive_sizes[self._rank.number]) // whole
        self._rank.all_to_all(stream, receive, receive_sizes, send, send_sizes)


def counted(way: str, ranks: int, rows: int, heads: int, kv_heads: int, dim: int) -> float:
    """What `moved` says, counted of the programs of `branches.ring` on ranks in one process."""
    machine, rng = Machine(ranks, Order("late")), np.random.default_rng(0)
    split = even(rows, ranks, way != "ulysses")
    received = 0
    for rank in machine.ranks:
        counting = _Counting(rank)
        shape = split.rows(rank.number), dim
        q, k, v = (
            rng.standard_normal((1, h, *shape)).astype(FLOAT16.dtype) for h in (heads, kv_heads, kv_heads)
        )
        out, lse = np.empty_like(q), np.empty(q.shape[:3], np.float32)
        FORWARD[way](counting, Layer(split, True, Float32()), q, k, v, out, lse)
        received += counting.bytes
    machine.run()
    return received / ranks


def needed(rows: int, group: int, tflops: float, causal: bool) -> float:
    """GB/s at which a step's keys arrive while a step of attention runs.

    rows: of a rank. group: query heads per K/V head. tflops: at which a rank computes. Elements have 2 bytes;
    the head dimension and the number of heads cancel. Under a causal mask the dearest step is meant: half
    the work, the whole chunk.
    """
    return 1e3 * tflops / (group * rows) * (2 if causal else 1)


@functools.cache
def figures() -> dict[str, float]:
    """Every number by its name, for 4 ranks.

    orders: in which ranks are run; start_wrong, end_wrong: those in which an output is wrong without that
    barrier; start_named, end_named: those in which a hazard says so. barriers: to which a rank comes in a
    call. last: work of the last rank over that of the first, rows in order; most, mean: the last rank's and
    the mean, in pairs of pieces. hidden: when the last rank is done in the model.
    """
    found: dict[str, float] = {}
    for barrier in ("start", "end"):
        every = orders(RANKS, np.random.default_rng(0))
        runs = [
            together.run(together.OWN.pull, RANKS, order, np.random.default_rng(1), barrier, keep=True)
            for order in every
        ]
        found[f"{barrier}_wrong"] = sum(each.margin < 1 for each in runs)
        found[f"{barrier}_named"] = sum(bool(each.hazards) for each in runs)
        found["orders"] = len(every)
    done = together.run(together.OWN.pull, RANKS, Order("late"), np.random.default_rng(1))
    in_order = work([contiguous(number, RANKS) for number in range(RANKS)])
    return found | {
        "barriers": sum(each.what == "barrier" for each in done.asked[0][0]),
        "last": in_order[-1] / in_order[0],
        "most": in_order[-1],
        "mean": sum(in_order) / RANKS,
        "hidden": end(timeline(together.OWN.pull, RANKS)),
    }
