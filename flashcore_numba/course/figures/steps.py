"""Roles and tiles between barriers: phase 0 of stage 11, where roles take turns, and the last phase."""

from typing import Any

from flashcore_numba.course.figures.canvas import GREEN, ORANGE, SKY, YELLOW, lettered, paper, png, several
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

TILES = 4
SHAPE = f"1x1x{64 * TILES}x64"
COLOURS = (SKY, ORANGE, GREEN, YELLOW)
ROLES = ("load", "multiply", "softmax")

Columns = list[dict[str, list[tuple[str, int]]]]  # a column: role -> (what, of which tile)


def taking_turns() -> Columns:
    """Phase 0: four stretches a tile, and one role works in each."""
    columns: Columns = []
    for tile in range(TILES):
        columns += [
            {"load": [("K", tile), ("V", tile)]},
            {"multiply": [("S", tile)]},
            {"softmax": [("P", tile)]},
            {"multiply": [("P V", tile)]},
        ]
    return columns


def together(ahead: int = 2) -> Columns:
    """Phases 4 and 5: the prologue, then a step a column; K and V are asked for `ahead` steps before."""

    def tiles(*parts: tuple[str, int]) -> list[tuple[str, int]]:
        return [(what, tile) for what, tile in parts if 0 <= tile < TILES]

    columns: Columns = [{"load": tiles(*(("K", step) for step in range(ahead)))}]
    for step in range(TILES + 2):
        columns.append({
            "load": tiles(("K", step + ahead), ("V", step + ahead - 2)),
            "multiply": tiles(("P V", step - 2), ("S", step)),
            "softmax": tiles(("P", step - 1)),
        })  # fmt: skip
    return columns


def passed(stage: Stage, variant: str | None) -> float:
    """Barriers that a warp passes in a head of TILES tiles, counted."""
    found = launched(stage, SHAPE, variant)
    warps = sum(_product(launch.grid) * _product(launch.block) // 32 for launch in found)
    return sum(launch.totals()["barriers"] for launch in found) / warps


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Two frames: phase 0 as it is, then the pipeline with what the kernel at hand was counted to pass."""
    frames = (
        _frame("phase 0", taking_turns(), passed(stage, "0"), "phase 0"),
        _frame("phase 5: one barrier per step", together(), passed(stage, None), whose),
    )
    return Figure(f"Roles, tiles and barriers: {whose}", frames, 1)


def _product(extents: Any) -> int:
    out = 1
    for n in (extents,) if isinstance(extents, int) else extents:
        out *= n
    return out


def _frame(title: str, columns: Columns, barriers: float, whose: str) -> Frame:
    figure = paper(9.4, 2.9)
    axes = figure.add_axes((0.08, 0.2, 0.91, 0.6))
    busy = 0
    for x, column in enumerate(columns):
        for y, role in enumerate(ROLES):
            parts = column.get(role, [])
            busy += bool(parts)
            if not parts:
                axes.broken_barh(
                    [(x + 0.06, 0.88)], (y + 0.12, 0.76), fc="#F2F2F2", ec="#AAAAAA", hatch="....", lw=0.5
                )
            for n, (what, tile) in enumerate(parts):
                width = 0.88 / len(parts)
                at = x + 0.06 + n * width
                axes.broken_barh([(at, width)], (y + 0.12, 0.76), fc=COLOURS[tile % 4], ec="#333333", lw=0.7)
                axes.text(at + width / 2, y + 0.5, f"{what}\n{tile}", ha="center", va="center", fontsize=8.5)
        axes.plot([x + 1, x + 1], [0, len(ROLES)], color="black", linewidth=2.5, solid_capstyle="butt")
    axes.set_xlim(0, len(columns) + 0.05)
    axes.set_ylim(len(ROLES), 0)
    axes.set_yticks([y + 0.5 for y in range(len(ROLES))], ROLES)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.set_xlabel("thick lines: barriers of the block; dotted: nothing to do; number and colour: the tile")
    share = busy / (len(columns) * len(ROLES))
    text = (
        f"{title}, {TILES} tiles: {several(len(columns), 'stretch')}".replace("stretchs", "stretches")
        + f" between barriers, roles at work in {share:.0%} of the places"
    )
    figure.text(0.012, 0.9, text, fontsize=10.5)
    caption = f"{text}. Counted in {whose}: a warp passes {barriers:g} barriers."
    told = " ".join(
        f"Stretch {n}: "
        + ("; ".join(f"{role} {', '.join(f'{what} of tile {tile}' for what, tile in parts)}"
                     for role, parts in column.items() if parts) or "nothing")
        + "."
        for n, column in enumerate(columns, 1)
    )  # fmt: skip
    return Frame(png(figure), caption, f"{caption} {told}")
