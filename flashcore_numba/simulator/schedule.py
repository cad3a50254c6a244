"""How the warps of a block take turns, and the blocks where one waits for another."""

import math
from typing import TYPE_CHECKING

import numpy as np

from flashcore_numba.simulator.group import Group
from flashcore_numba.simulator.intrinsics import Arrival, Waiting, reduce_block
from flashcore_numba.simulator.lanes import Lanes
from flashcore_numba.simulator.rewrite import VectorFunction

if TYPE_CHECKING:
    from flashcore_numba.simulator.launch import Launch

WARP = 32


def _numbers(group: Group, padded: int) -> tuple[np.ndarray, np.ndarray]:
    """For each lane of the group its number in the block and the block's index in the group."""
    blocks = len(group.blocks)
    return np.tile(np.arange(padded), blocks), np.repeat(np.arange(blocks), padded)


def lockstep(launch: "Launch", group: Group, entry: VectorFunction, values: list) -> None:
    """All lanes of all blocks of the group together."""
    entry(Lanes(group, *_numbers(group, launch.padded)), *values)


class Block:
    """A block under way: each warp runs alone to its next barrier, or until it waits for others in a loop."""

    def __init__(self, launch: "Launch", number: int, counting: bool) -> None:
        self.launch, self.counting = launch, counting
        self.group = launch.group = Group(launch, [number])
        tid, block = _numbers(self.group, launch.padded)
        starts = range(0, len(tid), WARP)
        warps = [(tid[i : i + WARP], block[i : i + WARP]) for i in starts]
        if launch.split:  # each lane by itself
            threads = math.prod(launch.block)
            parts = [(*warp, np.arange(WARP) == lane) for warp in warps for lane in range(WARP)]
            self.warps = [Lanes(self.group, *part) for part in parts if part[0][part[2]][0] < threads]
        else:
            self.warps = [Lanes(self.group, *warp) for warp in warps]
        self.running: dict = {}
        self.replies: dict = {}
        self.arrived: dict[int, Arrival] = {}
        self.ready = list(range(len(self.warps)))
        self.stuck: Waiting | None = None  # where a warp waits, if nobody can go on

    def run(self, entry: VectorFunction, values: list) -> None:
        """Give every warp that can go on a turn; the order is the adversary's choice."""
        launch, self.stuck = self.launch, None
        launch.counting, launch.group = self.counting, self.group
        self.ready.sort(reverse=launch.reverse)
        if launch.random:
            launch.random.shuffle(self.ready)
        waiting: dict[int, Waiting] = {}
        changes, others = launch.changes, False
        for w in self.ready:
            try:
                if w in self.running:
                    reply = self.running[w].send(self.replies.pop(w, None))
                else:
                    result = entry(self.warps[w], *values)
                    if not entry.is_generator:
                        continue
                    self.running[w] = result
                    reply = next(result)
            except StopIteration:
                others = True
                continue
            if isinstance(reply, Waiting):
                waiting[w] = reply
                others |= not reply.idle
            else:
                self.arrived[w] = reply
                others = True
        self.ready = list(waiting)
        if waiting:
            if launch.changes == changes and not others:
                self.stuck = max(waiting.values(), key=lambda waits: waits.divided)
            return
        if self.arrived:
            self.replies = _release(launch, self.warps, self.arrived)
        self.ready, self.arrived = list(self.arrived), {}
        self.group.end_epoch()


def take_turns(launch: "Launch", blocks: list[tuple[bool, int]], entry: VectorFunction, values: list) -> None:
    """The blocks one after another, in the order of the launch; one that waits for others stays, and the next
    begins.
    """
    under_way: list[Block] = []
    rest = list(blocks) if launch.reverse else list(reversed(blocks))
    if launch.random:
        launch.random.shuffle(rest)
    try:
        _run_blocks(launch, rest, under_way, entry, values)
    finally:
        for block in under_way:
            launch.group = block.group
            block.group.finish()


def _run_blocks(
    launch: "Launch",
    rest: list[tuple[bool, int]],
    under_way: list[Block],
    entry: VectorFunction,
    values: list,
) -> None:
    while rest or under_way:
        if all(block.stuck for block in under_way):
            if not rest:
                launch.deadlock([block.stuck for block in under_way if block.stuck])
            counting, number = rest.pop()
            under_way.append(Block(launch, number, counting))
        changes = launch.changes
        for block in list(under_way):
            block.run(entry, values)
            if not block.ready:
                under_way.remove(block)
                block.group.finish()
        if launch.changes != changes:
            for block in under_way:
                block.stuck = None


def _release(launch: "Launch", warps: list[Lanes], waiting: dict[int, Arrival]) -> dict:
    """All warps that still run wait: check that it is at one barrier, and compute what it returns."""
    places = sorted({arrival.site for arrival in waiting.values()})
    if len(places) > 1:
        one, two = ([w for w in sorted(waiting) if waiting[w].site == place] for place in places[:2])
        text = f"warps {one} wait at one, warps {two} at the other"
        launch.problem("divergent barrier", places[0], places[1], text, fatal=True)
    if len(waiting) < len(warps):
        left = [w for w in range(len(warps)) if w not in waiting]
        text = f"warps {left} have already left the kernel"
        launch.problem("barrier after exit", places[0], None, text)
    name = next(iter(waiting.values())).name
    if name == "syncthreads":
        return dict.fromkeys(waiting)
    order = sorted(waiting)
    votes = np.concatenate([np.broadcast_to(waiting[w].predicate, WARP) for w in order])
    here = np.concatenate([waiting[w].here for w in order])
    return dict.fromkeys(waiting, np.repeat(reduce_block(name, votes[None], here[None]), WARP))
