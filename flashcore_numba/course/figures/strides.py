"""What a row's length decides: the banks of a fragment's first rows, and how many wavefronts they need."""

from typing import Any

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures.canvas import BLUE, CYCLE, GREY, VERMILION, lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

ROWS, BANKS, WORD, PADDING = 8, 32, 4, 8
# Array: the constants of its row length and of its columns, bytes per element, bytes of a row in one step
ARRAYS = {
    "Q": ("Q_LD", "D", 2, 16),
    "K and V": ("KV_LD", "D", 2, 16),
    "S": ("S_LD", "KEYS", 4, 32),
    "P": ("P_LD", "KEYS", 2, 16),
    "O": ("O_LD", "D", 4, 32),
}


def wavefronts_of(row_bytes: int, piece: int) -> list[int]:
    """The wavefront, from 0, that brings the first `piece` bytes of each of 8 rows, `row_bytes` apart."""
    busy: list[set[int]] = []
    turns = []
    for row in range(ROWS):
        banks = {(row * row_bytes // WORD + word) % BANKS for word in range(piece // WORD)}
        turn = next((n for n, taken in enumerate(busy) if not taken & banks), len(busy))
        if turn == len(busy):
            busy.append(set())
        busy[turn] |= banks
        turns.append(turn)
    return turns


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each array: its rows as they are, and 8 elements longer than their contents."""
    number = lesson.exercise.stage
    evidence = Evidence()
    frames = []
    for name, (length, columns, size, piece) in ARRAYS.items():
        here = int(evidence.constant(number, length))
        padded = int(evidence.constant(number, columns)) + PADDING
        frames.append(_frame(name, here, padded, size, piece))
    return Figure(f"Rows and banks: stage {number:02d}", tuple(frames))


def _frame(name: str, here: int, padded: int, size: int, piece: int) -> Frame:
    figure = paper(9.4, 4.9)
    told = []
    lengths = [("as in the map", here), ("8 elements of padding", padded)]
    for place, (words, length) in enumerate(lengths):
        turns = wavefronts_of(length * size, piece)
        axes = figure.add_axes((0.06, 0.56 - 0.47 * place, 0.92, 0.33))
        _rows(axes, length * size, piece, turns)
        least = -(-ROWS * piece // (BANKS * WORD))
        needed = several(max(turns) + 1, "wavefront")
        text = f"{words}: rows of {length} elements, {length * size} bytes: {needed}"
        axes.set_title(f"{text}, {least} at best", loc="left")
        told.append(f"{text} for 8 rows, {least} at best")
    figure.text(0.012, 0.965, f"{name}: one step of a fragment, {piece} bytes of each of 8 rows", fontsize=11)
    caption = f"{name}, {'. '.join(told)}. The number in a cell is its wavefront."
    return Frame(png(figure), caption, caption)


def _rows(axes: Any, row_bytes: int, piece: int, turns: list[int]) -> None:
    axes.set_xlim(0, BANKS)
    axes.set_ylim(ROWS, 0)
    axes.hlines(range(ROWS + 1), 0, BANKS, color=GREY, linewidth=0.5, zorder=0)
    axes.vlines(range(BANKS + 1), 0, ROWS, color=GREY, linewidth=0.5, zorder=0)
    for row, turn in enumerate(turns):
        colour = CYCLE[turn % len(CYCLE)]
        for word in range(piece // WORD):
            bank = (row * row_bytes // WORD + word) % BANKS
            axes.broken_barh([(bank, 1)], (row + 0.06, 0.88), fc=colour, ec="#333333", lw=0.5)
            axes.text(
                bank + 0.5, row + 0.53, str(turn + 1), ha="center", va="center", fontsize=9,
                color="white" if colour in (BLUE, VERMILION) else "black",
            )  # fmt: skip
    axes.set_xticks(
        [bank + 0.5 for bank in (*range(0, BANKS, 4), BANKS - 1)], [*range(0, BANKS, 4), BANKS - 1]
    )
    axes.set_yticks([row + 0.5 for row in range(ROWS)], [str(row) for row in range(ROWS)])
    axes.tick_params(length=0)
    axes.set_xlabel("bank (4 bytes wide)", labelpad=1)
    axes.set_ylabel("row")
