"""A ring of buffers as a timetable: when each tile is copied, when it waits, when it is multiplied."""

from typing import Any

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures.canvas import BLUE, ORANGE, SKY, lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

TILES, DEEPEST = 6, 4


def timetable(stages: int, turn: float, latency: float) -> list[tuple[float, float, float, float]]:
    """(asked for, arrived, multiplied from, until) of each tile, in the unit of `turn` and `latency`.

    turn: what a turn takes when nothing is waited for. The first tiles are asked for at time 0.
    """
    rows: list[tuple[float, float, float, float]] = []
    begun: list[float] = []  # when each turn begins: it asks for its new tile first, and waits then
    free = 0.0
    for tile in range(TILES):
        begun.append(free)
        asked = begun[max(0, tile - stages + 1)]
        arrived = asked + latency
        start = max(free, arrived)
        free = start + turn
        rows.append((asked, arrived, start, free))
    return rows


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each depth from 1 to 4, with the turn and the latency that the recorded runs give."""
    evidence = Evidence()
    two, one = "10 pipeline", "10 pipeline 1"
    turn = (evidence.us(two) - evidence.us(two, "1x8x256x64")) / 4  # 8 turns and 4
    latency = (evidence.us(one) - evidence.us(two)) / 8
    end = timetable(1, turn, latency)[-1][3] + 0.2
    frames = tuple(_frame(stages, turn, latency, end) for stages in range(1, DEEPEST + 1))
    return Figure("Tiles in flight, one to four stages: the model with recorded times", frames, 1)


def _frame(stages: int, turn: float, latency: float, end: float) -> Frame:
    rows = timetable(stages, turn, latency)
    figure = paper(9.4, 3.5)
    axes = figure.add_axes((0.07, 0.24, 0.91, 0.6))
    for tile, (asked, arrived, start, stop) in enumerate(rows):
        _box(axes, tile, asked, arrived, ORANGE, "", "copy" if arrived - asked > 0.3 else "")
        if start - arrived > 1e-6:
            _box(axes, tile, arrived, start, "white", "////", "")
        _box(axes, tile, start, stop, SKY, "", f"turn {tile}")
    axes.axvline(rows[-1][3], color=BLUE, linewidth=1.5)
    axes.text(rows[-1][3], -0.15, f"{rows[-1][3]:.2f} µs", ha="right", va="bottom", color=BLUE)
    axes.set_xlim(0, end)
    axes.set_ylim(TILES, -0.1)
    axes.set_yticks([tile + 0.5 for tile in range(TILES)], [f"tile {tile}" for tile in range(TILES)])
    axes.set_xlabel("µs")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    title = f"{several(stages, 'stage')}: a turn takes {turn:.2f} µs, a tile's copies {latency:.2f} µs"
    figure.text(0.012, 0.93, title, fontsize=10.5)
    for place, (colour, hatch, words) in enumerate(
        (
            (ORANGE, "", "copies under way"),
            ("white", "////", "arrived, not used yet"),
            (SKY, "", "multiplied"),
        )
    ):
        figure.text(0.02 + 0.25 * place, 0.035, "    ", fontsize=9,
                    bbox={"fc": colour, "ec": "#333333", "hatch": hatch, "pad": 1.5, "lw": 0.6})  # fmt: skip
        figure.text(0.055 + 0.25 * place, 0.035, words, fontsize=9)
    idle = sum(max(0.0, start - arrived) for _, arrived, start, _ in rows)
    caption = (
        f"{several(stages, 'stage')}: {TILES} tiles take {rows[-1][3]:.2f} µs. Unused in shared memory they "
        f"lie for {idle:.2f} µs in all."
    )
    alt = (
        caption
        + " "
        + " ".join(
            f"Tile {tile}: asked for at {asked:.2f}, arrived at {arrived:.2f}, multiplied from {start:.2f} "
            f"to {stop:.2f}."
            for tile, (asked, arrived, start, stop) in enumerate(rows)
        )
    )
    return Frame(png(figure), caption, alt)


def _box(axes: Any, tile: int, start: float, stop: float, colour: str, hatch: str, text: str) -> None:
    axes.broken_barh(
        [(start, stop - start)], (tile + 0.12, 0.76), fc=colour, ec="#333333", hatch=hatch, lw=0.6
    )
    if text:
        axes.text((start + stop) / 2, tile + 0.52, text, ha="center", va="center", fontsize=9)
