"""What each rank does, way by way, against the interface `Rank`: forward, backward and decoding.

A chunk of keys is [rows, 2, B, H_kv, D], K and V of a row side by side: so the first rows of a chunk are one
contiguous piece of memory, which a copy engine moves at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from flashcore_numba.branches.ring.numerics import (
    Arrays,
    Numerics,
    assign,
    attend_as_they_come,
    attend_pieces,
    merge_parts,
    module_of,
    rows_of,
)
from flashcore_numba.branches.ring.rank import ALSO, MAIN, SIDE, Rank
from flashcore_numba.branches.ring.schedule import comings, steps
from flashcore_numba.branches.ring.sequence import Split
from flashcore_numba.core.errors import UnsupportedError

PIECE_BYTES = 4 << 20
"""`gated` brings the keys of so many heads at once that a copy of their K has no more bytes. Many small
copies take longer than a few large ones; and of many heads together the first ones wait for keys of the last.
"""

FIRST = 4
"""`gather` brings a fourth of the K/V heads first, and the others while it attends to those: what comes last
should be much, because blocks that share little work do not end together.
"""

SLOTS = 3
"""Backward, `pull` has room for so many parts that wait for their owners, who take the part of a step while
the next one computes. With two slots the step after that would begin with a barrier that says so.
"""


Pair = tuple[Any, Any]
"""K and V, or their gradients; or an array and where it comes from."""


@dataclass(frozen=True)
class Layer:
    """What all ranks agree on. scale: of the scores, None is 1 / sqrt(D). numerics: does the arithmetic.
    piece_bytes: of K, how many `gated` brings at once.
    """

    split: Split
    causal: bool
    numerics: Numerics
    scale: float | None = None
    piece_bytes: int = PIECE_BYTES

    @property
    def how(self) -> dict[str, Any]:
        return {"scale": self.scale}


def pull(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """Each step's keys come from their owner by the copy engine, while the step before computes.

    q, out: [B, H, rows, D], k, v: [B, H_kv, rows, D], lse: float32 [B, H, rows], of the rank's own rows. Two
    buffers, two barriers, whatever the number of ranks.
    """
    attention = _Forward(rank, layer, q, out, lse)
    for i, keys in _pulled(rank, layer, k, v):
        attention.step(i, keys)
    attention.finish()
    rank.barrier(SIDE, "end")  # without it an owner may write its next keys while a peer copies these
    rank.wait(MAIN, rank.record(SIDE))  # our next keys are written on the main stream: after the barrier


def gather(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """All keys that the rows see come to their places by the copy engine, some heads at a time: no step, no
    merge. While the keys of the next heads come, those before are attended to.

    Shapes as for `pull`. Every rank has room for K and V of the whole sequence. Heads take turns on two
    streams, so that those which follow fill the SMs that a call leaves idle at its end.
    """
    split, half = layer.split, layer.split.half(rank.number)
    keys = rank.kept(_to_gather, split, layer.causal, tuple(k.shape), k.dtype)
    for place, rows in zip(keys.places, (slice(0, half), slice(half, None)), strict=True):
        rank.launch(MAIN, "filling", _assign_all, (k[:, :, rows], v[:, :, rows]), place, 0)
    # Peers read our keys after the barrier, so they are written before it; and copies begin when the kernels
    # of an earlier call have left their places.
    rank.barrier(MAIN, "start")  # or a copy reads keys that their owner has not written
    rank.wait(SIDE, rank.record(MAIN))
    rank.wait(ALSO, rank.record(MAIN))
    if layer.causal:
        first, second = (split.bounds[piece + 1] for piece in split.pieces(rank.number))
        call = partial(attend_pieces, numerics=layer.numerics, half=half, ends=(first, second), **layer.how)
    else:
        call = partial(layer.numerics.attend, causal=False, **layer.how)
    group = q.shape[1] // k.shape[1]
    for i, (heads, copies, seen) in enumerate(keys.groups):
        for place, source in copies:
            rank.copy(SIDE, place, source, i)
        stream, of_heads = (MAIN, ALSO)[i % 2], slice(heads.start * group, heads.stop * group)
        rank.wait(stream, rank.record(SIDE))  # or it reads keys that have not come
        reads = (q[:, of_heads], *seen)
        rank.launch(stream, "attention", call, reads, (out[:, of_heads], lse[:, of_heads]), i)
    rank.wait(MAIN, rank.record(ALSO))  # or the caller reads rows that are still computed
    rank.barrier(SIDE, "end")  # or an owner writes its next keys while a peer copies these
    rank.wait(MAIN, rank.record(SIDE))  # on which our next keys are written


def gated(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """One launch over all keys that the rows see. It begins with the rank's own, while the others come by the
    copy engine, and waits for each piece when it needs it: nothing is merged, and work of all sizes is dealt
    out at once.

    Shapes as for `pull`. Every rank has room for K and V of the whole sequence. Raises UnsupportedError where
    the stage does not wait for keys.
    """
    layer.numerics.check_waits()
    split, (batch, kv_heads, _, dim) = layer.split, k.shape
    half = split.half(rank.number)
    own, coming = comings(split, rank.number, layer.causal)
    whole = rank.shared("all keys", (2, batch, kv_heads, split.length, dim), k.dtype)
    word = rank.word("the number of each head's first key", kv_heads)
    first = coming[0].place.stop if coming else 0
    # Falls with each piece. It rises after the launch that looked at it before, and before the signals of
    # this call: with the number of an earlier call, keys would be used that have not come.
    rank.signal(MAIN, word, first, 0)
    rows = (slice(half, None), slice(0, half)) if layer.causal else (slice(None),)
    for piece, which in zip(own, rows, strict=True):
        place = whole[..., piece.place, :]
        rank.launch(MAIN, "filling", _assign_all, (k[:, :, which], v[:, :, which]), tuple(place), 0)
    rank.barrier(MAIN, "start")  # or copies read keys that their owner has not written
    rank.wait(SIDE, rank.record(MAIN))  # and copies begin when earlier kernels have left their places
    # Copies are queued before the launch that waits for them: nothing that holds up the host, or takes both
    # from one queue, can keep them from beginning.
    most = max((piece.place.stop - piece.place.start for piece in coming), default=0)
    together = min(kv_heads, max(1, layer.piece_bytes // max(1, batch * most * dim * k.dtype.itemsize)))
    for end in range(kv_heads, 0, -together):  # the launch begins with the last heads
        heads = slice(max(0, end - together), end)
        for i, piece in enumerate(coming, start=1):
            source = rank.of(piece.owner, "all keys")[:, :, heads, piece.source]
            rank.copy(SIDE, whole[:, :, heads, piece.place], source, i)
            following = coming[i].place.stop if i < len(coming) else 0  # own keys may be between
            rank.signal(SIDE, word[heads], following, i)  # after the copy: a stream works in order
    ends = (own[1].place.stop, own[0].place.stop) if layer.causal else None
    call = partial(attend_as_they_come, numerics=layer.numerics, half=half, ends=ends, **layer.how)
    seen = whole[:, :, :, : own[0].place.stop]
    rank.launch(MAIN, "attention", call, (q,), (out, lse), 0, late=tuple(seen), word=word)
    rank.barrier(SIDE, "end")  # or an owner's next keys overwrite these under the copies
    rank.wait(MAIN, rank.record(SIDE))  # or our next call writes them before that barrier


def ring(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """Chunks go round from neighbour to neighbour, one step ahead of the computation; see `pull`."""
    shape = _chunk_shape(layer.split, k.shape)
    mine, buffers = rank.empty("keys", shape, k.dtype), _buffers(rank, shape, k.dtype)
    plan = steps(layer.split, rank.number, layer.causal)
    rank.launch(MAIN, "filling", _assign_all, (k, v), _k_and_v(mine[: k.shape[2]]), 0)
    rank.wait(SIDE, rank.record(MAIN))  # our keys are written, and earlier calls have left the buffers
    attention = _Forward(rank, layer, q, out, lse)
    left: list[Any] = []
    held = mine
    for i, step in enumerate(plan):
        arrived, coming = None, buffers[(i + 1) % 2]
        if i + 1 < len(plan):
            if i > 1:
                rank.wait(SIDE, left[i - 1])  # or what arrives overwrites keys that step i - 1 still reads
            before, after = _neighbours(rank)
            rank.exchange(SIDE, held, before, coming, after, i + 1)
            arrived = rank.record(SIDE)
        attention.step(i, _k_and_v(held[step.keys]))
        left.append(rank.record(MAIN))
        if arrived is not None:
            # Or the next step reads keys that are still on their way, and our next call writes keys that are
            # still being sent: the event is past both halves of the exchange.
            rank.wait(MAIN, arrived)
            held = coming
    attention.finish()


def ulysses(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """Rows for heads: a rank gets all rows of its share of the heads, computes, and gives them back.

    Shapes as for `pull`. Raises UnsupportedError where N does not divide H_kv, or the rows that a rank holds
    do not follow each other.
    """
    _check_shares(rank, layer, k)
    wide_q, wide_k, wide_v = (_to_heads(rank, layer, name, x) for name, x in (("q", q), ("k", k), ("v", v)))
    wide_out = rank.empty("out of some heads", wide_q.shape, q.dtype)
    wide_lse = rank.empty("LSE of some heads", wide_q.shape[:3])
    call = partial(layer.numerics.attend, causal=layer.causal, **layer.how)
    rank.launch(MAIN, "attention", call, (wide_q, wide_k, wide_v), (wide_out, wide_lse), 0)
    _to_rows(rank, layer, "out", wide_out, out)
    _to_rows(rank, layer, "LSE", wide_lse[..., None], lse[..., None])


def ring_backward(
    rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dq: Any, dk: Any, dv: Any
) -> None:
    """The gradients: dK and dV go round with their chunk, and are home after N steps.

    out, lse: over all keys, as the forward pass gave them: with those of one chunk the weights of the others
    would be missing in dS. dout, dq: like q. dk, dv: like k and v. They are summed in float32.
    """
    shape = _chunk_shape(layer.split, k.shape)
    mine, buffers = rank.empty("keys", shape, k.dtype), _buffers(rank, shape, k.dtype)
    plan, (before, after) = steps(layer.split, rank.number, layer.causal), _neighbours(rank)
    sums = [rank.empty(f"gradients {i}", shape) for i in range(2)]
    part = rank.empty("gradients of a step", shape)
    rank.launch(MAIN, "filling", _assign_all, (k, v), _k_and_v(mine[: k.shape[2]]), 0)
    gradients = _Backward(rank, layer, q, out, lse, dout)
    rank.wait(SIDE, rank.record(MAIN))  # our keys are written, and earlier calls have left the buffers
    held, brought, taken, total = mine, None, None, sums[0]
    for i, step in enumerate(plan):
        arrived, coming = None, buffers[(i + 1) % 2]
        if i + 1 < len(plan):
            if taken is not None:
                rank.wait(SIDE, taken)  # or what arrives overwrites keys that step i - 1 still reads
            rank.exchange(SIDE, held, before, coming, after, i + 1)
            arrived = rank.record(SIDE)
        gradients.step(i, _k_and_v(held[step.keys]), _k_and_v(part[step.keys]))
        total = sums[i % 2]
        if brought is None:
            rank.launch(MAIN, "zeroing", _zero, (), (total,), i)
        else:
            rank.wait(MAIN, brought)  # or the part is added to sums that are still on their way
        summed = total[step.keys]
        rank.launch(MAIN, "adding gradients", _add, (part[step.keys], summed), (summed,), i)
        taken = rank.record(MAIN)
        rank.wait(SIDE, taken)  # or sums leave without this step's part
        if rank.count > 1:
            # The chunk goes on to `before`, and the sums with it; after the last step it is at home there.
            total = sums[(i + 1) % 2]
            rank.exchange(SIDE, sums[i % 2], before, total, after, i + 1)
            brought = rank.record(SIDE)
        if arrived is not None:
            rank.wait(MAIN, arrived)  # or the next step reads keys that are still on their way
            held = coming
    if brought is not None:
        rank.wait(MAIN, brought)  # or gradients are given out that have not come home
    gradients.give_out(_k_and_v(total[: k.shape[2]]), dq, dk, dv)


def pull_backward(
    rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dq: Any, dk: Any, dv: Any
) -> None:
    """The gradients, as `ring_backward`: keys come from their owner as in `pull`, and each step's part of dK
    and dV waits, in float32, in memory of the rank that made it until the owner pulls it.

    An owner adds its own part first, then those of the ranks before it, the nearest first: no sum depends on
    who was faster. N barriers: one before the keys, and one per step whose part goes to another rank.
    """
    parts = rank.kept(_to_collect, layer.split, layer.causal, tuple(k.shape))
    gradients = _Backward(rank, layer, q, out, lse, dout)
    added = None

    def collect(j: int) -> None:
        """Add the part of our chunk that another rank made at step j."""
        nonlocal added
        came, source, sums = parts.came[j]
        if added is not None:
            rank.wait(SIDE, added)  # or the copy overwrites a part that is still added
        rank.copy(SIDE, came, source, j)
        rank.wait(MAIN, rank.record(SIDE))  # or a part is added that is still on its way
        rank.launch(MAIN, "adding gradients", _add, (came, sums), (sums,), j)
        added = rank.record(MAIN)

    written = None

    def announce() -> None:
        """Tell all ranks that the parts of a step are there, and learn it of theirs."""
        rank.wait(SIDE, written)  # or the barrier tells of a part that is not written yet
        rank.barrier(SIDE, "parts")  # or peers copy it before it is written

    for i, keys in _pulled(rank, layer, k, v):
        # The keys of step i + 1 are on their way already, and need not wait for the barrier. In the slot of
        # this step was the part of step i - SLOTS. Its owner has taken it before the barrier of step
        # i - SLOTS + 1, and the part that we added last came after that.
        if i > 1:
            announce()
        gradients.step(i, keys, parts.made[i])
        written = rank.record(MAIN)
        if i > 1:
            collect(i - 1)  # while this step computes
    if rank.count > 1:
        announce()
        collect(rank.count - 1)
    gradients.give_out(parts.home, dq, dk, dv)


def ulysses_backward(
    rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, dq: Any, dk: Any, dv: Any
) -> None:
    """The gradients, as `ring_backward`: a rank gets all rows of its share of the heads, goes back as one GPU
    would, and gives the gradients of the rows to their ranks. Raises as `ulysses` does.
    """
    _check_shares(rank, layer, k)
    given = {"q": q, "k": k, "v": v, "out": out, "dout": dout}
    wide = {name: _to_heads(rank, layer, name, x) for name, x in given.items()}
    wide_lse = _to_heads(rank, layer, "LSE", lse[..., None])[..., 0]
    made = [rank.empty(f"d{name} of some heads", wide[name].shape) for name in ("q", "k", "v")]
    rank.launch(MAIN, "zeroing", _zero, (), (made[0],), 0)
    call = partial(layer.numerics.backward, causal=layer.causal, **layer.how)
    reads = (*(wide[name] for name in ("q", "k", "v", "out")), wide_lse, wide["dout"], made[0])
    rank.launch(MAIN, "the backward pass", call, reads, made, 0)
    for name, x, target in zip(("dq", "dk", "dv"), made, (dq, dk, dv), strict=True):
        _to_rows(rank, layer, name, x, target)


def decode(rank: Rank, layer: Layer, q: Any, k: Any, v: Any, out: Any, lse: Any) -> None:
    """A few query tokens over keys that all ranks hold together: each attends to its own, and all merge.

    q, out: [B, H, tokens, D] and lse: the same tokens on every rank. k, v: [B, H_kv, keys, D], a rank's share
    of the keys, in the order of the ranks; some may have none. Under a causal mask the last rank holds at
    least as many keys as there are tokens. What travels is out and LSE in float32: D + 1 numbers per row.

    Raises UnsupportedError where the causal mask would hide keys of a rank before the last.
    """
    last, keys = rank.number == rank.count - 1, k.shape[2]
    check_newest(rank.number, rank.count, layer.causal, q.shape[2], keys)
    part_out, part_lse = rank.empty("part of out", q.shape), rank.empty("part of LSE", q.shape[:3])
    call = partial(layer.numerics.attend, causal=layer.causal and last, **layer.how)
    rank.launch(MAIN, "attention", call if keys else _nothing, (q, k, v), (part_out, part_lse), 0)
    one = rank.empty("part", (*q.shape[:3], q.shape[3] + 1))
    rank.launch(MAIN, "packing", _pack, (part_out, part_lse), (one,), 0)
    every = rank.empty("parts", (rank.count, *one.shape))
    rank.all_gather(MAIN, every, one)
    rank.launch(MAIN, "merging", merge_parts, (every,), (out, lse), 0)


def check_newest(number: int, count: int, causal: bool, tokens: int, keys: int) -> None:
    """Raise UnsupportedError where the last rank of `decode` does not hold the keys of all tokens."""
    if causal and number == count - 1 and keys < tokens:
        raise UnsupportedError(
            f"the last rank holds {keys} keys: with causal=True it must hold those of all {tokens} tokens"
        )


FORWARD: dict[str, Callable[..., None]] = {
    "gated": gated,
    "gather": gather,
    "pull": pull,
    "ring": ring,
    "ulysses": ulysses,
}
"""The ways of the forward pass, by name."""

BACKWARD: dict[str, Callable[..., None]] = {
    "pull": pull_backward,
    "ring": ring_backward,
    "ulysses": ulysses_backward,
}
"""The ways of the backward pass, by name."""


class _Forward:
    """The kernels of a rank's steps: each merges with those before it, the last one writes the output."""

    def __init__(self, rank: Rank, layer: Layer, q: Any, out: Any, lse: Any) -> None:
        self.rank, self.layer = rank, layer
        self.plan = steps(layer.split, rank.number, layer.causal)
        self.q, self.out, self.lse = q, out, lse
        self.sums = rank.kept(_rows_of_steps, "out in float32", layer.split, layer.causal, tuple(q.shape))

    def step(self, i: int, keys: Pair) -> None:
        """Attention of the rows of step i to its keys."""
        rows, last = self.plan[i].rows, i + 1 == len(self.plan)
        before = self.sums[i], rows_of(self.lse, rows)
        written = rows_of(self.out, rows) if last else before[0], before[1]
        reads = (rows_of(self.q, rows), *keys, *(before if i else ()))
        call = partial(self.layer.numerics.attend, causal=self.plan[i].causal, **self.layer.how)
        self.rank.launch(MAIN, "attention", call, reads, written, i)

    def finish(self) -> None:
        """Output rows which the last step has not written."""
        first = self.plan[-1].rows.start
        if first:
            rest = self.sums[0][:, :, :first], self.out[:, :, :first]
            self.rank.launch(MAIN, "rounding", _assign_all, rest[:1], rest[1:], len(self.plan))


class _Backward:
    """The kernels of a rank's steps: each adds to dQ, and writes its part of dK and dV."""

    def __init__(self, rank: Rank, layer: Layer, q: Any, out: Any, lse: Any, dout: Any) -> None:
        self.rank, self.layer = rank, layer
        self.plan = steps(layer.split, rank.number, layer.causal)
        self.q, self.out, self.lse, self.dout = q, out, lse, dout
        self.dq = rank.kept(_rows_of_steps, "dQ in float32", layer.split, layer.causal, tuple(q.shape))
        rank.launch(MAIN, "zeroing", _zero, (), (self.dq[0],), 0)
        if any(step.rows.start for step in self.plan):
            late = lse[:, :, layer.split.half(rank.number) :]
            self.late_lse = rank.empty("LSE of the second piece", tuple(late.shape))  # contiguous for kernels
            rank.launch(MAIN, "packing", _assign_all, (late,), (self.late_lse,), 0)

    def step(self, i: int, keys: Pair, part: Pair) -> None:
        """The backward pass of the rows of step i over its keys. part: of dK and dV, of these keys."""
        rows, dq = self.plan[i].rows, self.dq[i]
        lse = self.late_lse if rows.start else self.lse
        reads = rows_of(self.q, rows), *keys, rows_of(self.out, rows), lse, rows_of(self.dout, rows), dq
        call = partial(self.layer.numerics.backward, causal=self.plan[i].causal, **self.layer.how)
        self.rank.launch(MAIN, "the backward pass", call, reads, (dq, *part), i)

    def give_out(self, home: Pair, dq: Any, dk: Any, dv: Any) -> None:
        """Write the gradients in the types of q, k and v. home: dK and dV of our own keys."""
        self.rank.launch(MAIN, "giving out", _assign_all, (*home, self.dq[0]), (dk, dv, dq), len(self.plan))


def _pulled(rank: Rank, layer: Layer, k: Any, v: Any) -> Iterator[tuple[int, Pair]]:
    """Each step's number and keys, which come from their owner by the copy engine while the step before
    computes; what reads them is queued on the main stream before the next ones are asked for.
    """
    chunks = rank.kept(_to_pull, layer.split, layer.causal, tuple(k.shape), k.dtype)
    rank.launch(MAIN, "filling", _assign_all, (k, v), chunks.mine, 0)
    # Peers read our keys after the barrier, so they are written before it; and copies begin when the kernels
    # of an earlier call have left the buffers.
    rank.wait(SIDE, rank.record(MAIN))
    rank.barrier(SIDE, "start")  # without it a copy may read keys that their owner has not written
    left: list[Any] = []  # events: the kernel of a step has read its keys
    for i, keys in enumerate(chunks.held):
        arrived = None
        if i + 1 < len(chunks.held):
            if i > 1:
                rank.wait(SIDE, left[i - 1])  # or the copy overwrites keys that step i - 1 still reads
            buffer, source = chunks.copies[i + 1]
            rank.copy(SIDE, buffer, source, i + 1)
            arrived = rank.record(SIDE)
        yield i, keys
        left.append(rank.record(MAIN))
        if arrived is not None:
            rank.wait(MAIN, arrived)  # or the next step reads keys that are still on their way


# What a rank keeps from call to call: memory and views of it.


class _Chunks(NamedTuple):
    """mine: where our own K and V go. held: K and V that each step reads. copies: which chunk or part of it
    comes before each step: (to, source), none before the first.
    """

    mine: Pair
    held: list[Pair]
    copies: dict[int, Pair]


def _to_pull(rank: Rank, split: Split, causal: bool, shape: tuple[int, ...], dtype: Any) -> _Chunks:
    """shape: of k."""
    of_chunk = _chunk_shape(split, shape)
    mine, buffers = rank.shared("keys", of_chunk, dtype), _buffers(rank, of_chunk, dtype)
    found = _Chunks(_k_and_v(mine[: shape[2]]), [], {})
    for i, step in enumerate(steps(split, rank.number, causal)):
        held = mine if i == 0 else buffers[i % 2]
        found.held.append(_k_and_v(held[step.keys]))
        if i > 0:
            found.copies[i] = buffers[i % 2][step.keys], rank.of(step.owner, "keys")[step.keys]
    return found


class _Parts(NamedTuple):
    """made: where each step writes its part of dK and dV. came: for each step of which a part comes, where
    that goes, where it comes from, and the sums to which it is added. home: the sums of dK and dV.
    """

    made: list[Pair]
    came: dict[int, tuple[Any, Any, Any]]
    home: Pair


def _to_collect(rank: Rank, split: Split, causal: bool, shape: tuple[int, ...]) -> _Parts:
    """shape: of k."""
    of_chunk, slots = _chunk_shape(split, shape), max(1, min(SLOTS, rank.count - 1))
    parts = rank.shared("parts", (slots, *of_chunk))
    total, came = rank.empty("gradients", of_chunk), rank.empty("a part that came", of_chunk)
    found = _Parts([], {}, _k_and_v(total[: shape[2]]))
    for j, step in enumerate(steps(split, rank.number, causal)):
        found.made.append(_k_and_v((parts[j % slots] if j else total)[step.keys]))
        if j > 0:
            giver = (rank.number - j) % rank.count
            keys = steps(split, giver, causal)[j].keys
            found.came[j] = came[keys], rank.of(giver, "parts")[j % slots][keys], total[keys]
    return found


class _Gathered(NamedTuple):
    """places: where K and V of each of our pieces go. groups: heads that are attended to at once, the copies
    that bring their keys, (to, source), and K and V that the rows see.
    """

    places: list[Pair]
    groups: list[tuple[slice, list[Pair], Pair]]


def _to_gather(rank: Rank, split: Split, causal: bool, shape: tuple[int, ...], dtype: Any) -> _Gathered:
    """shape: of k."""
    batch, kv_heads, _, dim = shape
    pieces = split.pieces(rank.number)
    whole = rank.shared("keys of the sequence", (2, batch, kv_heads, split.length, dim), dtype)
    seen = split.bounds[pieces[1] + 1] if causal else split.length
    found = _Gathered([tuple(whole[..., _of_piece(split, piece), :]) for piece in pieces], [])
    first = -(-kv_heads // FIRST)
    for heads in (slice(0, first), slice(first, kv_heads))[: 1 + (first < kv_heads)]:
        copies = []
        # All first pieces, then the second ones, of which a causal mask shows those of later owners, who come
        # first: no rank is ahead of the others, and no two pull from one at a time.
        for half, step in product(range(2), range(1, rank.count)):
            owner = (rank.number + step) % rank.count
            piece = split.pieces(owner)[half]
            if split.bounds[piece] < seen:
                part = (slice(None), slice(None), heads, _of_piece(split, piece))
                copies.append((whole[part], rank.of(owner, "keys of the sequence")[part]))
        found.groups.append((heads, copies, tuple(whole[:, :, heads, :seen])))
    return found


def _rows_of_steps(rank: Rank, name: str, split: Split, causal: bool, shape: tuple[int, ...]) -> list[Any]:
    """The rows that each step sees of float32 memory of q's shape; the first one sees them all."""
    whole = rank.empty(name, shape)
    return [rows_of(whole, step.rows) for step in steps(split, rank.number, causal)]


def _k_and_v(chunk: Any) -> tuple[Any, Any]:
    """[rows, 2, B, H_kv, D] as K and V, [B, H_kv, rows, D] each, without a copy."""
    return chunk[:, 0].swapaxes(0, 1).swapaxes(1, 2), chunk[:, 1].swapaxes(0, 1).swapaxes(1, 2)


def _of_piece(split: Split, piece: int) -> slice:
    """Where a piece is in the sequence."""
    return slice(split.bounds[piece], split.bounds[piece + 1])


def _neighbours(rank: Rank) -> tuple[int, int]:
    """The rank before, to which chunks go, and the one after, from which they come."""
    return (rank.number - 1) % rank.count, (rank.number + 1) % rank.count


def _chunk_shape(split: Split, shape: tuple[int, ...]) -> tuple[int, ...]:
    """[most rows, 2, B, H_kv, D]: room for the keys of any rank. shape: of k."""
    batch, heads, _, dim = shape
    return split.most_rows, 2, batch, heads, dim


def _buffers(rank: Rank, shape: tuple[int, ...], dtype: Any) -> list[Any]:
    return [rank.empty(f"buffer {i}", shape, dtype) for i in range(2)]


def _check_shares(rank: Rank, layer: Layer, k: Any) -> None:
    """Raise UnsupportedError where rows cannot be exchanged for heads."""
    if layer.split.zigzag and rank.count > 1:
        raise UnsupportedError("way='ulysses' needs zigzag=False: it attends to the sequence in its order")
    if k.shape[1] % rank.count:
        raise UnsupportedError(
            f"way='ulysses' needs a number of K/V heads that {rank.count} ranks divide: k has {k.shape[1]}; "
            "way='ring' takes any"
        )


def _to_heads(rank: Rank, layer: Layer, name: str, x: Any) -> Any:
    """All rows of this rank's share of the heads of x [B, H, rows, D]."""
    split, (batch, heads, rows, dim) = layer.split, x.shape
    share, everywhere = heads // rank.count, range(rank.count)
    sent = rank.empty(f"{name} to send", (heads, batch, rows, dim), x.dtype)
    came = rank.empty(f"{name} received", (share * batch * split.length * dim,), x.dtype)
    wide = rank.empty(f"{name} of some heads", (batch, share, split.length, dim), x.dtype)
    rank.launch(MAIN, "packing", _assign_all, (x.swapaxes(0, 1),), (sent,), 0)
    sizes = [share * batch * split.rows(r) * dim for r in everywhere]
    rank.all_to_all(MAIN, came, sizes, sent.reshape(-1), [share * batch * rows * dim] * rank.count)
    rank.launch(MAIN, "unpacking", partial(_rows_from_parts, split=split), (came,), (wide,), 0)
    return wide


def _to_rows(rank: Rank, layer: Layer, name: str, wide: Any, x: Any) -> None:
    """The way back of `_to_heads`: into x [B, H, rows, D]."""
    split, (batch, heads, rows, dim) = layer.split, x.shape
    share = heads // rank.count
    sent = rank.empty(f"{name} to send", (share * batch * split.length * dim,), x.dtype)
    came = rank.empty(f"{name} received", (heads, batch, rows, dim), x.dtype)
    rank.launch(MAIN, "packing", partial(_parts_from_rows, split=split), (wide,), (sent,), 0)
    sizes = [share * batch * split.rows(r) * dim for r in range(rank.count)]
    rank.all_to_all(MAIN, came.reshape(-1), [share * batch * rows * dim] * rank.count, sent, sizes)
    rank.launch(MAIN, "unpacking", _assign_all, (came.swapaxes(0, 1),), (x,), 0)


def _parts(flat: Any, wide: Any, split: Split) -> "list[tuple[Any, Any]]":
    """Each rank's rows of wide [B, share, S, D], and where they are in `flat`: [share, B, rows, D]."""
    batch, share, _, dim = wide.shape
    found, begin, first = [], 0, 0
    for rank in range(split.ranks):
        rows = split.rows(rank)
        size = share * batch * rows * dim
        part = flat[begin : begin + size].reshape(share, batch, rows, dim).swapaxes(0, 1)
        found.append((part, wide[:, :, first : first + rows]))
        begin, first = begin + size, first + rows
    return found


def _rows_from_parts(reads: Arrays, writes: Arrays, split: Split) -> None:
    for part, rows in _parts(reads[0], writes[0], split):
        rows[...] = part


def _parts_from_rows(reads: Arrays, writes: Arrays, split: Split) -> None:
    for part, rows in _parts(writes[0], reads[0], split):
        part[...] = rows


def _assign_all(reads: Arrays, writes: Arrays) -> None:
    for each, target in zip(reads, writes, strict=True):
        assign(target, each)


def _zero(reads: Arrays, writes: Arrays) -> None:
    writes[0][...] = 0


def _add(reads: Arrays, writes: Arrays) -> None:
    module_of(reads[0]).add(reads[0], reads[1], out=writes[0])


def _pack(reads: Arrays, writes: Arrays) -> None:
    writes[0][..., :-1], writes[0][..., -1] = reads


def _nothing(reads: Arrays, writes: Arrays) -> None:
    """Attention to no keys."""
    writes[0][...], writes[1][...] = 0, float("-inf")
