"""The 32 banks of shared memory under one request: which lane meets which bank, and in which wavefront."""

from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import BLUE, CYCLE, GREY, VERMILION, lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.figures.recording import WARP, Line, Recording, record
from flashcore_numba.simulator.count import BANKS, WORD, turns_of
from flashcore_numba.stages import Stage

LINES = 6  # frames at most


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each source line that touches shared memory: the request of block 0 that takes longest."""
    recording = record(stage)
    lines = recording.lines("shared")
    lines.sort(key=lambda line: -int(line.wavefronts()[0].sum()))
    title = f"Shared-memory banks: {whose}"
    if not lines:
        return Figure(title, (_nothing(recording),))
    return Figure(title, tuple(_frame(recording, line) for line in lines[:LINES]))


def _nothing(recording: Recording) -> Frame:
    text = "Block 0 made no access to shared memory."
    figure = paper(8.6, 1.2)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=11)
    return Frame(png(figure), text + recording.note(), text)


def _frame(recording: Recording, line: Line) -> Frame:
    took, ideal = line.wavefronts()
    worst = int(np.argmax(took - ideal)) if (took > ideal).any() else int(np.argmax(took))
    elements, warp = line.elements[worst], int(line.warps[worst])
    n, least = int(took[worst]), int(ideal[worst])
    turns = turns_of(elements, line.itemsize)
    words = elements * line.itemsize // WORD
    span = max(1, line.itemsize // WORD)
    heading = line.heading(recording.file)
    figure = paper(8.6, 6.6)
    figure.text(0.012, 0.97, heading, family="DejaVu Sans Mono", fontsize=10)
    figure.text(0.012, 0.937, f"{line.one_request(warp)}; the number in a cell is its wavefront")
    axes = figure.add_axes((0.06, 0.075, 0.76, 0.83))
    draw_lanes(axes, words, turns, span)
    busiest, distinct = _busiest(words, span)
    side = [
        (0.88, f"{n}", 30, "bold"),
        (0.80, f"{'wavefront' if n == 1 else 'wavefronts'} for\nthis request", 9.5, "normal"),
        (0.69, f"{least} would do\nwithout conflicts", 9.5, "normal"),
        (0.57, f"busiest bank: {busiest}\n{distinct} different words\nare wanted there", 9.5, "normal"),
        (0.42, "A bank delivers one\nword a wavefront,\nto any number of\nlanes.", 9.5, "normal"),
    ]
    for y, text, size, weight in side:
        figure.text(0.84, y, text, fontsize=size, fontweight=weight, va="top", linespacing=1.35)
    total = f"{line.in_all()}: {took.sum():,} wavefronts, {took.sum() - ideal.sum():,} of them conflicts."
    lanes = int((elements >= 0).sum())
    alt = (
        f"{heading}. One {line.op} request of warp {warp}, {lanes} lanes, {line.itemsize} bytes each: "
        f"{several(n, 'wavefront')}, {least} without bank conflicts. Bank {busiest} is the busiest: "
        f"{several(distinct, 'different word')}. {total}"
    )
    return Frame(png(figure), f"{line.what(recording.file)}. {total}{recording.note()}", alt)


def draw_lanes(axes: Any, words: np.ndarray, turns: np.ndarray, span: int, size: float = 9) -> None:
    """The grid of lanes and banks: in each lane's row the banks that it meets, with its wavefront.

    words, turns [32]: the first word that a lane wants, and the wavefront that serves it, -1 for a lane that
    takes no part. span: banks of one lane. size: of the numbers.
    """
    axes.set_xlim(0, BANKS)
    axes.set_ylim(WARP, 0)
    axes.set_xticks(np.arange(BANKS + 1), [], minor=False)
    axes.hlines(np.arange(WARP + 1), 0, BANKS, color=GREY, linewidth=0.5, zorder=0)
    axes.vlines(np.arange(BANKS + 1), 0, WARP, color=GREY, linewidth=0.5, zorder=0)
    for lane in np.flatnonzero(turns >= 0):
        bank, turn = int(words[lane]) % BANKS, int(turns[lane])
        colour = CYCLE[turn % len(CYCLE)]
        axes.broken_barh([(bank, span)], (lane + 0.06, 0.88), fc=colour, ec="#333333", lw=0.5)
        dark = colour in (BLUE, VERMILION)
        axes.text(
            bank + span / 2, lane + 0.52, str(turn + 1), ha="center", va="center", fontsize=size,
            color="white" if dark else "black",
        )  # fmt: skip
    axes.set_xticks([*np.arange(0, BANKS, 4) + 0.5, BANKS - 0.5], [*range(0, BANKS, 4), BANKS - 1])
    axes.set_yticks([*np.arange(0, WARP, 4) + 0.5, WARP - 0.5], [*range(0, WARP, 4), WARP - 1])
    axes.tick_params(length=0)
    axes.set_xlabel("bank (4 bytes wide)")
    axes.set_ylabel("lane", labelpad=1)


def _busiest(words: np.ndarray, span: int) -> tuple[int, int]:
    """The bank with the most different words over the whole request, and how many."""
    wanted = np.unique(words[words >= 0][:, None] + np.arange(span))
    times = np.bincount(wanted % BANKS, minlength=BANKS)
    return int(times.argmax()), int(times.max())
