"""The budget of one launch of stage 16 at the mission shape: predicted, and measured by stamps."""

from typing import Any

from flashcore_numba.stages import Stage

from .canvas import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, VERMILION, YELLOW, lettered, paper, png
from .figure import Figure, Frame

__all__ = ["MEASURED", "PREDICTED", "STAMPS", "draw"]

# What was written down before the first measurement: piece, least and most in microseconds.
PREDICTED = (
    ("launch", 1.0, 1.0),
    ("mbarriers, maps, first bytes", 0.6, 0.6),
    ("72 KB a block", 0.6, 1.7),
    ("Q Kᵀ", 0.13, 0.13),
    ("exponentials", 0.54, 0.54),
    ("P V, second half", 0.13, 0.13),
    ("merge in the block", 0.1, 0.1),
    ("merge across blocks", 0.35, 0.35),
    ("store, end", 0.2, 0.2),
)
MEASURED = 5.34  # the launch then, measured once on an H200

# Medians of stamps in nanoseconds from a block's start, measured once on an H200, of the kernel before its
# launches overlapped: (what has happened, first warpgroup, second warpgroup). A launch in a graph adds GAP
# between the last store and the next start.
GAP = 1250
STAMPS = (
    ("first tile asked for", 240, 240),
    ("Q there", 482, 482),
    ("K there", 630, 978),
    ("S whole", 801, 1158),
    ("weights of the first half", 1231, 1641),
    ("last P V issued", 1629, 1975),
    ("m and l told in the block", 2073, 2073),
    ("O merged in the block", 2253, 2253),
    ("m and l of the other block there", 2396, 2396),
    ("merged across", 2593, 2593),
    ("stored", 2741, 2741),
)
# What a warpgroup does up to each stamp: a group, and its colour and hatch.
DOING = {
    "begins": (GREY, ""),
    "waits for a copy": ("white", "////"),
    "Q Kᵀ": (SKY, ""),
    "exponentials, P V under them": (ORANGE, ""),
    "tells m and l": (PURPLE, ""),
    "merges in the block": (GREEN, ""),
    "merges across": (YELLOW, ""),
    "stores": (BLUE, ""),
}
PREDICTED_DOING = (  # "launch" is none of them
    *("launch", "begins", "waits for a copy", "Q Kᵀ", *["exponentials, P V under them"] * 2),
    *("merges in the block", "merges across", "stores"),
)
UP_TO = (
    *("begins", "waits for a copy", "waits for a copy", "Q Kᵀ", *["exponentials, P V under them"] * 2),
    *("tells m and l", "merges in the block", "merges across", "merges across", "stores"),
)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The prediction in order of time, then the stamps of both warpgroups."""
    title = "One launch of stage 16 at 1x8x512x64, in order of time"
    return Figure(title, (_predicted(), _measured()), 1)


def _predicted() -> Frame:
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.25, 0.14, 0.73, 0.74))
    least, most = 0.0, 0.0
    for n, (_, low, high) in enumerate(PREDICTED):
        axes.broken_barh([(least, low)], (n + 0.14, 0.72), fc=SKY, ec=INK, lw=0.7)
        if high > low:
            axes.broken_barh([(least + low, high - low)], (n + 0.14, 0.72), fc="white", ec=INK, hatch="////",
                             lw=0.7)  # fmt: skip
        elif most > least:
            axes.broken_barh([(most, high)], (n + 0.14, 0.72), fc="white", ec=INK, lw=0.7, ls=":")
        words = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        axes.text(max(least + low, most + high) + 0.06, n + 0.52, words, va="center", fontsize=9)
        least, most = least + low, most + high
    axes.axvline(MEASURED, color=VERMILION, lw=1.6, ls="--")
    axes.text(MEASURED - 0.05, 0.5, f"measured: {MEASURED}", color=VERMILION, ha="right", va="center")
    axes.set_yticks([n + 0.5 for n in range(len(PREDICTED))], [name for name, *_ in PREDICTED])
    axes.set_ylim(len(PREDICTED), 0)
    axes.set_xlim(0, 5.8)
    axes.set_xlabel("µs; hatched and dotted: if L2 gives only 5.5 TB/s")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    heading = "Predicted before the kernel was taken apart"
    figure.text(0.012, 0.93, heading, fontsize=10.5, fontweight="bold")
    caption = f"Predicted: {least:.2f} to {most:.2f} µs. Measured then, once: {MEASURED} µs."
    pieces = ", ".join(
        f"{name} {low:g}" + (f" to {high:g}" if high > low else "") for name, low, high in PREDICTED
    )
    return Frame(png(figure), caption, f"{heading}. {caption} In order: {pieces}.")


def _measured() -> Frame:
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.13, 0.33, 0.85, 0.57))
    start = -float(GAP)
    for (_, low, _), doing in zip(PREDICTED, PREDICTED_DOING, strict=True):
        colour, hatch = DOING.get(doing, ("#BBBBBB", ".."))
        axes.broken_barh([(start, 1000 * low)], (-0.65, 0.55), fc=colour, ec=INK, lw=0.7, hatch=hatch)
        start += 1000 * low
    axes.broken_barh([(-GAP, GAP)], (0.1, 1.8), fc="#BBBBBB", ec=INK, lw=0.7, hatch="..")
    axes.text(-GAP / 2, 1, "launch", ha="center", va="center",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
    for warpgroup in (0, 1):
        start = 0
        for (_, *stops), doing in zip(STAMPS, UP_TO, strict=True):
            colour, hatch = DOING[doing]
            stop = stops[warpgroup]
            axes.broken_barh([(start, stop - start)], (warpgroup + 0.1, 0.8), fc=colour, ec=INK, lw=0.7,
                             hatch=hatch)  # fmt: skip
            start = stop
    axes.set_yticks([-0.37, 0.5, 1.5], ["predicted,\nat least", "first\nwarpgroup", "second\nwarpgroup"])
    axes.set_ylim(2, -0.75)
    axes.set_xlim(-GAP - 30, STAMPS[-1][1] + 30)
    axes.set_xticks(range(-1000, 3000, 500))
    axes.set_xlabel("ns from the start of a block, medians")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    heading = "Measured by stamps, once, before launches overlapped"
    figure.text(0.012, 0.93, heading, fontsize=10.5, fontweight="bold")
    for n, (doing, (colour, hatch)) in enumerate(DOING.items()):
        x, y = (0.02, 0.2, 0.44, 0.68)[n % 4], 0.115 - 0.075 * (n // 4)
        box = {"fc": colour, "ec": INK, "hatch": hatch, "pad": 1.5, "lw": 0.6}
        figure.text(x, y, "    ", fontsize=9, bbox=box)
        figure.text(x + 0.035, y, doing, fontsize=9)
    total = GAP + STAMPS[-1][1]
    asked = STAMPS[0][1]
    caption = (
        f"A launch, {GAP / 1000:.2f} µs, and {STAMPS[-1][1] / 1000:.2f} µs of a block: {total / 1000:.2f} in "
        f"all; predicted were {sum(low for _, low, _ in PREDICTED):.2f}. The first tile is asked for at {asked} ns. The second warpgroup follows the first by 350 ns, "
        "and the first one waits for it when m and l are told."
    )
    told = "; ".join(
        f"{name} {first}" + (f" and {second}" if second != first else "") for name, first, second in STAMPS
    )
    return Frame(png(figure), caption, f"{heading}. {caption} Stamps in ns, first and second: {told}.")
