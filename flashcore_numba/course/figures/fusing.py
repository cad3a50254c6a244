"""What fuses, in pictures: who has the columns of a row, what its parts tell each other, two ways timed."""

from typing import Any, NamedTuple

from flashcore_numba.course.figures.canvas import BLUE, CYCLE, GREY, INK, ORANGE, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

HEADS, COLUMNS, WARPS = 8, 64, 2  # of a row; of a head; of a row in a block, one of each warpgroup


class Timed(NamedTuple):
    """Microseconds of a launch in a CUDA graph at a shape: one launch, and attention with a second one."""

    shape: str
    fused: float
    apart: float


MEASURED = (
    Timed("1x8x512x64", 6.37, 5.76),
    Timed("1x8x1024x64", 17.8, 10.1),
    Timed("4x16x512x64", 31.6, 15.9),
)
"""The norm over all heads on an H200, float16: the table of docs/epilogue.md, measured once."""
NEEDS = {  # what an operation needs to know of O to give one number of its output
    "a gate": ("one number", "the lane that has it"),
    "a norm of a head": ("a row of the head", "a quad of lanes; in stage 16 four warps of two blocks"),
    "a norm over all heads": ("a row of all heads", "the blocks of all heads"),
    "a projection": ("a row of all heads", "the same, with a matrix that no block has room for"),
}


def at(shape: str) -> Timed:
    """What was measured at a shape."""
    return next(each for each in MEASURED if each.shape == shape)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The columns of one row by owner, for what may follow attention, and the messages of a norm."""
    return Figure("Who has the columns of a row", (_reach(), _messages()))


def _reach() -> Frame:
    figure = paper(9.4, 4.4)
    title = f"One query row of O: {HEADS} heads of {COLUMNS} columns, each in a block of its own"
    figure.text(0.012, 0.935, title, fontsize=10.5, fontweight="bold")
    axes = figure.add_axes((0.02, 0.08, 0.96, 0.80))
    for head in range(HEADS):
        for warp in range(WARPS):
            axes.broken_barh([(head + warp / 2, 0.5)], (0, 0.8), fc=CYCLE[head], ec=INK, lw=0.6)
        box = {"fc": "white", "ec": "none", "pad": 1, "alpha": 0.8}
        axes.text(head + 0.5, 0.4, f"head {head}", ha="center", va="center", fontsize=8.5, bbox=box)
    spans = ((3.02, 3.06), (3.0, 4.0), (0.0, HEADS), (0.0, HEADS))
    for n, ((what, (needs, owners)), (first, end)) in enumerate(zip(NEEDS.items(), spans, strict=True)):
        y = 1.3 + 0.95 * n
        axes.broken_barh([(0, HEADS)], (y + 0.36, 0.28), fc=GREY, ec="none")
        axes.broken_barh([(first, end - first)], (y + 0.36, 0.28), fc=ORANGE, ec=INK, lw=0.6)
        axes.text(0, y + 0.17, f"{what} needs {needs}: {owners}", va="center", fontsize=8.5)
    axes.set_xlim(0, HEADS)
    axes.set_ylim(5.2, -0.1)
    axes.axis("off")
    told = "; ".join(f"{what} needs {needs} ({owners})" for what, (needs, owners) in NEEDS.items())
    caption = (
        "What one number of the result needs to know, in orange. The farther that reaches, the more blocks "
        "have to wait for each other."
    )
    return Frame(png(figure), caption, f"{caption} {told}.")


def _messages() -> Frame:
    figure = paper(9.4, 3.3)
    title = "A norm over all heads: what one block tells the others"
    figure.text(0.012, 0.92, title, fontsize=10.5, fontweight="bold")
    axes = figure.add_axes((0.02, 0.05, 0.96, 0.78))
    sender = 2
    for block in range(HEADS):
        axes.broken_barh([(block + 0.08, 0.84)], (1.6, 0.5), fc=CYCLE[block], ec=INK, lw=0.6)
        axes.text(block + 0.5, 1.85, f"block {block}", ha="center", va="center", fontsize=8.5)
        axes.annotate("", xy=(block + 0.5, 1.58), xytext=(sender + 0.5, 0.55),
                      arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 1.1})  # fmt: skip
    axes.broken_barh([(sender - 0.7, 2.4)], (0.05, 0.5), fc=CYCLE[sender], ec=INK, lw=0.6)
    axes.text(sender + 0.5, 0.3, "mean and M2 of 64 rows,\ntwice: 1,024 bytes to each", ha="center",
              va="center", fontsize=8.5)  # fmt: skip
    axes.set_xlim(0, HEADS)
    axes.set_ylim(2.2, 0)
    axes.axis("off")
    caption = (
        f"{HEADS} heads, a block each, in one cluster. Every warp sends mean and M2 of its 32 columns of 16 "
        "rows to all blocks, its own among them. So each block has the moments of all columns, and merges "
        "them itself: no block answers, and no block waits twice."
    )
    return Frame(png(figure), caption, caption)


@lettered
def draw_timed(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Attention and the norm over all heads in one launch, and in two."""
    figure = paper(9.4, 3.4)
    title = "Attention, residual and LayerNorm over all heads, microseconds (H200, measured once)"
    figure.text(0.012, 0.92, title, fontsize=10.5, fontweight="bold")
    axes = figure.add_axes((0.13, 0.14, 0.84, 0.68))
    for n, each in enumerate(MEASURED):
        for place, (us, colour, label) in enumerate(
            ((each.fused, ORANGE, "one launch"), (each.apart, BLUE, "two launches"))
        ):
            axes.barh(n + 0.36 * place, us, 0.34, color=colour, label=label if n == 0 else None)
            axes.text(us, n + 0.36 * place, f" {us:g}", va="center", fontsize=8.5)
    axes.set_yticks([n + 0.18 for n in range(len(MEASURED))], [each.shape for each in MEASURED])
    axes.set_ylim(len(MEASURED) - 0.2, -0.3)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    told = "; ".join(f"{each.shape}: {each.fused:g} against {each.apart:g}" for each in MEASURED)
    caption = (
        "One launch for everything, a block per head, beside `attention` and one kernel of Inductor's, in a "
        f"CUDA graph. {told} µs."
    )
    return Figure("One launch, and two", (Frame(png(figure), caption, caption),))
