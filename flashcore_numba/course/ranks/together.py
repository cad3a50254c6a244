"""Runs a `pull` on several ranks in one process, and notes what each rank asked for, by lines of the program.

A chunk of keys is [rows, 2, B, H_kv, D], as in `branches.ring.programs`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.ring.machine import Hazard, Machine, Order, SimulatedRank
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.rank import MAIN, SIDE
from flashcore_numba.branches.ring.schedule import Step, steps
from flashcore_numba.branches.ring.sequence import Split, even
from flashcore_numba.checks import bounds
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.ranks import pulling

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 16
CALLS = 2  # the second one writes keys that a peer may still copy for the first
BUFFERS = 2


class Ring(NamedTuple):
    """The three functions of lesson 23: see `pulling`."""

    pieces: Callable[[int, int], Any]
    seen: Callable[[int, int], Any]
    pull: Callable[..., Any]


OWN = Ring(pulling.pieces, pulling.seen, pulling.pull)


class Asked(NamedTuple):
    """What a rank asked for: "attention", "copy", "record", "wait" or "barrier", on a stream.

    step: of the schedule, for attention and copies: the n-th copy is for step n. line: of the program. about:
    the event that is recorded or waited for, the barrier's name, rows of a copy; of attention, whether
    it reads the rank's own chunk.
    """

    what: str
    stream: str
    step: int
    line: int | None
    about: Any = None


@dataclass
class Done:
    """A run. asked: by call and rank. used: by call, rank and step, whose keys the step saw: the rank and the
    call that they are of, None for other contents. margin: the smallest allowed / error of all outputs.
    hazards: those that were kept.
    """

    asked: list[list[list[Asked]]] = field(default_factory=list)
    used: dict[tuple[int, int, int], tuple[int, int] | None] = field(default_factory=dict)
    margin: float = float("inf")
    hazards: list[Hazard] = field(default_factory=list)


class NotedRank:
    """What `pull` may ask of its rank; `of` gives the chunk of keys of any rank."""

    def __init__(self, rank: SimulatedRank, file: str, without: str) -> None:
        self.number, self.count = rank.number, rank.count
        self._rank, self._file, self._without = rank, file, without
        self.asked: list[Asked] = []
        self.copies = 0

    def of(self, owner: int) -> np.ndarray:
        if not isinstance(owner, int | np.integer) or not 0 <= owner < self.count:
            raise ArgumentError(f"of: {owner!r} is no rank; 0 to {self.count - 1} are")
        return self._rank.of(int(owner), "keys")

    def copy(self, stream: str, to: np.ndarray, source: np.ndarray) -> None:
        if to.shape != source.shape:
            raise ArgumentError(f"copy: {len(source)} rows of keys do not fit into {len(to)}")
        self.copies += 1
        self.note("copy", stream, self.copies, len(source))
        self._rank.copy(stream, to, source, self.copies)

    def barrier(self, stream: str, name: str) -> None:
        self.note("barrier", stream, 0, name)
        if name != self._without:
            self._rank.barrier(stream, name)

    def record(self, stream: str) -> Any:
        event = self._rank.record(_stream(stream))
        self.note("record", stream, 0, event)
        return event

    def wait(self, stream: str, event: Any) -> None:
        if not any(each.what == "record" and each.about is event for each in self.asked):
            raise ArgumentError("wait: this is no event of `rank.record`")
        self.note("wait", stream, 0, event)
        self._rank.wait(stream, event)

    def note(self, what: str, stream: str, step: int, about: Any) -> None:
        """Keep what is asked for, with the program's line."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else None
        self.asked.append(Asked(what, _stream(stream), step, line, about))


class Attention:
    """The kernels of a rank's steps, on the main stream: each merges with those before it by their LSE."""

    def __init__(self, rank: NotedRank, own: SimulatedRank, plan: list[Step], arrays: Sequence[Any]) -> None:
        self._rank, self._own, self._plan = rank, own, plan
        self._q, self._out, self._lse, self._look = arrays
        self._sums = own.empty("out in float32", self._q.shape)
        self._merged = 0

    def step(self, i: int, keys: np.ndarray) -> None:
        """Queue step i: attention of its rows to `keys`, rows of a chunk."""
        if not isinstance(i, int) or not 0 <= i < len(self._plan):
            raise ArgumentError(f"step: {i!r}; 0 to {len(self._plan) - 1} are accepted")
        plan = self._plan[i]
        wanted = plan.keys.stop - plan.keys.start
        if keys.ndim != 5 or len(keys) != wanted:
            raise ArgumentError(
                f"step {i}: {wanted} rows of keys are wanted and {len(keys)} are given: the step has `keys`, "
                "the part of its owner's chunk that is seen"
            )
        for peer in (each for each in range(self._rank.count) if each != self._rank.number):
            if np.shares_memory(keys, self._rank.of(peer)):
                raise ArgumentError(
                    f"step {i}: these keys are in the memory of rank {peer}; keys of this rank are accepted, "
                    "its own or copied ones: a kernel reads each key once per tile of rows"
                )
        rows, first = plan.rows, not self._merged
        self._rank.note("attention", MAIN, i, np.shares_memory(keys, self._rank.of(self._rank.number)))
        before = (self._sums[:, :, rows], self._lse[:, :, rows])
        reads = (self._q[:, :, rows], *_k_and_v(keys), *(() if first else before))
        call = partial(self._attend, i=i, causal=plan.causal)
        self._own.launch(MAIN, "attention", call, reads, before, i)
        self._merged += 1
        if self._merged == len(self._plan):
            self._own.launch(MAIN, "rounding", _assign, (self._sums,), (self._out,), i)

    def _attend(self, reads: tuple, writes: tuple, *, i: int, causal: bool) -> None:
        self._look(i, reads[1])
        Float32().attend(reads, writes, causal=causal, scale=None)


def plan_of(ranks: int, number: int, split: Split | None = None) -> list[Step]:
    """The steps of a rank under a causal mask."""
    return list(steps(split or even(8 * ranks + 3, ranks), number, True))


def run(
    pull: Callable[..., Any], ranks: int, order: Order, rng: np.random.Generator,
    without: str = "", keep: bool = False, done: Done | None = None,
) -> Done:  # fmt: skip
    """Two calls of `pull` on each rank, one after the other, and what came of them.

    without: a barrier that is left out. keep: go on after a hazard. done: what is filled in, so that it can
    be read after an exception too. Raises Hazard, Stuck, ArgumentError for
    an argument that a rank does not take, and what `pull` raises.
    """
    done = done or Done()
    machine = Machine(ranks, order, done.hazards if keep else None)
    split = even(8 * ranks + 3, ranks)
    file, outputs, contents = pull.__code__.co_filename, [], []
    for call in range(CALLS):
        sizes = ((HEADS, split.length), (KV_HEADS, split.length), (KV_HEADS, split.length))
        whole = [rng.standard_normal((1, h, s, HEAD_DIM)).astype(np.float32) for h, s in sizes]
        cut = [[split.cut(each, number) for each in whole] for number in range(ranks)]
        contents.append([k for _, k, _ in cut])
        found = [(np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)) for q, _, _ in cut]
        asked: list[list[Asked]] = []
        done.asked.append(asked)
        for own, (q, k, v), (out, lse) in zip(machine.ranks, cut, found, strict=True):
            rank, plan = NotedRank(own, file, without), plan_of(ranks, own.number, split)
            shape = (split.most_rows, 2, 1, KV_HEADS, HEAD_DIM)
            mine = own.shared("keys", shape, k.dtype)
            buffers = [own.empty(f"buffer {n}", shape, k.dtype) for n in range(BUFFERS)]
            own.launch(MAIN, "filling", _fill, (k, v), (mine[: k.shape[2]],), 0)
            look = partial(_look, done, contents, plan, (call, own.number))
            asked.append(rank.asked)
            pull(rank, plan, buffers, Attention(rank, own, plan, (q, out, lse, look)))
        outputs.append((whole, found))
        machine.next_call()
    machine.run()
    for (q, k, v), found in outputs:
        ref = bounds.reference(q, k, v, True, None)
        out, lse = (split.joined([each[n] for each in found]) for n in range(2))
        for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref)):
            done.margin = min(done.margin, verdict.margin if verdict.passed else 0.0)
    return done


def _look(done: Done, contents: list, plan: list[Step], at: tuple[int, int], i: int, k: np.ndarray) -> None:
    """Note whose keys a step sees, and of which call, by what is in the memory; by its first row, where these
    are not the keys that are due.
    """
    keys, due = plan[i].keys, (plan[i].owner, at[0])
    found = {(owner, call): each for call, some in enumerate(contents) for owner, each in enumerate(some)}
    whole = np.array_equal(found.pop(due)[:, :, keys], k)
    others = [at for at, each in found.items() if np.array_equal(each[:, :, keys.start], k[:, :, 0])]
    done.used[(*at, i)] = due if whole else next(iter(others), None)


def _stream(stream: str) -> str:
    if stream not in (MAIN, SIDE):
        raise ArgumentError(f"stream: {stream!r}; MAIN and SIDE are accepted")
    return stream


def _k_and_v(chunk: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return chunk[:, 0].transpose(1, 2, 0, 3), chunk[:, 1].transpose(1, 2, 0, 3)


def _fill(reads: tuple, writes: tuple) -> None:
    for n, each in enumerate(reads):
        writes[0][:, n] = each.transpose(2, 0, 1, 3)


def _assign(reads: tuple, writes: tuple) -> None:
    writes[0][...] = reads[0]
