"""The way of a tile between fragments, shared memory and rows: what each leg costs in wavefronts."""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from flashcore_numba.course.figures.canvas import BLUE, INK, ORANGE, VERMILION, lettered, paper, png
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

BLOCK_TILES = 16  # blocks times tiles of stage 08 at 1x1x128x64
FRAGMENTS, SHARED, ROWS = 0.0, 1.0, 2.0
COLUMNS = {FRAGMENTS: "fragments\n(a warp each)", SHARED: "shared memory", ROWS: "rows\n(8 lanes each)"}


@dataclass(frozen=True)
class Leg:
    """What goes from one place to another, in wavefronts a tile of a block; `trip`: only because a fragment
    has no rows.
    """

    what: str
    start: float
    stop: float
    wavefronts: float
    trip: bool


def legs(stage: Stage) -> list[list[Leg]]:
    """The legs of a tile in the order of time, in the groups that barriers part."""
    counted: dict[str, int] = dict.fromkeys(
        ("operands", "s_out", "s_in", "p_out", "o_in", "o_out", "p", "v", "o", "other", "sum"), 0
    )
    for launch in launched(stage):
        for row in launch.lines():
            if row.space == "shared" and (name := _leg(row)):
                counted[name] += row.wavefronts
    each = {name: value / BLOCK_TILES for name, value in counted.items()}
    return [
        [
            Leg("Q, K", SHARED, FRAGMENTS, each["operands"], False),
            Leg("S", FRAGMENTS, SHARED, each["s_out"], True),
        ],
        [
            Leg("S", SHARED, ROWS, each["s_in"], True),
            Leg("P, as halves", ROWS, SHARED, each["p_out"], True),
            Leg("O, to be shrunk", SHARED, ROWS, each["o_in"], True),
            Leg("O, shrunk", ROWS, SHARED, each["o_out"], True),
        ],
        [
            Leg("P", SHARED, FRAGMENTS, each["p"], True),
            Leg("V", SHARED, FRAGMENTS, each["v"], False),
            Leg("O", SHARED, FRAGMENTS, each["o"], True),
            *([Leg("other", SHARED, FRAGMENTS, each["other"], True)] if each["other"] else []),
            Leg("O + P V", FRAGMENTS, SHARED, each["sum"], True),
        ],
    ]


def _leg(row: Any) -> str:
    """Which leg a row of the counts belongs to; "" for what happens once per block, and K and V coming in."""
    of_header = {
        ("load", "(s_row + column)"): "s_in",
        ("store", "make_uint2(ptx::pack_pair"): "p_out",
        ("load", "const float4 o ="): "o_in",
        ("store", "= scaled"): "o_out",
    }
    if PurePath(row.file).suffix == ".cuh":
        return next((leg for (op, text), leg in of_header.items() if op == row.op and text in row.text), "")
    if "load_matrix_sync(q" in row.text or "load_matrix_sync(k_transposed" in row.text:
        return "operands"
    if "store_matrix_sync(s_smem" in row.text:
        return "s_out"
    if row.op == "load":
        return next((name for name in "pvo" if f"{name}_smem" in row.text), "other")
    return "sum" if row.op == "store" else ""


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """One tile of one block, from Q K^T to P V, downwards in time."""
    groups = legs(stage)
    rows = sum(len(group) for group in groups) + 0.8 * len(groups)
    picture = paper(8.8, 1.0 + 0.52 * rows)
    axes = picture.add_axes((0.02, 0.02, 0.96, 0.96))
    axes.set_xlim(-0.45, 2.45)
    axes.set_ylim(rows + 0.2, -1.1)
    axes.axis("off")
    for x, name in COLUMNS.items():
        axes.text(x, -0.55, name, ha="center", va="center", fontsize=10.5, weight="bold")
        axes.plot([x, x], [0.0, rows], color="#AAAAAA", lw=6, solid_capstyle="butt", zorder=0)
    y, most = 0.0, max(leg.wavefronts for group in groups for leg in group)
    for group in groups:
        for leg in group:
            _arrow(axes, leg, y + 0.62, most)
            y += 1
        axes.plot([-0.4, 2.4], [y + 0.4] * 2, color=INK, lw=1.1, ls=(0, (5, 3)))
        axes.text(2.4, y + 0.33, "barrier", ha="right", va="bottom", fontsize=9, style="italic")
        y += 0.8
    every = [leg for group in groups for leg in group]
    total, trip = (sum(leg.wavefronts for leg in every if leg.trip or not only) for only in (False, True))
    listed = "; ".join(f"{leg.what}: {leg.wavefronts:g}" for leg in every)
    caption = (
        f"{total:g} wavefronts a tile of a block, {trip:g} of them (orange) because a fragment has no rows: "
        "what leaves a fragment comes back by rows, and a barrier follows each change of hands."
    )
    said = f"{caption} In the order of time: {listed}."
    return Figure(f"The round trip through shared memory: {whose}", (Frame(png(picture), caption, said),))


def _arrow(axes: Any, leg: Leg, y: float, most: float) -> None:
    gap = 0.06 if leg.stop > leg.start else -0.06
    colour = BLUE if not leg.trip else ORANGE
    axes.annotate(
        "",
        xy=(leg.stop - gap, y),
        xytext=(leg.start + gap, y),
        arrowprops={
            "arrowstyle": "simple,head_length=0.9,head_width=1.1,tail_width=0.45",
            "mutation_scale": 8 + 16 * leg.wavefronts / most,
            "facecolor": colour,
            "edgecolor": VERMILION if leg.trip else INK,
            "lw": 0.7,
        },
    )
    middle = (leg.start + leg.stop) / 2
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.9}
    axes.text(
        middle, y - 0.30, f"{leg.what}: {leg.wavefronts:g}", ha="center", va="center", fontsize=9.5, bbox=box
    )
