"""When which block of stage 13 runs: a model of a GPU that gives each free place the next block of the
grid.
"""

import heapq
from typing import Any

import numpy as np

from flashcore_numba.core.mask import Mask
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.course.figures.canvas import BLUE, CYCLE, INK, ORANGE, PURPLE, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage
from flashcore_numba.stages.tuning.stage13_tiles import TILES

ORDERS = ("in order", "longest first", "persistent")
SHAPE, SM_COUNT = "4x32x4096x64", 132
SMALL_PLACES, SMALL_ROWS, SMALL_HEADS = 4, 6, 3  # of the first two frames


def work(shape: Shape, order: str) -> np.ndarray:
    """The steps of each block under a causal mask in the order of the grid: large tiles, no splits.

    A step is one tile of keys; a block with more rows in front of it has more of them.
    """
    row_tiles, row_warps, key_warps, keys, _, _ = TILES[shape.head_dim]["large"]
    rows, step = 16 * row_tiles * row_warps, key_warps * keys
    mask = Mask(shape.seq, shape.seq, right=0)
    tiles = (mask.tiles(first, first + rows - 1, step) for first in range(0, shape.seq, rows))
    steps = [end - begin for begin, end in tiles]
    heads = shape.batch * shape.heads
    if order == "in order":
        return np.tile(steps, heads)  # the row tiles of a head, then the next head
    return np.repeat(steps[::-1], heads)  # the last row tile of all heads, then the one before


def ends(steps: np.ndarray, places: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    """(place, time at which it starts, in steps) of each block; a block starts where a place is free first.

    Persistent: place p takes the pieces p, p + places, ... whether another is free earlier or not.
    """
    place, start = np.zeros(len(steps), int), np.zeros(len(steps))
    free = [(0.0, p) for p in range(places)]
    times = np.zeros(places)
    for n, length in enumerate(steps):
        if order == "persistent":
            at, p = times[n % places], n % places
            times[p] += length
        else:
            at, p = heapq.heappop(free)
            heapq.heappush(free, (at + length, p))
        place[n], start[n] = p, at
    return place, start


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A few blocks on four places, one order a frame; then the whole grid of a causal problem."""
    few = [_few(order) for order in ORDERS[:2]]
    return Figure("Schedules of causal blocks, in a model", (*few, _whole()), telling=2)


def _few(order: str) -> Frame:
    tiles = np.arange(1, SMALL_ROWS + 1)
    steps = np.tile(tiles, SMALL_HEADS) if order == "in order" else np.repeat(tiles[::-1], SMALL_HEADS)
    place, start = ends(steps, SMALL_PLACES, order)
    finish, total = (start + steps).max(), int(steps.sum())
    figure = paper(8.6, 3.4)
    axes = figure.add_axes((0.09, 0.2, 0.88, 0.62))
    heading = f"{SMALL_HEADS} heads of {SMALL_ROWS} row tiles on {SMALL_PLACES} places, {order}"
    figure.text(0.012, 0.91, heading, fontsize=10.5, fontweight="bold")
    for p, at, length in zip(place, start, steps, strict=True):
        colour = CYCLE[(length - 1) % len(CYCLE)]
        axes.broken_barh([(at, length)], (p + 0.08, 0.84), fc=colour, ec=INK, lw=0.8)
        axes.text(at + length / 2, p + 0.53, str(length), ha="center", va="center", fontsize=9)
    axes.axvline(total / SMALL_PLACES, color=INK, linestyle=":", linewidth=1.3)
    axes.set_xlim(0, total / SMALL_PLACES + 8)
    axes.set_ylim(SMALL_PLACES, 0)
    axes.set_yticks(np.arange(SMALL_PLACES) + 0.5, np.arange(SMALL_PLACES))
    axes.set_ylabel("place on the GPU")
    axes.set_xlabel("time in steps; dotted: the work divided evenly")
    caption = f"The number is a block's steps. The last block ends at {finish:.0f}; evenly it would be "
    caption += f"{total / SMALL_PLACES:.2f}."
    return Frame(png(figure), caption, f"{heading}: {caption}")


def _whole() -> Frame:
    shape = parse(SHAPE)
    places = TILES[shape.head_dim]["large"][4] * SM_COUNT
    figure = paper(8.6, 4.2)
    axes = figure.add_axes((0.09, 0.14, 0.88, 0.74))
    heading = f"{SHAPE} causal on {places} places, the end of the launch"
    figure.text(0.012, 0.935, heading, fontsize=10.5, fontweight="bold")
    said, even = [], 0.0
    for order, colour, style in zip(ORDERS, (ORANGE, BLUE, PURPLE), ("--", "-", "-."), strict=True):
        steps = work(shape, order)
        _, start = ends(steps, places, order)
        even = steps.sum() / places
        stop = start + steps
        times = np.arange(0, stop.max() + 2)
        busy = np.searchsorted(np.sort(start), times, "right") - np.searchsorted(
            np.sort(stop), times, "right"
        )
        label = f"{order}: ends at {stop.max():.0f}"
        axes.step(times, busy, where="post", color=colour, linestyle=style, linewidth=1.8, label=label)
        said.append(f"{order} {stop.max():.0f} steps, {stop.max() / even:.3f} times the even share")
    axes.axvline(even, color=INK, linestyle=":", linewidth=1.3)
    axes.set_xlim(0.8 * even, None)
    axes.set_ylim(0, 1.05 * places)
    axes.set_xlabel(f"time in steps; dotted: the work divided evenly, {even:.0f}")
    axes.set_ylabel("places at work")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    caption = "In the model: " + "; ".join(said) + "."
    return Frame(png(figure), caption, f"{heading}. {caption}")
