"""Values read out of a running kernel: what its variables hold at one line, and nothing else changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.simulator.control import UNDEFINED
from flashcore_numba.simulator.memory import Choice, LocalArray, View
from flashcore_numba.simulator.problems import Fault


def probe(label: str, *values: Any) -> None:
    """Write `probe("tile", m, l)` in a kernel's source: the simulator keeps the values in `Launch.probes`.

    It counts nothing, reports nothing and takes no part in the race check, so the rest of the launch is as if
    it were not there. Only the simulator knows it; elsewhere the call does nothing.
    """


@dataclass(frozen=True)
class Probed:
    """One execution of a probe by a group of lanes; every vector has one entry per lane.

    `visit` counts from 0 how often these lanes came to a probe of this label. `active` marks the lanes that
    came. A value is an array of lanes, [..., lanes] for a local array, or None where it cannot be computed: a
    variable not yet assigned, an index out of bounds.
    """

    label: str
    visit: int
    block: np.ndarray
    thread: np.ndarray
    active: np.ndarray
    values: tuple[np.ndarray | None, ...]


def take(lanes: Any, label: str, values: tuple[Callable[[], Any], ...]) -> None:
    """Evaluate each value for `lanes` with counters and reports off, and keep them in the launch."""
    launch = lanes.launch
    visit = lanes.visits.get(label, 0)
    lanes.visits[label] = visit + 1
    saved = launch.counting, launch.quiet
    launch.counting, launch.quiet = False, True
    try:
        found = tuple(_vector(value, lanes.n) for value in values)
    finally:
        launch.counting, launch.quiet = saved
    launch.probes.append(Probed(label, visit, lanes.block_number, lanes.tid, lanes.active().copy(), found))


def _vector(compute: Callable[[], Any], lanes: int) -> np.ndarray | None:
    try:
        value = compute()
    except (Fault, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError):
        return None
    if isinstance(value, LocalArray):
        return value.data.copy()
    if value is UNDEFINED or value is None or isinstance(value, View | Choice | tuple | str):
        return None
    return np.broadcast_to(value, lanes).copy()
