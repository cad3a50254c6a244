"""What a launch did, kept for pictures: which lanes touched which elements, and met at which barriers."""

from dataclasses import dataclass

import numpy as np

from flashcore_numba.simulator.access import Access
from flashcore_numba.simulator.line_counts import OPS
from flashcore_numba.simulator.masks import LaneSet
from flashcore_numba.simulator.memory import SHARED
from flashcore_numba.simulator.problems import Site

WARP = 32


@dataclass(frozen=True)
class Event:
    """One recorded warp instruction, of all lanes that ran together: all vectors have one entry per lane.

    `op` is load, store or atomic; `element` then numbers the first element of `array` (flat, in shared memory
    within the block) that a lane touches, and `width` how many neighbours. Or `op` is barrier, syncwarp,
    shuffle or vote, which touch no memory: `space` and `array` are empty, `itemsize`, `width` and `element`
    zero. `active` marks the lanes that take part; `warp` is their warp's number in the block.
    """

    site: Site
    op: str
    space: str
    array: str
    itemsize: int
    width: int
    element: np.ndarray
    active: np.ndarray
    block: np.ndarray
    thread: np.ndarray

    @property
    def warp(self) -> np.ndarray:
        return self.thread // WARP


def event(access: Access, sites: list[Site]) -> Event:
    """The event of an access, in elements of its own array or block."""
    lanes, memory = access.lanes, access.memory
    element = np.broadcast_to(access.element, lanes.n)
    if memory.space == SHARED:
        element = element % memory.block_size
    return Event(
        site=sites[access.site],
        op=OPS[access.op],
        space=memory.space,
        array=memory.name,
        itemsize=memory.itemsize,
        width=access.width,
        element=element,
        active=np.ones(lanes.n, bool) if access.mask is None else access.mask,
        block=lanes.block_number,
        thread=lanes.tid,
    )


def meeting(op: str, site: int, lanes: LaneSet, sites: list[Site]) -> Event:
    """The event of a barrier, syncwarp, shuffle or vote."""
    return Event(
        site=sites[site],
        op=op,
        space="",
        array="",
        itemsize=0,
        width=0,
        element=np.zeros(lanes.n, np.int64),
        active=lanes.active(),
        block=lanes.block_number,
        thread=lanes.tid,
    )
