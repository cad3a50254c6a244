"""The ways backward: what they move, and that no bit depends on who is faster."""

from typing import Any

import numpy as np
import pytest

from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.ring.checking import drawn, gradients
from flashcore_numba.branches.ring.machine import Order, SimulatedRank, orders
from flashcore_numba.branches.ring.sequence import even

LATE = Order("transfers late")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that each copy and exchange receives."""
    found: list[int] = []
    copy, exchange = SimulatedRank.copy, SimulatedRank.exchange

    def counted_copy(self: Any, stream: str, to: Any, source: Any, step: int) -> None:
        found.append(to.nbytes)
        copy(self, stream, to, source, step)

    def counted_exchange(self: Any, stream: str, send: Any, to: int, receive: Any, *rest: int) -> None:
        found.append(receive.nbytes)
        exchange(self, stream, send, to, receive, *rest)

    monkeypatch.setattr(SimulatedRank, "copy", counted_copy)
    monkeypatch.setattr(SimulatedRank, "exchange", counted_exchange)
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_that_move(rng: np.random.Generator, moved: list[int], ranks: int, causal: bool) -> None:
    """As the page on the ring has it, of all ranks together: C elements are the keys of a rank, without V."""
    x = backward_inputs(drawn(rng, (1, 4, 2, 8 * ranks, 16), causal), rng)
    elements, key_bytes = 2 * 8 * 16, x.forward.q.itemsize
    share = 3 / 4 if causal else 1  # half of a chunk, as often as all of it
    chunk = 2 * elements * (key_bytes + 4)
    gradients("pull", even(8 * ranks, ranks), [x], LATE)
    assert sum(moved) == ranks * (ranks - 1) * share * chunk
    moved.clear()
    gradients("ring", even(8 * ranks, ranks), [x], LATE)
    assert sum(moved) == ranks * ((ranks - 1) * chunk + 2 * elements * 4)


@pytest.mark.parametrize("ranks", [1, 2, 5, 7])
def test_every_order_gives_the_same_bits(rng: np.random.Generator, ranks: int) -> None:
    """Three calls, of which the second one has another mask, so that other halves of slots are written."""
    split = even(4 * ranks + 1, ranks)
    shape = (1, 4, 2, split.length, 16)
    calls = [backward_inputs(drawn(rng, shape, causal), rng) for causal in (True, False, True)]
    first, *others = (gradients("pull", split, calls, order) for order in orders(ranks, rng))
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
