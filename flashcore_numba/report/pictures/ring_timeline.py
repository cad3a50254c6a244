"""The time line of a ring: a row per rank and stream, and what the stream did when, in one call."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flashcore_numba.records.amounts import percent, provenance, short_us
from flashcore_numba.records.ring_timeline import Totals, median, totals
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.style import LackingError, Picture, Record, Theme

STREAMS = {"main": "main", "side": "transfers", "also": "third"}
KINDS = {
    "kernel": "kernel", "copy": "copy engine", "exchange": "NCCL", "signal": "signal", "barrier": "barrier",
    "wait": "the stream waits",
}  # fmt: skip
OF_NO_STEP = {"filling", "giving out", "packing", "rounding", "unpacking"}
SHORT = {"the backward pass": "backward", "adding gradients": "adding"}
SMALL = 0.004  # of the call: what takes less has no label beside its bar
NEAR = 0.5  # of the call: one label says what the same operations in it are
TOLD = 0.01  # of the call: what takes less is not in the alternative text
DESCRIBED = {False: ("gated", 2), True: ("pull", 2)}  # by pass: the way and GPUs of which docs/ring.md tells
HEAD, ROW, BAR = 0.75, 1.0, 0.46  # heights in rows of ROW_INCHES
ROW_INCHES, GAP = 0.44, 4.0  # inches, and points between labels


class Bar(NamedTuple):
    """An operation: y is its middle, short what the label says where there is little room."""

    piece: dict[str, Any]
    y: float
    text: str
    short: str

    @property
    def us(self) -> float:
        return self.piece["end_us"] - self.piece["begin_us"]

    @property
    def middle(self) -> float:
        return (self.piece["end_us"] + self.piece["begin_us"]) / 2


def name(backward: bool) -> str:
    """Of the picture."""
    return "ring-timeline-backward" if backward else "ring-timeline"


def picture(records: Sequence[Record], backward: bool) -> Picture:
    """Of the time line that docs/ring.md describes, or of the first one of this pass. Raises LackingError."""
    of_pass = [each for each in records if each[1]["backward"] == backward]
    told = [x for x in of_pass if (x[1]["way"], x[1]["topology"]["gpus"]) == DESCRIBED[backward]]
    found = next(iter(told + of_pass), None)
    if found is None:
        which = "backward" if backward else "forward"
        raise LackingError(f"no time line of a ring's {which} pass is recorded")
    path, record = found
    return Picture(name(backward), _alt(record), (path,), lambda theme: _paint(record, theme))


def label(piece: dict[str, Any]) -> tuple[str, str]:
    """What a piece is called, and in short: `attention 1`, `waits for copy 1` and `waits`."""
    what, kind = piece["what"], piece["kind"]
    numbered = piece["step"] is not None and what not in OF_NO_STEP
    text = f"{what} {piece['step']}" if numbered else what
    if kind == "wait":
        return f"waits for {text}", "waits"
    if kind == "barrier":
        return f"barrier: {text}", "barrier"
    return text, text.replace(what, SHORT.get(what, what))


def _colours(theme: Theme) -> dict[str, str]:
    return {
        "kernel": theme.tensor, "copy": theme.fp32, "exchange": theme.series[3], "signal": theme.ink,
        "barrier": theme.peer, "wait": theme.grid,
    }  # fmt: skip


def _paint(record: dict[str, Any], theme: Theme) -> Any:
    rows, heads, height = _rows(record)
    figure = style.new_figure(2.35 + ROW_INCHES * height)
    axes = figure.subplots()
    whole, colours = max(each["us"] for each in record["ranks"]), _colours(theme)
    for rank, each in enumerate(totals(record)):
        axes.text(0, heads[rank], _summary(rank, each), va="center", fontsize=9.5, fontweight="bold")
    axes.set_xlim(0, whole * 1.005)
    axes.set_ylim(height, 0)
    for bars in rows.values():
        for bar in bars:
            _bar(axes, bar, colours, theme)
    axes.axvline(whole, color=theme.muted, lw=0.8, ls=":")
    axes.set_yticks([bars[0].y for bars in rows.values()], [stream for _, stream in rows], fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("µs after the barrier of all ranks before the call")
    _legend(axes, (bar for bars in rows.values() for bar in bars), colours, theme)
    style.caption(figure, _title(record), _how(record), [record], theme)
    style.settle(figure)
    for bars in rows.values():
        _write(axes, bars, colours, theme)
    return figure


def _rows(record: dict[str, Any]) -> tuple[dict[tuple[int, str], list[Bar]], list[float], float]:
    """Bars by rank and name of the stream, where each rank's summary goes, and the height of it all."""
    rows: dict[tuple[int, str], list[Bar]] = {}
    heads, y = [], 0.0
    for rank, each in enumerate(record["ranks"]):
        heads.append(y + HEAD / 2)
        y += HEAD
        for stream, called in STREAMS.items():
            pieces = [piece for piece in each["pieces"] if piece["stream"] == stream]
            if any(piece["kind"] != "wait" for piece in pieces):
                rows[rank, called] = [Bar(piece, y + ROW - BAR / 2 - 0.08, *label(piece)) for piece in pieces]
                y += ROW
    return rows, heads, y + 0.1


def _bar(axes: Any, bar: Bar, colours: dict[str, str], theme: Theme) -> None:
    from matplotlib.patches import Rectangle

    place, colour = (bar.piece["begin_us"], bar.y - BAR / 2), colours[bar.piece["kind"]]
    axes.add_patch(Rectangle(place, bar.us, BAR, facecolor=colour, edgecolor=theme.background, lw=0.5))
    if bar.us < SMALL * axes.get_xlim()[1]:  # it is seen, however short it is
        axes.plot([bar.middle] * 2, [place[1], place[1] + BAR], color=colour, lw=1.2, solid_capstyle="butt")


def _write(axes: Any, bars: Sequence[Bar], colours: dict[str, str], theme: Theme) -> None:
    """Labels in the bars that have room; those of shorter ones above them, as far as they find a place."""
    renderer, pixels = axes.figure.canvas.get_renderer(), axes.figure.dpi / 72
    to_pixels = axes.transData.transform

    def width(text: str, size: float) -> float:
        drawn = axes.text(0, 0, text, fontsize=size, transform=None)
        found = drawn.get_window_extent(renderer).width
        drawn.remove()
        return found + GAP * pixels

    above: list[Bar] = []
    for bar in bars:
        begin, end = (float(to_pixels((bar.piece[side], bar.y))[0]) for side in ("begin_us", "end_us"))
        fits = next((text for text in (bar.text, bar.short) if width(text, 8.5) <= end - begin), None)
        if fits is not None:
            fill = colours[bar.piece["kind"]]
            ink = max((theme.ink, theme.background), key=lambda colour: style.contrast(colour, fill))
            axes.text(bar.middle, bar.y, fits, ha="center", va="center", fontsize=8.5, color=ink)
        elif bar.us >= SMALL * axes.get_xlim()[1] and not _told(bar, above, axes.get_xlim()[1]):
            above.append(bar)
    frame = axes.get_window_extent(renderer)
    widest = max((width(bar.short, 8) for bar in above), default=1.0)
    longest = sorted(above, key=lambda bar: bar.us, reverse=True)[: int(frame.width / widest)]
    above = [bar for bar in above if bar in longest]
    first, last = frame.x0 + widest / 2, frame.x1 - widest / 2
    places = style.spread([float(to_pixels((bar.middle, bar.y))[0]) for bar in above], widest)
    places = [max(place, first + k * widest) for k, place in enumerate(places)]  # they stay in the frame
    places = [min(place, last - (len(places) - 1 - k) * widest) for k, place in enumerate(places)]
    from_pixels = axes.transData.inverted().transform
    for bar, place in zip(above, places, strict=True):
        top = bar.y - BAR / 2
        axes.annotate(
            bar.short, (bar.middle, top), xytext=(from_pixels((place, 0))[0], top - 0.22),
            ha="center", va="center", fontsize=8, color=theme.ink, annotation_clip=False, zorder=3,
            bbox={"facecolor": theme.background, "edgecolor": "none", "pad": 0.5},  # over other labels' lines
            arrowprops={"arrowstyle": "-", "color": theme.muted, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def _told(bar: Bar, above: Sequence[Bar], whole: float) -> bool:
    """Whether a label that is there already says it: of a wait or a barrier anywhere, else close by."""
    anywhere = bar.piece["kind"] in ("wait", "barrier")
    same = (each for each in above if each.short == bar.short)
    return any(anywhere or bar.middle - each.middle < NEAR * whole for each in same)


def _legend(axes: Any, bars: Iterable[Bar], colours: dict[str, str], theme: Theme) -> None:
    from matplotlib.patches import Patch

    there = {bar.piece["kind"] for bar in bars}
    handles = [Patch(facecolor=colours[kind], label=text) for kind, text in KINDS.items() if kind in there]
    axes.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(1, 1.09), ncols=len(handles), fontsize=9,
        frameon=False, labelcolor=theme.ink, handlelength=1.2, columnspacing=1.2,
    )  # fmt: skip


def _summary(rank: int, each: Totals) -> str:
    """A rank's parts of the call."""
    text = (
        f"rank {rank}: its main stream computes {percent(each.computed_us / each.us)} of the call, waits "
        f"{percent(each.waited_us / each.us)}"
    )
    if not each.moved_us:
        return text
    hidden = percent(each.hidden_us / each.moved_us)
    return f"{text}; transfers take {short_us(each.moved_us)} µs, {hidden} hidden"


def _way(record: dict[str, Any]) -> str:
    return record["way"] + (", backward," if record["backward"] else "")


def _title(record: dict[str, Any]) -> str:
    stamped = median(record["stamped_us"])
    return f"One call of {_way(record)} on {record['topology']['gpus']} GPUs: {short_us(stamped)} µs"


def _how(record: dict[str, Any]) -> str:
    calls, plain = len(record["stamped_us"]), short_us(median(record["plain_us"]))
    late = "" if record["ahead"] else " A host was still queueing when its GPU began."
    return (
        f"{style.mask(record)}, fp16. Events after each operation. Ranks agree on 0 within the time that "
        "they take to leave a barrier.\nHidden: while a kernel of the rank runs. "
        f"The median of {calls} stamped calls; without stamps {plain} µs.{late}"
    )


def _alt(record: dict[str, Any]) -> str:
    parts = []
    whole = max(each["us"] for each in record["ranks"])
    for rank, (of_rank, summed) in enumerate(zip(record["ranks"], totals(record), strict=True)):
        long = [each for each in of_rank["pieces"] if each["end_us"] - each["begin_us"] >= TOLD * whole]
        told = (
            f"{label(each)[0]} on the {each['stream']} stream {short_us(each['begin_us'])} to "
            f"{short_us(each['end_us'])}"
            for each in long
        )
        parts.append(f"{_summary(rank, summed)}: {', '.join(told)}")
    return (
        f"Time line of {_way(record)} on {record['topology']['gpus']} GPUs at {style.mask(record)}, "
        f"{provenance(record)}: {short_us(median(record['stamped_us']))} µs, without stamps "
        f"{short_us(median(record['plain_us']))}. {'; '.join(parts)}."
    )
