"""Which lane holds which element: the result of one mma beside the left operand of the next."""

from typing import Any

import numpy as np

from cuda_reference import load, source
from flashcore_numba.course.figures.canvas import BLUE, GREEN, INK, ORANGE, SKY, YELLOW, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

COLOURS = (SKY, ORANGE, GREEN, YELLOW)  # of the four lanes of a quad
SHOWN = 9  # the lane that is followed
KEYS = 16


def held() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the probe `fragment_map.cu` finds: (row, column) of the numbers a lane holds, of A [32, 8, 2],
    B [32, 4, 2] and D [32, 4, 2]; in the order of its registers, two halves a register in A and B.
    """
    a, b = (np.arange(16 * n, dtype=np.float16).reshape(16, n) for n in (16, 8))
    found = [np.zeros((32, n), np.float32) for n in (8, 4, 4)]
    arguments = (a, np.eye(16, dtype=np.float16), b, *found)
    load(source("fragment_map"), "cpu")(1, 32, arguments).check()
    columns = (16, 8, 8)
    maps = (np.stack(np.divmod(x.astype(int), n), axis=-1) for x, n in zip(found, columns, strict=True))
    a_map, b_map, d_map = maps
    return a_map, b_map, d_map


def places() -> tuple[np.ndarray, np.ndarray]:
    """(lane, place among the 8 numbers of the lane) of every element, [16, 16, 2]: of two results side by
    side, and of a left operand.
    """
    a_map, _, d_map = held()
    result, operand = np.zeros((16, KEYS, 2), int), np.zeros((16, KEYS, 2), int)
    for lane in range(32):
        for i, (row, column) in enumerate(d_map[lane]):
            result[row, column], result[row, 8 + column] = (lane, i), (lane, 4 + i)
        for i, (row, column) in enumerate(a_map[lane]):
            operand[row, column] = lane, i
    return result, operand


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """S as two results of 16 x 8 and P as one operand of 16 x 16, element by element; then one lane of
    them.
    """
    result, operand = places()
    same = (result[..., 0] == operand[..., 0]).all()
    frames = (
        _frame(result, operand, None, bool(same)),
        _frame(result, operand, SHOWN, bool(same)),
    )
    return Figure("Fragments of mma.m16n8k16, found by the probe", frames, telling=1)


def _frame(result: np.ndarray, operand: np.ndarray, only: int | None, same: bool) -> Frame:
    figure = paper(9.2, 5.5)
    left = figure.add_axes((0.045, 0.075, 0.44, 0.765))
    right = figure.add_axes((0.545, 0.075, 0.44, 0.765))
    what = "lane by lane" if only is None else f"lane {only} alone"
    figure.text(0.045, 0.955, f"S = two results of mma; {what}", fontsize=10.5, fontweight="bold")
    figure.text(0.545, 0.955, "P = one left operand of mma", fontsize=10.5, fontweight="bold")
    figure.text(
        0.045, 0.905, "score tile 2k, keys 0 to 7          score tile 2k + 1, keys 8 to 15", fontsize=9
    )
    figure.text(0.545, 0.905, "operand k, keys 0 to 15", fontsize=9)
    matrix(left, result, only, lambda i: f"s[2k{'+1' if i > 3 else ''}][{i % 4}]")
    matrix(right, operand, only, lambda i: f"p[k][{i // 2}]\n{'upper' if i % 2 else 'lower'}")
    rows = ", ".join(str(row) for row in np.unique(np.argwhere(operand[..., 0] == SHOWN)[:, 0]))
    keys = ", ".join(str(key) for key in np.unique(np.argwhere(operand[..., 0] == SHOWN)[:, 1]))
    equal = "the same lane holds it in both" if same else "the lanes differ"
    if only is None:
        caption = f"Element by element {equal}. Four neighbouring lanes, one of each colour, hold two rows."
        alt = f"Two grids of 16 rows and 16 keys with the lane of each element: {equal}."
    else:
        caption = (
            f"Lane {only}: rows {rows}, keys {keys}. Two neighbouring scores of a row become the two halves "
            "of one register; the score tile and the row say which."
        )
        alt = f"The 8 numbers of lane {only} in S and in P have the same places: rows {rows}, keys {keys}."
    return Frame(png(figure), caption, alt)


def matrix(
    axes: Any, cells: np.ndarray, only: int | None, name: Any, column: str = "key", of_row: str = "query row"
) -> None:
    """A grid of elements with their lanes; with `only` that lane's alone, each with `name(place)`."""
    axes.set_xlim(0, KEYS)
    axes.set_ylim(16, 0)
    for row in range(16):
        for key in range(KEYS):
            lane, place = cells[row, key]
            if only is None:
                axes.broken_barh([(key, 1)], (row, 1), fc=COLOURS[lane % 4], ec="white", lw=0.8)
                axes.text(key + 0.5, row + 0.53, str(lane), ha="center", va="center", fontsize=7.5)
            elif lane == only:
                axes.broken_barh([(key, 1)], (row, 1), fc=COLOURS[lane % 4], ec=INK, lw=1)
                _name(axes, key, row, name(place))
            else:
                axes.broken_barh([(key, 1)], (row, 1), fc="#F4F4F4", ec="white", lw=0.8)
    axes.axvline(8, color=BLUE, linewidth=1.6)
    axes.axhline(8, color=BLUE, linewidth=1.6)
    axes.set_xticks(np.arange(0, KEYS, 2) + 0.5, np.arange(0, KEYS, 2))
    axes.set_yticks(np.arange(0, 16, 2) + 0.5, np.arange(0, 16, 2))
    axes.set_xlabel(column)
    axes.set_ylabel(of_row, labelpad=1)
    axes.tick_params(length=0)


def _name(axes: Any, key: int, row: int, text: str) -> None:
    """The register's name above an even key's cell and below an odd one's, where two stand side by side."""
    above = key % 2 == 0
    at = (key + (0 if above else 1), row + (-0.25 if above else 1.25))
    axes.text(*at, text, ha="left" if above else "right", va="bottom" if above else "top", fontsize=7.5)
