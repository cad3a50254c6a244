"""A set of lanes: who they are, and the mask that says who takes part.

A mask is a vector of booleans, one per lane; None stands for everybody and `NOBODY` for an empty set, so that
code without divergence costs nothing.
"""

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from flashcore_numba.simulator.control import NOBODY, Frame, Mask
from flashcore_numba.simulator.rules import Value

if TYPE_CHECKING:
    from flashcore_numba.simulator.group import Group

WARP = 32


def _index(position: Any) -> Any:
    """A thread's or block's coordinate, which is an int32."""
    return np.asarray(position, np.int32)[()]


class LaneSet:
    """`n` lanes of the blocks of `group`, in whole warps: lanes beyond a block's end never take part, nor
    those that `only` does not mark.
    """

    def __init__(
        self, group: "Group", tid: np.ndarray, block: np.ndarray, only: np.ndarray | None = None
    ) -> None:
        launch = group.launch
        self.group, self.launch = group, launch
        self.n = len(tid)
        self.tid, self.block = tid, block  # number in the block; index into group.blocks
        bx, by, bz = launch.block
        real = tid < bx * by * bz if only is None else only
        self.everyone = None if real.all() else real
        self.mask: Any = self.everyone
        self.gone: Any = None  # lanes that left by return, break or continue
        self.top: Frame | None = None
        self.scope: Any = self.mask  # the lanes for which variables must keep a value
        self.types: dict = (
            launch.types
        )  # (context, point) -> the types that values of different paths unify to
        self.context: tuple = ()  # the call of a device function under way, with the types of its arguments
        self.divided_at: list[int] = []  # lines of the branches that divide the active lanes now
        self.index_cache: dict = {}
        self.whole = np.ones(self.n, bool)
        self.whole.flags.writeable = False
        self.visits: dict[str, int] = {}  # label of a probe -> how often these lanes came to it
        self.ids = (block * launch.padded + tid).astype(np.int64)
        self.warp_syncs = np.zeros(self.n, np.int64)  # syncwarp calls since the last barrier
        self.acquired = np.zeros(self.n, bool)  # lanes that have waited for others since the last barrier
        self.known_syncs: Any = None  # [lanes, WARP]: those of its warp's lanes that each lane knows of
        self.empty: Mask = None  # lanes to which the last call returned no value
        self.merging: Any = None  # the accesses of one instruction to several arrays
        self.nan_sites = np.full(self.n, -1)  # where each lane first made a NaN
        self.epoch = np.zeros(self.n, np.int64)  # barriers that only some of the blocks have passed
        gx, gy, gz = launch.grid
        alone = (block == block[0]).all()
        number = group.blocks[int(block[0])] if alone else np.asarray(group.blocks)[block]
        self.block_number = np.broadcast_to(number, self.n)
        self.threadIdx = SimpleNamespace(
            x=_index(tid % bx if bx > 1 else 0),
            y=_index(tid // bx % by if by > 1 else 0),
            z=_index(tid // (bx * by) if bz > 1 else 0),
        )
        self.blockIdx = SimpleNamespace(
            x=_index(number % gx if gx > 1 else 0),
            y=_index(number // gx % gy if gy > 1 else 0),
            z=_index(number // (gx * gy) if gz > 1 else 0),
        )

    def some(self) -> bool:
        """Is any lane active?"""
        return self.mask is not NOBODY

    def active(self) -> np.ndarray:
        return self.whole if self.mask is None else self.mask

    def with_active(self, lanes: Mask) -> np.ndarray:
        """These lanes, of which there are none where it is None, and the active ones."""
        return self.active() if lanes is None else lanes | self.active()

    def without(self, mask: Mask, drop: Mask) -> Mask:
        """The lanes of mask that are not in drop."""
        if drop is None or mask is NOBODY:
            return mask
        left = ~drop if mask is None else mask & ~drop
        return left if np.count_nonzero(left) else NOBODY

    @property
    def exited(self) -> Mask:
        """The lanes that have left the kernel; None while there are none."""
        return self.top.returned if self.top else None

    def who(self, lane: int) -> str:
        """How a report names a lane."""
        return self.launch.thread_name(self.group.blocks[self.block[lane]], int(self.tid[lane]))

    def first(self, lanes: np.ndarray) -> tuple[int, int]:
        """The block and the thread of the first of these lanes."""
        lane = int(np.flatnonzero(lanes)[0])
        return self.group.blocks[self.block[lane]], int(self.tid[lane])

    def whom(self, lanes: np.ndarray) -> str:
        """The first of these lanes, and how many there are: of those that run together, if not all do."""
        together = self.n if self.everyone is None else int(self.everyone.sum())
        some = "at least " * (together < math.prod(self.launch.grid) * math.prod(self.launch.block))
        return f"{self.who(int(np.flatnonzero(lanes)[0]))}; {some}{int(lanes.sum())} thread(s)"

    def per_warp(self, x: Value) -> np.ndarray:
        """A value as one row per warp."""
        return np.broadcast_to(x, self.n).reshape(-1, WARP)
