"""Which bytes of which sectors the 32 lanes of one request touch, line by line of the kernel."""

from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import BLUE, GREY, ORANGE, lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.figures.recording import WARP, Line, Recording, record
from flashcore_numba.simulator.count import SECTOR, sectors_of
from flashcore_numba.stages import Stage

LINES = 8  # frames at most
# What each lesson is about: array and access of the frame that comes first.
FIRST = {1: ("q", "load"), 2: ("scores", "store"), 3: ("k", "load"), 4: ("k", "load")}


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each source line that touches global memory: the request of block 0 that moves most."""
    recording = record(stage)
    lines = recording.lines("global")
    about = FIRST.get(lesson.number, ("k", "load"))
    lines.sort(key=lambda line: ((line.array, line.op) != about, -int(line.sectors().sum())))
    frames = tuple(_frame(recording, line) for line in lines[:LINES])
    return Figure(f"Warp by sector: {whose}", frames)


def _frame(recording: Recording, line: Line) -> Frame:
    sectors, used = line.sectors(), line.used()
    worst = int(np.argmax(sectors))
    n, needed, moved = int(sectors[worst]), int(used[worst]), int(sectors[worst]) * SECTOR
    elements, warp = line.elements[worst], int(line.warps[worst])
    heading = line.heading(recording.file)
    total = f"{line.in_all()}: {sectors.sum():,} sectors, {sectors.mean():.1f} a request."
    figure = paper(8.6, 5.6)
    figure.text(0.012, 0.965, heading, family="DejaVu Sans Mono", fontsize=10)
    figure.text(0.012, 0.925, line.one_request(warp))
    _map(figure.add_axes((0.075, 0.1, 0.66, 0.79)), elements, line.itemsize)
    _sums(figure.add_axes((0.77, 0.1, 0.215, 0.79)), n, needed, moved)
    lanes = int((elements >= 0).sum())
    alt = (
        f"{heading}. One request of warp {warp}: {lanes} lanes use {needed} bytes of {line.array} in "
        f"{several(n, 'sector')} of 32 bytes, so {moved} bytes move and "
        f"{needed / moved:.0%} of them are used. "
        f"{_pattern(sectors_of(elements, line.itemsize))} {total}"
    )
    caption = f"{line.what(recording.file)}. {total}{recording.note()}"
    return Frame(png(figure), caption, alt)


def _pattern(sectors: np.ndarray) -> str:
    found, lanes = np.unique(sectors[sectors >= 0], return_counts=True)
    if len(found) == 1:
        return f"All {lanes[0]} lanes meet in one sector."
    many = f"{lanes.min()}" if lanes.min() == lanes.max() else f"{lanes.min()} to {lanes.max()}"
    apart = np.diff(found)
    where = "next to each other" if (apart == 1).all() else f"up to {apart.max() * SECTOR} bytes apart"
    return f"Each sector serves {many} {'lane' if many == '1' else 'lanes'}; the sectors lie {where}."


def _map(axes: Any, elements: np.ndarray, itemsize: int) -> None:
    sectors = sectors_of(elements, itemsize)
    touched = np.unique(sectors[sectors >= 0])
    column = {int(sector): k for k, sector in enumerate(touched)}
    bytes_used = np.zeros((len(touched), SECTOR), bool)
    axes.set_xlim(0, len(touched))
    axes.set_ylim(WARP + 2.6, 0)
    for lane, element in enumerate(elements):
        if element < 0:
            continue
        k, first = column[int(sectors[lane])], int(element) * itemsize % SECTOR
        bytes_used[k, first : first + itemsize] = True
        width = max(itemsize / SECTOR, len(touched) / 250)
        axes.broken_barh([(k + first / SECTOR, width)], (lane + 0.08, 0.84), color=BLUE)
    for k, used in enumerate(bytes_used):
        axes.broken_barh([(k, 1)], (WARP + 0.9, 1.4), facecolor="#FBE3B0", edgecolor=ORANGE, hatch="////")
        for start in np.flatnonzero(used & ~np.r_[False, used[:-1]]):
            stop = start + int(np.argmin(np.r_[used[start:], False]))
            axes.broken_barh([(k + start / SECTOR, (stop - start) / SECTOR)], (WARP + 0.9, 1.4), color=BLUE)
    for k in range(len(touched) + 1):
        apart = 0 < k < len(touched) and touched[k] - touched[k - 1] > 1
        axes.axvline(k, color="#777777" if apart else "#BBBBBB", linewidth=1.3 if apart else 0.6, zorder=0)
    axes.hlines(np.arange(WARP + 1), 0, len(touched), color=GREY, linewidth=0.5, zorder=0)
    step = -(-len(touched) * max(2, len(str(touched[-1]))) // 48)
    axes.set_xticks(np.arange(0, len(touched), step) + 0.5, [str(sector) for sector in touched[::step]])
    axes.set_yticks([*np.arange(0, WARP, 4) + 0.5, WARP - 0.5, WARP + 1.6], [*range(0, WARP, 4), 31, "all"])
    axes.tick_params(length=0)
    axes.set_xlabel("sectors of 32 bytes that move, by their number in the array")
    axes.set_ylabel("lane", labelpad=1)


def _sums(axes: Any, sectors: int, used: int, moved: int) -> None:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.text(0, 0.97, f"{sectors}", fontsize=30, va="top", fontweight="bold")
    axes.text(0, 0.82, "sector in this request" if sectors == 1 else "sectors in this request", va="top")
    axes.text(0, 0.66, f"{moved:,} bytes move", va="bottom")
    axes.barh(0.615, 1, height=0.06, facecolor="#FBE3B0", edgecolor=ORANGE, hatch="////")
    axes.text(0, 0.48, f"{used:,} bytes are used: {used / moved:.0%}", va="bottom")
    axes.barh(0.435, used / moved, height=0.06, color=BLUE)
    key = "hatched: what moves\nblue: what a lane uses\ndark lines: other sectors\nlie between"
    axes.text(0, 0.27, key, va="top", linespacing=1.5)
