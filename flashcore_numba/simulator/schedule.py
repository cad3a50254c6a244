"""How the warps of a block take turns."""

import numpy as np

from .cuda import Arrival, reduce_block
from .group import Group
from .lanes import Lanes

__all__ = ["lockstep", "take_turns"]

WARP = 32


def _numbers(group: Group, padded: int):
    """For each lane of the group its number in the block and the block's index in the group."""
    blocks = len(group.blocks)
    return np.tile(np.arange(padded), blocks), np.repeat(np.arange(blocks), padded)


def lockstep(launch, group: Group, entry, values: list):
    """All lanes of all blocks of the group together."""
    entry(Lanes(group, *_numbers(group, launch.padded)), *values)


def take_turns(launch, group: Group, entry, values: list):
    """Each warp runs alone to its next barrier; the order of the warps is the adversary's choice."""
    tid, block = _numbers(group, launch.padded)
    starts = range(0, len(tid), WARP)
    warps = [Lanes(group, tid[i : i + WARP], block[i : i + WARP]) for i in starts]
    running: dict = {}
    replies: dict = {}
    ready = list(range(len(warps)))
    while ready:
        ready.sort(reverse=launch.reverse)
        if launch.random:
            launch.random.shuffle(ready)
        waiting: dict[int, Arrival] = {}
        for w in ready:
            try:
                if w in running:
                    waiting[w] = running[w].send(replies[w])
                    continue
                result = entry(warps[w], *values)
                if entry.is_generator:
                    running[w] = result
                    waiting[w] = next(result)
            except StopIteration:
                pass
        if waiting:
            replies = _release(launch, warps, waiting)
        ready = list(waiting)
        group.end_epoch()


def _release(launch, warps: list[Lanes], waiting: dict[int, Arrival]) -> dict:
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
