"""Time lines without a GPU: of a `Machine`, whose clock is the number of stamps that it has passed."""

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np

from flashcore_numba.branches.ring.checking import drawn
from flashcore_numba.branches.ring.machine import Machine, Order
from flashcore_numba.branches.ring.numerics import Float32
from flashcore_numba.branches.ring.programs import BACKWARD, FORWARD, Layer
from flashcore_numba.branches.ring.sequence import even
from flashcore_numba.branches.ring.stamps import Stamped
from flashcore_numba.branches.ring.timeline import told
from flashcore_numba.records import ring_timeline

GPU = {"name": "Imaginary GPU"}
START = SimpleNamespace(elapsed_time=lambda ticks: ticks / 1e3)  # of a clock whose ticks are microseconds


def of_machine(way: str, ranks: int = 2, causal: bool = True, backward: bool = False) -> Any:
    """(inputs, split, what each rank wrote, its pieces as a record has them) of one call."""
    ticks = count(1)
    machine, split = Machine(ranks, Order("transfers late")), even(8 * ranks, ranks, way != "ulysses")
    x = drawn(np.random.default_rng(3), (1, 2 * ranks, ranks, split.length, 16), causal and way != "ulysses")
    layer, through, written = Layer(split, x.causal, Float32()), [], []
    for rank in machine.ranks:
        q, k, v = (split.cut(each, rank.number) for each in (x.q, x.k, x.v))
        out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
        through.append(Stamped(rank, lambda: float(next(ticks))))
        if backward:
            gradients = [np.full_like(each, np.nan) for each in (q, k, v)]
            BACKWARD[way](through[-1], layer, q, k, v, np.zeros_like(q), np.zeros_like(lse), q, *gradients)
            written.append(gradients)
        else:
            FORWARD[way](through[-1], layer, q, k, v, out, lse)
            written.append([out, lse])
    machine.run()
    return x, split, written, [[told(piece, START) for piece in each.pieces] for each in through]


def made_up(way: str = "pull", ranks: int = 2, backward: bool = False, **changes: Any) -> dict[str, Any]:
    """A record of that call, beside two that are shorter and longer."""
    *_, pieces = of_machine(way, ranks, backward=backward)
    ends = [max(each["end_us"] for each in of_rank if each["stream"] == "main") for of_rank in pieces]
    calls = [
        [{"us": end * factor, "pieces": each} for factor in (2.0, 1.0, 0.5)]
        for end, each in zip(ends, pieces, strict=True)
    ]
    topology = {"gpus": ranks, "peer_access": True}
    made = ring_timeline.record(
        "1x8/2x1024x64", True, way, backward, calls, [9.0, 8.0, 7.0], 5, GPU, topology, right=True, ahead=True
    )
    return made | {"commit": "0" * 40, "dirty": False} | changes
