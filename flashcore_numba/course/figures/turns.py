"""Blocks that add to the tiles of dQ in a fixed order: who is where at which time."""

from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import CYCLE, INK, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

BLOCKS, HEADS = 8, 3  # blocks of keys of a head, and as many tiles of queries


def times(blocks: int, tiles: int, shifted: bool) -> np.ndarray:
    """The unit of time in which a block adds to a tile, [blocks, tiles]; block 0 is the first of all.

    A block takes a tile per unit of time. To each tile blocks add in one order: by their numbers where
    none is shifted, else from the block that begins there, by falling numbers and round.
    """
    at = np.full((blocks, tiles), -1)
    first = [b * tiles // blocks if shifted else 0 for b in range(blocks)]
    free = [0] * blocks
    turn = np.zeros(tiles, int)  # when the tile is free again
    added = [0] * blocks
    begins = [max(b for b in range(blocks) if first[b] <= tile) for tile in range(tiles)]
    order = [[(begins[t] - n) % blocks if shifted else n for n in range(blocks)] for t in range(tiles)]
    next_of = [0] * tiles
    while min(added) < tiles:
        for b in range(blocks):
            while added[b] < tiles:
                tile = (first[b] + added[b]) % tiles
                if order[tile][next_of[tile]] != b:
                    break
                at[b, tile] = max(free[b], turn[tile])
                free[b] = turn[tile] = at[b, tile] + 1
                next_of[tile] += 1
                added[b] += 1
    return at


def finished(blocks: int, tiles: int, shifted: bool) -> int:
    """Units of time until every block has added to every tile."""
    return int(times(blocks, tiles, shifted).max()) + 1


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """All blocks begin with the first tile, or each with another."""
    frames = (
        _frame("All blocks begin with tile 0", False),
        _frame("Block j begins with tile j, and goes round", True),
        _stairs(),
    )
    return Figure(f"Turns: {BLOCKS} blocks of keys add to {BLOCKS} tiles of dQ", frames)


def _stairs() -> Frame:
    """Several heads one after the other on as many SMs as a head has blocks."""
    end = HEADS * BLOCKS + BLOCKS - 1
    title = f"All blocks begin with tile 0: {HEADS} heads one after the other on {BLOCKS} SMs"
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.09, 0.14, 0.89, 0.74))
    figure.text(0.012, 0.935, title, fontsize=10.5, fontweight="bold")
    for block in range(BLOCKS):
        axes.broken_barh([(0, end)], (block + 0.1, 0.8), fc="white", ec="#BBBBBB", hatch="////", lw=0.5)
        for head in range(HEADS):
            start = head * BLOCKS + block
            axes.broken_barh([(start, BLOCKS)], (block + 0.1, 0.8), fc=CYCLE[head], ec=INK, lw=0.6)
            text = f"head {head}, block {block}"
            axes.text(start + BLOCKS / 2, block + 0.52, text, ha="center", va="center", fontsize=8.5)
    axes.set_xlim(0, end)
    axes.set_ylim(BLOCKS, 0)
    axes.set_yticks([b + 0.5 for b in range(BLOCKS)], [f"SM {b}" for b in range(BLOCKS)])
    axes.set_xlabel("time, in tiles; hatched: nothing to do")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"{title}. A block that begins later need not wait: the staircase is there once, not once per head. "
        f"All is "
        f"done after {end} units of time, where {HEADS * BLOCKS} is the least."
    )
    return Frame(png(figure), caption, caption)


def _frame(title: str, shifted: bool) -> Frame:
    at, end = times(BLOCKS, BLOCKS, shifted), finished(BLOCKS, BLOCKS, False)
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.09, 0.14, 0.89, 0.74))
    figure.text(0.012, 0.935, f"{title}: the tile in each box", fontsize=10.5, fontweight="bold")
    for block in range(BLOCKS):
        start, stop = at[block].min(), at[block].max() + 1
        for wait in ((0, start), (stop, end - stop)):
            axes.broken_barh([wait], (block + 0.1, 0.8), fc="white", ec="#BBBBBB", hatch="////", lw=0.5)
        for tile in range(BLOCKS):
            axes.broken_barh([(at[block, tile], 1)], (block + 0.1, 0.8), fc=CYCLE[tile % len(CYCLE)], ec=INK,
                             lw=0.6)  # fmt: skip
            box = {"fc": "white", "ec": "none", "pad": 1, "alpha": 0.8}
            axes.text(at[block, tile] + 0.5, block + 0.52, str(tile), ha="center", va="center", bbox=box)
    axes.set_xlim(0, end)
    axes.set_ylim(BLOCKS, 0)
    axes.set_yticks([b + 0.5 for b in range(BLOCKS)], [f"block {b}" for b in range(BLOCKS)])
    axes.set_xticks(range(end + 1))
    axes.set_xlabel("time, in tiles; hatched: nothing to do in this head")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    last = finished(BLOCKS, BLOCKS, shifted)
    caption = (
        f"{title}. No two blocks add to a tile at the same time, and the order at each tile is fixed. The "
        f"last "
        f"block is done after {last} units of time."
    )
    rows = "; ".join(f"block {b}: " + ", ".join(map(str, np.argsort(at[b]))) for b in range(BLOCKS))
    return Frame(png(figure), caption, f"{caption} Tiles in the order of time, {rows}.")
