"""A sequence that several GPUs hold, in three functions: who holds what, who sees what, who waits for whom.

They are those of `branches.ring`, for the causal mask, with less around them: `Split.pieces`,
`schedule.steps` and `programs.pull`.
"""

from typing import Any

from flashcore_numba.branches.ring.rank import MAIN, SIDE


# fmt: off
# <exercise>
def pieces(number: int, ranks: int) -> tuple[int, int]:
    """The two pieces of a rank."""
    return number, 2 * ranks - 1 - number  # one early, with few keys to see, and one late


def seen(number: int, owner: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which of our pieces of rows see which pieces of keys of another rank."""
    return ((1,), (0, 1)) if owner > number else ((0, 1), (0,))


def pull(rank: Any, plan: list, buffers: list, attention: Any) -> None:
    """Queue the steps of a rank, and the copies of the keys that they need."""
    rank.wait(SIDE, rank.record(MAIN))
    rank.barrier(SIDE, "start")  # without it a copy may read keys that their owner has not written
    left: list[Any] = []
    for i, step in enumerate(plan):
        held = rank.of(rank.number) if i == 0 else buffers[i % 2]
        if i + 1 < len(plan):
            following, coming = plan[i + 1], buffers[(i + 1) % 2]
            if i > 1:
                rank.wait(SIDE, left[i - 1])  # or the copy overwrites keys that step i - 1 still reads
            rank.copy(SIDE, coming[following.keys], rank.of(following.owner)[following.keys])
            arrived = rank.record(SIDE)
        attention.step(i, held[step.keys])
        left.append(rank.record(MAIN))
        if i + 1 < len(plan):
            rank.wait(MAIN, arrived)  # or the next step reads keys that are still on their way
    rank.barrier(SIDE, "end")  # without it an owner may write its next keys while a peer copies these
    rank.wait(MAIN, rank.record(SIDE))
# </exercise>
# fmt: on
