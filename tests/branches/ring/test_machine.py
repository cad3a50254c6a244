"""Ranks in one process: what is ordered passes, what is not is named, whatever the order of the run."""

from collections.abc import Callable

import numpy as np
import pytest

from flashcore_numba.branches.ring.machine import Hazard, Machine, Order, SimulatedRank, Stuck, orders
from flashcore_numba.branches.ring.rank import MAIN, SIDE


def put(value: float) -> Callable[..., None]:
    def function(reads: tuple, writes: tuple) -> None:
        writes[0][...] = value

    return function


def take(into: list[float]) -> Callable[..., None]:
    def function(reads: tuple, writes: tuple) -> None:
        into.append(float(reads[0][0]))

    return function


def publish(rank: SimulatedRank, value: float) -> np.ndarray:
    mine = rank.shared("keys", (4,))
    rank.launch(MAIN, "filling", put(value), (), (mine,), 0)
    return mine


def copied(
    rank: SimulatedRank, value: float, seen: list[float], *, start: bool, end: bool, arrival: bool
) -> None:
    """Each rank copies its neighbour's keys."""
    publish(rank, value)
    rank.wait(SIDE, rank.record(MAIN))
    if start:
        rank.barrier(SIDE, "start")
    buffer = rank.empty("buffer", (4,))
    rank.copy(SIDE, buffer, rank.of((rank.number + 1) % rank.count, "keys"), 1)
    if arrival:
        rank.wait(MAIN, rank.record(SIDE))
    rank.launch(MAIN, "attention", take(seen), (buffer,), (), 1)
    if end:
        rank.barrier(SIDE, "end")
        rank.wait(MAIN, rank.record(SIDE))


def run(order: Order, **barriers: bool) -> list[list[float]]:
    machine, seen = Machine(3, order), [[], [], []]
    for call in range(2):
        for rank in machine.ranks:
            copied(rank, 10 * call + rank.number, seen[rank.number], **barriers)
        machine.next_call()
    machine.run()
    return seen


EVERY_ORDER = orders(3, np.random.default_rng(1))


@pytest.mark.parametrize("order", EVERY_ORDER, ids=lambda order: order.name)
def test_what_is_ordered_passes(order: Order) -> None:
    assert run(order, start=True, end=True, arrival=True) == [[1, 11], [2, 12], [0, 10]]


@pytest.mark.parametrize("order", EVERY_ORDER, ids=lambda order: order.name)
@pytest.mark.parametrize(
    "missing, kind, told",
    [
        (
            "start",
            "start barrier",
            r"rank \d, step 1: the copy reads keys of rank (\d), and no barrier before it says that rank \1 "
            "has written them",
        ),
        (
            "end",
            "end barrier",
            r"rank (\d) writes keys of rank \1 for its next call, while the copy of rank \d, step 1, may "
            "still read them",
        ),
        (
            "arrival",
            "arrival",
            r"rank \d, step 1: attention uses buffer, and nothing waits until the copy of step 1",
        ),
    ],
)
def test_what_is_missing_is_named_in_every_order(order: Order, missing: str, kind: str, told: str) -> None:
    present = dict.fromkeys(("start", "end", "arrival"), True)
    with pytest.raises(Hazard, match=told) as caught:
        run(order, **present | {missing: False})
    assert caught.value.kind == kind
    assert caught.value.buffer == ("buffer" if missing == "arrival" else "keys")
    assert len(set(caught.value.ranks)) == (1 if missing == "arrival" else 2)


def test_a_copy_leaves_nan_until_it_ends_and_reads_late() -> None:
    """Without any check of the order, a late copy shows both: what the checks name is real."""
    machine, seen = Machine(1, Order("late")), []
    (rank,) = machine.ranks
    machine.access = lambda *_, **__: None  # type: ignore[method-assign]
    source = publish(rank, 1)
    buffer = rank.empty("buffer", (4,))
    rank.wait(SIDE, rank.record(MAIN))
    rank.copy(SIDE, buffer, source, 1)
    rank.launch(MAIN, "attention", take(seen), (buffer,), (), 1)
    rank.launch(MAIN, "filling", put(2), (), (source,), 1)
    machine.run()
    assert np.isnan(seen[0]) and buffer[0] == 2


def test_reuse_and_two_launches_are_named() -> None:
    machine = Machine(1, Order("late"))
    (rank,) = machine.ranks
    buffer, source = rank.empty("buffer 1", (4,)), rank.empty("keys", (4,))
    rank.launch(MAIN, "filling", put(0), (), (source,), 0)
    rank.launch(MAIN, "attention", take([]), (buffer,), (), 1)
    rank.copy(SIDE, buffer, rank.empty("other", (4,)), 3)
    with pytest.raises(
        Hazard, match="rank 0, step 3: the copy writes buffer 1, while attention of step 1 may"
    ):
        machine.run()
    machine = Machine(1, Order("late"))
    (rank,) = machine.ranks
    buffer = rank.empty("sums", (4,))
    rank.launch(MAIN, "filling", put(0), (), (buffer,), 0)
    rank.launch(SIDE, "adding", put(0), (), (buffer,), 2)
    with pytest.raises(Hazard, match="one of them writes, and nothing orders the two") as caught:
        machine.run()
    assert caught.value.kind == "order"


def test_what_a_peer_still_reads_is_named() -> None:
    """In one call, after a barrier that tells of the first contents alone."""
    machine = Machine(2, Order("late"))
    for rank in machine.ranks:
        mine = publish(rank, 1)
        rank.barrier(MAIN, "start")
        rank.wait(SIDE, rank.record(MAIN))
        rank.copy(SIDE, rank.empty("buffer", (4,)), rank.of(1 - rank.number, "keys"), 1)
        rank.launch(MAIN, "filling", put(2), (), (mine,), 4)
    told = (
        "step 4: filling writes keys of rank .*, while the copy of rank .*, step 1, may still read them: no"
    )
    with pytest.raises(Hazard, match=told) as caught:
        machine.run()
    assert caught.value.kind == "early write"


def test_parts_that_do_not_overlap_are_no_hazard() -> None:
    machine = Machine(1, Order("late"))
    (rank,) = machine.ranks
    buffer = rank.empty("sums", (4, 2))
    rank.launch(MAIN, "filling", put(0), (), (buffer[:, 0],), 0)
    rank.launch(SIDE, "filling", put(1), (), (buffer[:, 1],), 0)
    machine.run()
    assert np.array_equal(buffer, [[0, 1]] * 4)


def test_what_waits_for_ever_says_for_whom() -> None:
    machine = Machine(3, Order("late"))
    for rank in machine.ranks[:2]:
        rank.barrier(SIDE, "start")
    with pytest.raises(Stuck, match="rank 0, side stream: the barrier at the start, for rank 2; rank 1"):
        machine.run()


def test_an_input_cannot_be_written_and_an_output_is_nan_before() -> None:
    def spoil(reads: tuple, writes: tuple) -> None:
        assert np.isnan(writes[0]).all()
        reads[0][...] = 0

    machine = Machine(1, Order("late"))
    (rank,) = machine.ranks
    rank.launch(MAIN, "spoiling", spoil, (np.ones(4),), (np.ones(4),), 0)
    with pytest.raises(ValueError, match="read-only"):
        machine.run()


def test_a_delayed_rank_works_last(rng: np.random.Generator) -> None:
    done: list[int] = []
    for order in (Order("1", delayed=1), Order("1", delayed=1, rng=rng)):
        machine = Machine(3, order)
        for rank in machine.ranks:
            for _ in range(3):
                work = lambda reads, writes, number=rank.number: done.append(number)  # noqa: E731
                rank.launch(MAIN, "work", work, (), (), 0)
        machine.run()
        assert done[-3:] == [1, 1, 1] and 1 not in done[-9:-3]


@pytest.mark.parametrize("order", EVERY_ORDER, ids=lambda order: order.name)
def test_exchanges_go_to_the_right_rank_in_order(order: Order) -> None:
    machine = Machine(3, order)
    received = []
    for rank in machine.ranks:
        first, second = (np.full(2, 10 * i + rank.number, np.float32) for i in range(2))
        came = [rank.empty(f"came {i}", (2,)) for i in range(2)]
        after, before = (rank.number + 1) % 3, (rank.number - 1) % 3
        for i, each in enumerate((first, second)):
            machine.own(rank.number, "sent", each)
            rank.exchange(SIDE, each, after, came[i], before, i)
        received.append(came)
    machine.run()
    assert [[int(each[0]) for each in came] for came in received] == [[2, 12], [0, 10], [1, 11]]


def test_who_receives_does_not_know_that_the_sender_is_through() -> None:
    """Rank 1 has its data, and overwrites what rank 0 may still be receiving into."""
    machine = Machine(2, Order("late"))
    one, other = machine.ranks
    target = one.shared("keys", (2,))
    sent = [rank.empty("sent", (2,)) for rank in machine.ranks]
    for rank in machine.ranks:
        rank.launch(SIDE, "filling", put(rank.number), (), (sent[rank.number],), 0)
    one.exchange(SIDE, sent[0], 1, target, 1, 1)
    other.exchange(SIDE, sent[1], 0, other.empty("came", (2,)), 0, 1)
    other.copy(SIDE, other.empty("copied", (2,)), target, 2)
    with pytest.raises(Hazard, match="no barrier before it says that rank 0 has written them"):
        machine.run()


def brought(
    order: Order, *, reset: str = MAIN, copy_first: bool = True, told: tuple[int, ...] = (4, 0)
) -> list:
    """Rank 0 launches over 8 keys of rank 1, which come 4 at a time, in each of two calls."""
    machine, seen = Machine(2, order), []
    for call in range(2):
        for rank in machine.ranks:
            mine = rank.shared("keys", (8, 1))
            rank.launch(MAIN, "filling", put(call + 1), (), (mine,), 0)
        one = machine.ranks[0]
        room, word = one.empty("room", (8, 1)), one.word("number", 1)
        one.signal(reset, word, 8, 0)
        for rank in machine.ranks:
            rank.barrier(MAIN, "start")
            rank.wait(SIDE, rank.record(MAIN))
        for i, first in enumerate((4, 0)):
            if copy_first:
                one.copy(SIDE, room[first : first + 4], one.of(1, "keys")[first : first + 4], i)
            if i < len(told):
                one.signal(SIDE, word, told[i], i)
            if not copy_first:
                one.copy(SIDE, room[first : first + 4], one.of(1, "keys")[first : first + 4], i)
        one.launch(
            MAIN,
            "attention",
            lambda reads, _: seen.append(reads[0].sum()),
            (),
            (),
            0,
            late=(room,),
            word=word,
        )
        for rank in machine.ranks:
            rank.barrier(SIDE, "end")
            rank.wait(MAIN, rank.record(SIDE))
        machine.next_call()
    machine.run()
    return seen


@pytest.mark.parametrize("order", orders(2, np.random.default_rng(2)), ids=lambda order: order.name)
class TestKeysThatComeUnderALaunch:
    def test_in_their_order(self, order: Order) -> None:
        assert brought(order) == [8, 16]
        assert brought(order, told=(5, 0)) == [8, 16]  # later than it could be

    def test_told_before_they_have_come(self, order: Order) -> None:
        with pytest.raises(Hazard, match="room"):
            brought(order, copy_first=False)
        with pytest.raises(Hazard, match="room"):
            brought(order, told=(0, 0))

    def test_a_number_that_rises_under_a_launch(self, order: Order) -> None:
        with pytest.raises(Hazard, match="use number, one of them writes, and nothing orders the two"):
            brought(order, reset=SIDE)

    def test_never_told(self, order: Order) -> None:
        with pytest.raises(Stuck, match="rank 0, main stream: attention, for key 3"):
            brought(order, told=(4,))
