"""The budget of one launch of stage 16 at the mission shape: predicted, and measured by stamps."""

import json
from dataclasses import dataclass
from typing import Any

from flashcore_numba.course.figures.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    YELLOW,
    lettered,
    paper,
    png,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.records.artifact import recorded_dir
from flashcore_numba.stages import Stage

# What was written down before the first measurement: piece, least and most in microseconds, kind of work.
PREDICTED = (
    ("launch", 1.0, 1.0, "launch"),
    ("mbarriers, maps, first bytes", 0.6, 0.6, "begins"),
    ("72 KB per block", 0.6, 1.7, "waits for K"),
    ("Q Kᵀ", 0.13, 0.13, "Q Kᵀ"),
    ("exponentials", 0.54, 0.54, "exponentials, P V"),
    ("P V, second half", 0.13, 0.13, "exponentials, P V"),
    ("merge in the block", 0.1, 0.1, "merges in the block"),
    ("merge across blocks", 0.35, 0.35, "merges across"),
    ("store, end", 0.2, 0.2, "stores"),
)
MEASURED = 5.34  # the launch then, measured once on an H200
WORK = {  # kind of work -> colour and hatch
    "launch": ("#BBBBBB", ".."),
    "begins": (GREY, ""),
    "waits for K": ("white", "////"),
    "Q Kᵀ": (SKY, ""),
    "exponentials, P V": (ORANGE, ""),
    "tells m and l": (PURPLE, ""),
    "merges in the block": (GREEN, ""),
    "merges across": (YELLOW, ""),
    "stores": (BLUE, ""),
}


@dataclass(frozen=True)
class Stamped:
    """Stamps inside a kernel: medians over its blocks and 30 launches, measured once on an H200.

    period: ns from the end of one launch to that of the next. us: a launch with stamps, in a graph.
    stamps: (what has happened, kind of work up to then, ns from the block's start of the first and of the
    second warpgroup).
    """

    period: int
    us: float
    stamps: tuple[tuple[str, str, int, int], ...]

    def ends(self, warpgroup: int) -> list[tuple[str, str, float]]:
        """(what has happened, kind of work, ns since the launch before had stored) in order of time."""
        before = self.period - sum(self.stamps[-1][2:]) / 2
        return [(name, work, before + ns[warpgroup]) for name, work, *ns in self.stamps]


# A name in the recorded stamps -> what has happened, and the kind of work up to then.
STAMPS = {
    "start": ("a block begins", "launch"),
    "may load": ("the first tile is asked for", "begins"),
    "Q there": ("Q is there", "waits for K"),
    "K there": ("K is there", "waits for K"),
    "S whole": ("S is whole", "Q Kᵀ"),
    "weights of the first half": ("the weights of the first half are made", "exponentials, P V"),
    "P V issued": ("the last P V is issued", "exponentials, P V"),
    "m and l told": ("m and l are told", "tells m and l"),
    "O merged in the block": ("O is merged in the block", "merges in the block"),
    "m and l of the other block there": ("m and l of the other block are there", "merges across"),
    "share of the other block there": ("its share of O is there", "merges across"),
    "stored": ("O is stored", "stores"),
}


def _recorded(name: str, changed: dict[str, tuple[str, str] | None]) -> Stamped:
    """Medians of a recorded run; `changed`: stamps told otherwise than in `STAMPS`, or not at all."""
    run = json.loads((recorded_dir() / "stamps-h200.json").read_text())["runs"][name]
    told = {stamp: words for stamp, words in (STAMPS | changed).items() if words}
    ns = {stamp: [run["stamps_ns"][stamp][group][1] for group in ("first", "second")] for stamp in told}
    stamps = tuple((*words, *ns[stamp]) for stamp, words in told.items())
    return Stamped(run["last_end_to_last_end_ns"][1], round(run["us"], 2), stamps)


# The launch before has ended when a block begins; or a block begins under its end, and waits for it.
AFTER = _recorded("not_early", {})
EARLY = _recorded("early", {"start": None, "may load": ("the first tile is asked for", "launch")})


def chain() -> list[str]:
    """Predicted and measured microseconds of each kind of work, a line each: of the second warpgroup, which
    is the later one, in launches that follow each other and in launches that overlap.
    """
    lines = [f"{'':<22}{'predicted':>12}{'measured':>11}{'early':>8}"]
    sums = [0.0] * 3
    measured = [_spent(AFTER), _spent(EARLY)]
    for work in WORK:
        least = sum(low for _, low, _, kind in PREDICTED if kind == work)
        most = sum(high for _, _, high, kind in PREDICTED if kind == work)
        numbers = [least, *(spent.get(work, 0.0) / 1000 for spent in measured)]
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        said = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
        lines.append(f"{work:<22}{said:>12}{numbers[1]:>11.2f}{numbers[2]:>8.2f}")
    lines.append(f"{'in all, at least':<22}{sums[0]:>12.2f}{sums[1]:>11.2f}{sums[2]:>8.2f}")
    return lines


def _spent(run: Stamped) -> dict[str, float]:
    """ns of each kind of work of the second warpgroup, up to the median store."""
    spent: dict[str, float] = {}
    start = 0.0
    for _, work, stop in run.ends(1):
        spent[work] = spent.get(work, 0.0) + stop - start
        start = stop
    return spent


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The prediction in order of time, then the stamps of both warpgroups under it."""
    title = "One launch of stage 16 at 1x8x512x64, in order of time"
    return Figure(title, (_predicted(), _measured()), 1)


def _predicted() -> Frame:
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.25, 0.14, 0.73, 0.74))
    least, most = 0.0, 0.0
    for n, (_, low, high, work) in enumerate(PREDICTED):
        colour, hatch = WORK[work]
        axes.broken_barh([(least, low)], (n + 0.14, 0.72), fc=colour, ec=INK, lw=0.7, hatch=hatch)
        if high > low:
            axes.broken_barh(
                [(least + low, high - low)], (n + 0.14, 0.72), fc="white", ec=INK, lw=0.7, ls=":"
            )
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
    axes.set_xlabel("µs; dotted: if L2 gives only 5.5 TB/s")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    heading = "Predicted before the kernel was taken apart"
    figure.text(0.012, 0.93, heading, fontsize=10.5, fontweight="bold")
    caption = f"Predicted: {least:.2f} to {most:.2f} µs. Measured then, once: {MEASURED} µs."
    pieces = ", ".join(
        f"{name} {low:g}" + (f" to {high:g}" if high > low else "") for name, low, high, _ in PREDICTED
    )
    return Frame(png(figure), caption, f"{heading}. {caption} In order: {pieces}.")


def _measured() -> Frame:
    figure = paper(9.4, 4.3)
    axes = figure.add_axes((0.16, 0.29, 0.82, 0.61))
    start = 0.0
    for _, low, _, work in PREDICTED:
        _bar(axes, 0.0, start, start + 1000 * low, work)
        start += 1000 * low
    rows = ((AFTER, 0, 1.2), (AFTER, 1, 2.0), (EARLY, 0, 3.2), (EARLY, 1, 4.0))
    told = []
    for run, warpgroup, y in rows:
        start = 0.0
        for _, work, stop in run.ends(warpgroup):
            _bar(axes, y, start, stop, work)
            start = stop
        told.append("; ".join(f"{name} {ns:.0f}" for name, _, ns in run.ends(warpgroup)))
    names = [
        "predicted, at least",
        *["after it: first", "second warpgroup", "under its end: first", "second warpgroup"],
    ]
    axes.set_yticks([0.35, *(y + 0.35 for *_, y in rows)], names)
    axes.set_ylim(4.8, -0.1)
    axes.set_xlim(0, 4400)
    axes.set_xlabel("ns since the launch before had stored, medians")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    heading = "Measured by stamps, once: a launch after the one before, and one under its end"
    figure.text(0.012, 0.94, heading, fontsize=10.5, fontweight="bold")
    for n, (work, (colour, hatch)) in enumerate(WORK.items()):
        x, y = 0.02 + 0.195 * (n % 5), 0.105 - 0.07 * (n // 5)
        box = {"fc": colour, "ec": INK, "hatch": hatch, "pad": 1.5, "lw": 0.6}
        figure.text(x, y, "    ", fontsize=9, bbox=box)
        figure.text(x + 0.035, y, work, fontsize=9)
    caption = (
        f"Predicted were {sum(low for _, low, _, _ in PREDICTED):.2f} µs at least. A launch with stamps "
        f"takes {AFTER.us} µs after the one before, {EARLY.us} under its end; without stamps each takes "
        "0.3 to 0.4 less. Launch: until a block begins, or until it may load."
    )
    alt = f"After it, first warpgroup, ns: {told[0]}. Second: {told[1]}. Under its end, first: {told[2]}. "
    return Frame(png(figure), caption, f"{heading}. {caption} {alt}Second: {told[3]}.")


def _bar(axes: Any, y: float, start: float, stop: float, work: str) -> None:
    colour, hatch = WORK[work]
    axes.broken_barh([(start, stop - start)], (y, 0.7), fc=colour, ec=INK, lw=0.7, hatch=hatch)
