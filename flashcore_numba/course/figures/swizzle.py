"""A tile of K in shared memory and the 8 rows that a phase of ldmatrix reads: without the swizzle and
with it.
"""

from typing import Any

import numpy as np

from flashcore_numba.core.shapes import parse
from flashcore_numba.course.evidence import COUNTED
from flashcore_numba.course.figures.canvas import BLUE, CYCLE, INK, SKY, VERMILION, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.evidence.counts import Counted, count
from flashcore_numba.stages import Stage
from flashcore_numba.stages.edited import Edit, edited
from flashcore_numba.stages.runs import Run

PLAIN = (  # the rows of a tile follow each other, chunk by chunk
    Edit("row * PITCH + ((chunk ^ (row & 7)) << 3)", "row * PITCH + (chunk << 3)", "warp_rows.cuh"),
    Edit("(lane_offset ^ row % 8 * 8)", "lane_offset", "warp_rows.cuh"),
)
READ = 2  # the chunk of each row that the figure's ldmatrix wants
NAMES = {
    "cp_async": "cp.async of Q, K, V",
    "(q_rmem": "ldmatrix of Q",
    "(k_rmem": "ldmatrix of K",
    "(v_rmem": "ldmatrix of V",
    "o_smem": "store of O",
    "params.out": "load of O by rows",
}


def wavefronts(stage: Stage) -> list[tuple[str, int, int]]:
    """(source line, its wavefronts of shared memory with the rows in order, with the swizzle)."""
    with edited(stage.place, *PLAIN) as plain:
        before = _by_line(count(Run(plain, "large"), parse(COUNTED), False))
    after = _by_line(count(Run(stage, "large"), parse(COUNTED), False))
    return [(text, before.get(at, (text, 0))[1], number) for at, (text, number) in after.items()]


def _by_line(counted: Counted) -> dict[tuple[str, int, str], tuple[str, int]]:
    """(file name, line, operation) -> text and wavefronts."""
    found: dict[tuple[str, int, str], tuple[str, int]] = {}
    for launch in counted.launches:
        for row in launch.lines():
            if row.space == "shared":
                at = (str(row.file).rpartition("/")[2], row.line, row.op)
                text, number = found.get(at, (row.text, 0))
                found[at] = text, number + row.wavefronts
    return found


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The banks of 8 rows in both layouts, then the wavefronts that the executor counts for both kernels."""
    frames = (_layout(lambda row, chunk: chunk, False), _layout(lambda row, chunk: chunk ^ row, True))
    return Figure(f"The swizzle: {whose}", (*frames, _counted(wavefronts(stage), whose)), telling=1)


def _layout(place: Any, swizzled: bool) -> Frame:
    figure = paper(8.6, 4.4)
    axes = figure.add_axes((0.075, 0.14, 0.7, 0.69))
    how = "chunk c of row r is at place c ^ r" if swizzled else "chunk c of row r is at place c"
    figure.text(0.012, 0.93, f"8 rows of a K tile, 128 bytes each: {how}", fontsize=10.5, fontweight="bold")
    axes.set_xlim(0, 32)
    axes.set_ylim(8, 0)
    wanted = [0] * 8
    for row in range(8):
        for chunk in range(8):
            at = place(row, chunk)
            read = chunk == READ
            wanted[at] += read
            turn = wanted[at] - 1
            colour = CYCLE[turn] if read else "#F4F4F4"
            axes.broken_barh([(4 * at, 4)], (row, 1), fc=colour, ec=INK if read else "white", lw=1.2)
            label = f"c{chunk}: turn {turn + 1}" if read else f"c{chunk}"
            ink = "white" if colour in (VERMILION, BLUE) else "black"
            axes.text(4 * at + 2, row + 0.53, label, ha="center", va="center", fontsize=8.5, color=ink)
    axes.set_xticks([4 * i + 2 for i in range(8)], [f"{4 * i} to {4 * i + 3}" for i in range(8)])
    axes.set_yticks([i + 0.5 for i in range(8)], list(range(8)))
    axes.set_xlabel("bank (4 bytes wide)")
    axes.set_ylabel("row of the tile")
    axes.tick_params(length=0)
    most = max(wanted)
    figure.text(0.8, 0.72, str(most), fontsize=30, fontweight="bold")
    word = "wavefront" if most == 1 else "wavefronts"
    figure.text(0.8, 0.6, f"{word} for\none 8 x 8 matrix", linespacing=1.35, va="center")
    figure.text(0.8, 0.42, f"ldmatrix wants\nchunk c{READ} of\neach row", linespacing=1.35, va="center")
    caption = f"One phase of ldmatrix reads chunk {READ} of 8 rows. " + (
        "They are in 8 different groups of 4 banks." if swizzled else "All 8 are in the same 4 banks."
    )
    return Frame(png(figure), caption, f"{caption} {most} {word}.")


def _counted(rows: list[tuple[str, int, int]], whose: str) -> Frame:
    figure = paper(8.6, 0.9 + 0.62 * len(rows))
    axes = figure.add_axes((0.19, 0.17, 0.77, 0.7))
    figure.text(
        0.012,
        0.93,
        f"Wavefronts of shared memory at {COUNTED}, variant large",
        fontsize=10.5,
        fontweight="bold",
    )
    y = np.arange(len(rows))
    for offset, at, name, colour, hatch in (
        (-0.2, 0, "rows in order", VERMILION, "///"),
        (0.2, 1, whose, SKY, ""),
    ):
        values = [(old, new)[at] for _, old, new in rows]
        axes.barh(
            y + offset, values, 0.38, color=colour, hatch=hatch, edgecolor=INK, linewidth=0.6, label=name
        )
        for line, value in zip(y, values, strict=True):
            axes.text(value, line + offset, f" {value:,}", va="center", fontsize=8.5)
    axes.set_yticks(y, [_short(text) for text, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.14 * max(old for _, old, _ in rows))
    axes.set_xlabel("wavefronts")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    before, after = sum(old for _, old, _ in rows), sum(new for _, _, new in rows)
    caption = f"Counted by the CPU executor: {before:,} wavefronts in order, {after:,} with the swizzle."
    listed = "; ".join(f"{_short(text)}: {old:,} and {new:,}" for text, old, new in rows)
    return Frame(png(figure), caption, f"{caption} {listed}.")


def _short(text: str) -> str:
    return next((name for part, name in NAMES.items() if part in text), text)
