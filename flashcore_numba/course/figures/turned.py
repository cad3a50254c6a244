"""A tile that turns in shared memory: the banks that a warp's lanes meet when it loads a column."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.course import launches, memory_map
from flashcore_numba.course.evidence import COUNTED
from flashcore_numba.course.figures.banks import draw_lanes
from flashcore_numba.course.figures.canvas import lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.simulator.count import WARP, WORD, turns_of
from flashcore_numba.stages import Stage

COLUMN = 4  # the column, or row, that the warp of the picture has
Request = tuple[str, int, bool]  # a heading, floats from one row of the tile to the next, is it a column?


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A warp loads a column of a tile of 32 x 32 floats, without padding and with a column of it."""
    found = [(f"Rows {row} floats apart", row, True) for row in (WARP, WARP + 1)]
    return Figure("One warp loads a column of a tile of 32 x 32 floats", (_frame(found),))


@lettered
def draw_own(lesson: Any, stage: Stage, whose: str) -> Figure:
    """One warp stores rows of a tile, one loads columns; rows are as far apart as the kernel says.

    Raises ValueError where the text declares no `float tile[...][...]`.
    """
    source = launches.recorded(stage, None, COUNTED).sources[0]
    tiles = [part for part in memory_map.static_parts(source) if part.row]
    if not tiles:
        raise ValueError("no array `__shared__ float tile[...][...]` is declared")
    name, row = tiles[0].name, tiles[0].row
    found = [(f"A row of `{name}` is stored", row, False), (f"A column of `{name}` is loaded", row, True)]
    return Figure(f"Rows of `{name}` are {row} floats apart: {whose}", (_frame(found),))


def _frame(requests: Sequence[Request]) -> Frame:
    figure = paper(9.4, 5.1)
    said = []
    for number, (heading, row, is_column) in enumerate(requests):
        lanes = np.arange(WARP)
        elements = lanes * row + COLUMN if is_column else COLUMN * row + lanes
        turns = turns_of(elements, WORD)
        took = int(turns.max()) + 1
        axes = figure.add_axes((0.055 + 0.5 * number, 0.1, 0.43, 0.8))
        draw_lanes(axes, elements, turns, 1, 6.5)
        axes.set_title(f"{heading}:\n{several(took, 'wavefront')}", loc="left")
        said.append(f"{heading}: {several(took, 'wavefront')}")
    caption = (
        f"{'. '.join(said)}. The number in a cell is the wavefront that serves the lane; a bank serves one "
        "word per wavefront."
    )
    return Frame(png(figure), caption, f"A grid of 32 lanes and 32 banks, twice. {caption}")
