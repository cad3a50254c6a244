"""A warp that owns keys, not query rows: what each product needs, one lane, and dS in shared memory."""

from typing import Any

import numpy as np

from flashcore_numba.course.figures import fragments
from flashcore_numba.course.figures.canvas import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    SKY,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.launches import recorded
from flashcore_numba.course.memory_map import constants
from flashcore_numba.stages import Stage

WARPS = 4  # of the picture
KEPT, MOVED, ADDED = "in registers", "through shared memory", "added across warps"
COLOURS = {KEPT: "#B5E3D2", MOVED: "#BFE1F6", ADDED: "#FBE3B5"}
# What the second product needs of the first one's result, and where its own sums are, by what a warp owns.
NEEDS = {
    "query rows": (
        ("dV += P\u1d40 dO", "P\u1d40", MOVED, "dV", ADDED),
        ("dK += dS\u1d40 Q", "dS\u1d40", MOVED, "dK", ADDED),
        ("dQ += dS K", "dS", KEPT, "dQ", KEPT),
    ),
    "keys": (
        ("dV += P\u1d40 dO", "P\u1d40", KEPT, "dV", KEPT),
        ("dK += dS\u1d40 Q", "dS\u1d40", KEPT, "dK", KEPT),
        ("dQ += dS K", "dS", MOVED, "dQ", ADDED),
    ),
}
SHOWN = fragments.SHOWN  # the lane that is followed


@lettered
def draw_owners(lesson: Any, stage: Stage, whose: str) -> Figure:
    """What a warp of query rows has, and what a warp of keys has."""
    return Figure(f"A warp owns keys: {whose}", (_owners(),))


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """One lane of a warp of keys, and the banks that its warp's store of dS meets, without padding and with
    the stage's own.
    """
    known = constants(recorded(stage, "large", "1x1x128x64").sources[1])
    frames = (_lane(), _store(known["BLOCK_N"], known["DS_PITCH"]))
    return Figure(f"Rows of a warp are keys: {whose}", frames)


def _owners() -> Frame:
    figure = paper(9.4, 5.0)
    for n, (owned, needs) in enumerate(NEEDS.items()):
        left = 0.012 + 0.5 * n
        figure.text(left, 0.945, f"A warp owns {owned}", fontsize=10.5, fontweight="bold")
        _matrices(figure, left, owned == "keys")
        axes = figure.add_axes((left, 0.03, 0.47, 0.33))
        axes.set_xlim(0, 3)
        axes.set_ylim(3.55, -0.6)
        axes.axis("off")
        for x, text in ((0.85, "its left operand"), (1.95, "its sums")):
            axes.text(x + 0.5, -0.2, text, ha="center", fontsize=9, fontweight="bold")
        for y, (product, operand, where, sums, how) in enumerate(needs):
            axes.text(0.02, y + 0.55, product, va="center", fontsize=9.5)
            for x, name, place in ((0.85, operand, where), (1.95, sums, how)):
                axes.broken_barh([(x, 1.05)], (y + 0.08, 0.86), fc=COLOURS[place], ec="#888888", lw=0.6)
                axes.text(x + 0.52, y + 0.53, f"{name}: {place}", ha="center", va="center", fontsize=7.2)
    caption = (
        "Above: S of one head, in the colours of four warps. A gradient in these colours has one warp for "
        "each "
        "element; one with hatching is a sum over all warps. Below: the three products that use P or dS."
    )
    words = "; ".join(
        f"a warp that owns {owned}: "
        + ", ".join(f"{op} {where} and {sums} {how}" for _, op, where, sums, how in needs)
        for owned, needs in NEEDS.items()
    )
    return Frame(png(figure), caption, f"{caption} {words}.")


def _matrices(figure: Any, left: float, by_keys: bool) -> None:
    """S with its warps, dQ at its side, dK and dV below."""
    axes = figure.add_axes((left + 0.02, 0.4, 0.42, 0.51))
    axes.set_xlim(-1.4, 5.2)
    axes.set_ylim(5.1, -0.75)
    axes.axis("off")
    for n in range(WARPS):
        colour = CYCLE[n]
        at = ((n, 1), (0, WARPS)) if by_keys else ((0, WARPS), (n, 1))
        axes.broken_barh([at[0]], at[1], fc=colour, ec="white", lw=1)
        middle = (n + 0.5, 2.0) if by_keys else (2.0, n + 0.5)
        axes.text(*middle, f"warp {n}", ha="center", va="center", fontsize=8.5, rotation=90 * by_keys)
        for x, y, owned in ((-0.75, n, not by_keys), (n, 4.2, by_keys)):
            wide = (0.6, 1) if x < 0 else (1, 0.6)
            look = {"fc": colour} if owned else {"fc": "white", "hatch": "////"}
            axes.broken_barh([(x, wide[0])], (y, wide[1]), ec="white" if owned else "#888888", lw=1, **look)
    axes.text(2, -0.25, "S: a row for each query, a column for each key", ha="center", fontsize=8.5)
    axes.text(-0.95, 2, "dQ", ha="right", va="center", fontsize=10, fontweight="bold")
    axes.text(4.15, 4.5, "dK, dV", va="center", fontsize=10, fontweight="bold")


def _lane() -> Frame:
    result, operand = fragments.places()
    figure = paper(9.2, 5.6)
    figure.text(
        0.045,
        0.955,
        f"S\u1d40 and dP\u1d40: two results of mma, lane {SHOWN}",
        fontsize=10.5,
        fontweight="bold",
    )
    figure.text(0.545, 0.955, "P\u1d40 or dS\u1d40: one left operand", fontsize=10.5, fontweight="bold")
    left, right = figure.add_axes((0.045, 0.075, 0.44, 0.75)), figure.add_axes((0.545, 0.075, 0.44, 0.75))
    fragments.matrix(left, result, SHOWN, lambda i: f"s[2k{'+1' if i > 3 else ''}][{i % 4}]", "query", "key")
    names = lambda i: f"ds[k][{i // 2}]\n{'upper' if i % 2 else 'lower'}"  # noqa: E731
    fragments.matrix(right, operand, SHOWN, names, "query", "key")
    queries = sorted({int(c) for _, c in np.argwhere(result[..., 0] == SHOWN)})
    keys = sorted({int(r) for r, _ in np.argwhere(result[..., 0] == SHOWN)})
    for query in queries:
        left.text(query + 0.5, -0.3, f"D{query}", ha="center", fontsize=7.5, color=BLUE)
    figure.text(0.045, 0.895, "lse2 and D belong to columns: the lane loads those of its queries", fontsize=9)
    caption = (
        f"Lane {SHOWN} has keys {keys[0]} and {keys[1]} of queries {', '.join(map(str, queries))}, in "
        f"S\u1d40, in dP\u1d40 "
        "and as an operand. All lanes of the same column need the same D, and no number changes lanes."
    )
    return Frame(png(figure), caption, caption)


def _store(columns: int, pitch: int) -> Frame:
    """The 8 rows and 4 lanes of a row that a warp stores at once, 4 bytes each, over the 32 banks."""
    figure = paper(9.4, 4.6)
    said = []
    for n, apart in enumerate((columns, pitch)):
        axes = figure.add_axes((0.07, 0.56 - 0.46 * n, 0.91, 0.33))
        wanted = np.zeros(32, int)
        axes.broken_barh([(0, 32)], (0, 8), fc="#F7F7F7", ec=GREY)
        for g in range(8):
            for t in range(4):
                bank = (g * apart // 2 + t) % 32
                colour = (SKY, ORANGE, GREEN, "#CC79A7")[wanted[bank] % 4]
                wanted[bank] += 1
                axes.broken_barh([(bank, 1)], (g, 1), fc=colour, ec=INK, lw=0.7)
                axes.text(bank + 0.5, g + 0.55, str(4 * g + t), ha="center", va="center", fontsize=7)
        took = several(int(wanted.max()), "wavefront")
        axes.set_xlim(0, 32)
        axes.set_ylim(8, 0)
        axes.set_xticks(np.arange(0, 32, 4) + 0.5, np.arange(0, 32, 4))
        axes.set_yticks(np.arange(0, 8, 2) + 0.5, np.arange(0, 8, 2))
        axes.set_ylabel("row (key)")
        axes.tick_params(length=0)
        axes.set_title(f"Rows {apart} halves apart: {took}", loc="left", fontsize=10, fontweight="bold")
        said.append(f"rows {apart} halves apart: {took}")
    axes.set_xlabel("bank; the number is the lane, the colour its wavefront")
    caption = f"A warp stores dS of 8 keys and 8 queries, 4 bytes per lane: {', '.join(said)}."
    return Frame(png(figure), caption, caption)
