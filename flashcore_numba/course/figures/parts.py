"""How the scores of one row tile are shared out among warps and blocks: stage 12, stage 13, and with
splits.
"""

from typing import Any

from flashcore_numba.course.figures.canvas import GREEN, GREY, INK, ORANGE, SKY, YELLOW, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage
from flashcore_numba.stages.tuning import stage12_tiles, stage13_tiles

HEAD_DIM, KEYS, SCHEDULERS = 64, 512, 4
WARPS = (SKY, ORANGE, GREEN, YELLOW)
HATCHES = ("", "///")  # of the two blocks of a split


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """One row tile of 512 keys with the small tiles of either stage; each cell names its warp."""
    _, warps, keys, *_ = stage12_tiles.TILES[HEAD_DIM]["small"]
    _, row_warps, key_warps, part_keys, *_ = stage13_tiles.TILES[HEAD_DIM]["small"]
    frames = (
        _frame("stage 12", warps, 1, keys, 1),
        _frame("stage 13", row_warps, key_warps, part_keys, 1),
        _frame("stage 13, two splits", row_warps, key_warps, part_keys, 2),
    )
    return Figure("Who multiplies which scores of a row tile", frames, telling=1)


def _frame(name: str, row_warps: int, key_warps: int, keys: int, splits: int) -> Frame:
    rows, step = 16 * row_warps, keys * key_warps
    steps, warps = KEYS // step, row_warps * key_warps
    figure = paper(8.6, 3.5)
    axes = figure.add_axes((0.085, 0.2, 0.64, 0.6))
    heading = f"{name}: {rows} query rows, {KEYS} keys, a step is {step} keys"
    figure.text(0.012, 0.91, heading, fontsize=10.5, fontweight="bold")
    for tile in range(KEYS // keys):
        for row_warp in range(row_warps):
            warp = tile % key_warps * row_warps + row_warp
            block = tile * keys // step * splits // steps
            axes.broken_barh(
                [(tile * keys, keys)],
                (16 * row_warp, 16),
                fc=WARPS[warp],
                ec=INK,
                lw=0.8,
                hatch=HATCHES[block],
            )
            label = f"warp {warp}" + (f"\nblock {block}" if splits > 1 else "")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5} if splits > 1 else None
            axes.text(
                (tile + 0.5) * keys, 16 * row_warp + 8, label, ha="center", va="center", fontsize=8, bbox=box
            )
    axes.set_xlim(0, KEYS)
    axes.set_ylim(rows, 0)
    axes.set_xticks(range(0, KEYS + 1, step))
    axes.set_yticks(range(0, rows + 1, 16))
    axes.set_xlabel("key")
    axes.set_ylabel("query row")
    figure.text(0.76, 0.83, "one SM, its 4 schedulers")
    side = figure.add_axes((0.76, 0.36, 0.2, 0.43))
    side.set_axis_off()
    side.set_xlim(0, 2)
    side.set_ylim(2, 0)
    for scheduler in range(SCHEDULERS):
        at = scheduler % 2, scheduler // 2
        busy = scheduler < warps
        side.broken_barh(
            [(at[0] + 0.05, 0.9)], (at[1] + 0.05, 0.9), fc=WARPS[scheduler] if busy else GREY, ec=INK
        )
        text = f"warp {scheduler}" if busy else "nothing"
        side.text(at[0] + 0.5, at[1] + 0.5, text, ha="center", va="center", fontsize=9)
    each = KEYS // key_warps // splits
    merging = {1: "nothing to merge", 2: f"{key_warps} parts per row meet\nin shared memory"}[key_warps]
    if splits > 1:
        merging += f",\n{splits} in global memory"
    figure.text(0.76, 0.3, f"a warp: 16 rows x {each} keys\n{merging}", va="top", linespacing=1.35)
    caption = (
        f"A warp has 16 rows and {each} keys of them, one after the other; "
        f"{min(warps, SCHEDULERS)} of the {SCHEDULERS} schedulers of the SM have one."
    )
    return Frame(png(figure), caption, f"{heading}. {caption}")
