"""Who holds which element of a WMMA accumulator: not specified, so drawn anew in each run of the executor."""

from typing import Any

import numpy as np

from cuda_reference import load, source
from flashcore_numba.course.figures.canvas import BLUE, INK, ORANGE, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

RUNS = ("random:1", "random:2")
ROW, LANE = 3, 9  # what is followed
SIZE = 16


def lane_of(schedule: str) -> np.ndarray:
    """The lane of each element of a 16 x 16 accumulator, as the probe `wmma_map.cu` finds it in a run."""
    held = np.zeros((SIZE, SIZE), np.float32)
    load(source("wmma_map"), "cpu")(1, 32, (held,), schedule=schedule).check()
    return held.astype(int)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """One accumulator in two runs: the lanes of one row, and the elements of one lane. Of no kernel's own."""
    frames = tuple(_frame(lane_of(run), number) for number, run in enumerate(RUNS, 1))
    return Figure("Which lane holds which element of an accumulator: two runs of the executor", frames)


def _frame(held: np.ndarray, number: int) -> Frame:
    row, mine = held[ROW], np.argwhere(held == LANE)
    rows = sorted({int(i) for i, _ in mine})
    picture = paper(8.6, 5.9)
    axes = picture.add_axes((0.055, 0.03, 0.645, 0.90))
    for i in range(SIZE):
        for j in range(SIZE):
            in_row, in_lane = i == ROW, held[i, j] == LANE
            colour = ORANGE if in_lane else BLUE if in_row else "white"
            axes.add_patch(_cell(j, i, colour, "///" if in_lane else ""))
            ink = "white" if in_row and not in_lane else INK
            style: Any = {"ha": "center", "va": "center", "color": ink, "fontsize": 9}
            style["weight"] = "bold" if in_row or in_lane else "normal"
            if in_lane:
                style["bbox"] = {"facecolor": ORANGE, "edgecolor": "none", "pad": 1.0}
            axes.text(j + 0.5, i + 0.5, str(held[i, j]), **style)
    axes.set_xlim(0, SIZE)
    axes.set_ylim(SIZE, 0)
    axes.set_xticks(np.arange(SIZE) + 0.5, range(SIZE))
    axes.set_yticks(np.arange(SIZE) + 0.5, range(SIZE))
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_ylabel("row of the matrix", labelpad=2)
    lanes = len(set(row.tolist()))
    spread = (
        f"is spread over {lanes} lanes. To\nshrink it, each of them must\n"
        "know which of its 8 elements\nto touch."
    )
    asked = "Neither is specified. A row\ncan be had by storing the\nwhole and reading it back."
    side = [
        (0.90, f"run {number} of 2", 13, "bold"),
        (0.82, "A number is the lane that\nholds the element.", 9.5, "normal"),
        (0.70, f"Row {ROW}, dark", 10.5, "bold"),
        (0.66, spread, 9.5, "normal"),
        (0.46, f"Lane {LANE}, hatched", 10.5, "bold"),
        (0.42, f"holds elements of {len(rows)} rows:\n{', '.join(map(str, rows))}.", 9.5, "normal"),
        (0.29, asked, 9.5, "normal"),
    ]
    for y, text, size, weight in side:
        picture.text(0.725, y, text, fontsize=size, fontweight=weight, va="top", linespacing=1.35)
    caption = (
        f"Run {number}: row {ROW} is held by {lanes} lanes, and lane {LANE} holds elements of rows "
        f"{', '.join(map(str, rows))}."
    )
    listed = ", ".join(map(str, row))
    alt = f"A 16 x 16 matrix with the lane of each element. {caption} Row {ROW}: lanes {listed}."
    return Frame(png(picture), caption, alt)


def _cell(x: int, y: int, colour: str, hatch: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="#999999", linewidth=0.5, hatch=hatch)
