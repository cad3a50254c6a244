"""The ladder: GPU time of every stage and of four peers on a logarithmic axis, for one GPU or several."""

from collections.abc import Sequence
from typing import Any

from flashcore_numba.records.amounts import provenance, short_us
from flashcore_numba.records.launched import overlapped
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import (
    best_peer,
    chosen_shape,
    defaults,
    named_peers,
    same_shape,
)
from flashcore_numba.report.pictures.style import Picture, Record, Theme

PITCH = 0.265  # inches a row, with one GPU
Series = tuple[dict[str, Any], dict[str, Any]]  # an artifact and the shape of it that is shown


def picture(records: Sequence[Record], at: tuple[str, bool] | None = None) -> Picture:
    """One row per stage and peer, at `at` (shape and mask) or `chosen_shape`. Raises LackingError."""
    found = same_shape(records, *(at or chosen_shape(records)))[: len(style.LIGHT.series)]
    series = [(record, measured) for (_, record), measured in found]
    return Picture(
        "ladder",
        _alt(series),
        tuple(path for (path, _), _ in found),
        lambda theme: _paint(series, theme),
    )


def _labels(series: Sequence[Series]) -> tuple[list[str], list[str]]:
    """Labels of the stages, in their order, and of the peers, each measured at least once."""
    stages = {e["stage"]: e["label"] for _, shape in series for e in defaults(shape)}
    names = dict.fromkeys(e["label"] for _, shape in series for e in named_peers(shape))
    return [stages[number] for number in sorted(stages)], list(names)


def _paint(series: Sequence[Series], theme: Theme) -> Any:
    stages, names = _labels(series)
    rows = {label: float(k) for k, label in enumerate(stages)}
    rows |= {label: len(stages) + k + 0.5 * bool(stages) for k, label in enumerate(names)}
    colours = theme.series[: len(series)] if len(series) > 1 else ()
    pitch = PITCH * (0.4 + 0.6 * len(series))
    figure = style.new_figure(1.7 + pitch * (len(rows) + 0.7))
    axes = figure.subplots()
    height = 0.8 / len(series)
    shown = []
    for k, (_, shape) in enumerate(series):
        shift = (k - (len(series) - 1) / 2) * height
        for entry in [*defaults(shape), *named_peers(shape)]:
            colour = colours[k] if colours else theme.of(entry)
            place = rows[entry["label"]] + shift
            other = overlapped(shape) if not colours else None
            shown += _write(axes, entry, other, place, colour, theme)
    axes.set_yticks(list(rows.values()), [_name(label) for label in rows], fontsize=12)
    axes.set_ylim(max(rows.values()) + 0.6, -0.6)
    axes.set_xscale("log")
    style.log_axis(axes.xaxis)
    axes.set_xlim(min(shown) / 1.6, max(shown) * 2.4)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("GPU time of one launch, median, µs (logarithmic)")
    record, shape = series[0]
    marks = f"{style.mask(shape)} (batch x heads x length x head dimension), fp16"
    if colours:
        marks += ".\nColours: see the foot. Where a dot is missing, that GPU or library did not run it."
    else:
        marks += f", on {record['gpu']['name']}. Every launch waits for the one before."
        if (best := best_peer(shape)) and best["label"] in rows:
            line = best["gpu_us"]["p50"]
            axes.axvline(line, color=theme.peer, linewidth=1.2, linestyle="--", zorder=1)
            axes.annotate(
                "the fastest library", (line, -0.1), xytext=(5, 0), textcoords="offset points", fontsize=10,
                va="center", color=theme.muted,
            )  # fmt: skip
        style.legend(axes, [*defaults(shape), *named_peers(shape)], theme, "lower right")
    style.caption(figure, _title(series), marks, [r for r, _ in series], theme, colours)
    return figure


def _title(series: Sequence[Series]) -> str:
    """What one GPU shows, in a sentence."""
    _, shape = series[0]
    us = [e["gpu_us"]["p50"] for e in defaults(shape) if e["error"]["right"]]
    best = best_peer(shape)
    if len(series) > 1 or len(us) < 2 or best is None:
        return "The ladder: how long one launch of attention takes"
    return (
        f"Attention in {len(us)} stages, from {short_us(us[0])} to {short_us(min(us))} µs; "
        f"the fastest library takes {short_us(best['gpu_us']['p50'])}"
    )


def _name(label: str) -> str:
    """A peer with what it is, where its label does not say so."""
    return f"{label} (FA2)" if label == "SDPA flash" else label


def _write(
    axes: Any, entry: dict[str, Any], other: dict[str, Any] | None, place: float, colour: str, theme: Theme
) -> list[float]:
    """A dot and its time; with a ring, what overlapped launches make of it. Returns the times."""
    own, text = entry["gpu_us"]["p50"], _time(entry)
    axes.plot(own, place, "o", ms=9, color=colour, zorder=3)
    times = [own]
    if other and other["stage"] == entry["stage"] and other["error"]["right"]:
        times.append(other["gpu_us"]["p50"])
        axes.plot(times[1], place, "o", ms=7, mfc=theme.background, mec=colour, mew=1.6, zorder=2)
        text += f"   ring: {_time(other)} where launches overlap"
    axes.annotate(
        text, (own, place), xytext=(10, 0), textcoords="offset points", va="center", fontsize=11.5,
        bbox={"facecolor": theme.background, "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    return times


def _time(entry: dict[str, Any]) -> str:
    """The measured time, and whether the clocks were held back; never the time of a wrong output."""
    if not entry["error"]["right"]:
        return "WRONG"
    return f"{short_us(entry['gpu_us']['p50'])} µs{' throttled' if entry['throttled'] else ''}"


def _alt(series: Sequence[Series]) -> str:
    parts = []
    for record, shape in series:
        shown = [
            f"{e['label']} {_time(e).replace(' µs', '')}" for e in [*defaults(shape), *named_peers(shape)]
        ]
        if len(series) == 1 and (other := overlapped(shape)):
            shown.append(f"stage {other['stage']} with overlapped launches {_time(other).replace(' µs', '')}")
        parts.append(f"{provenance(record)}: {', '.join(shown)}")
    return (
        f"Dots on a logarithmic axis: GPU time in microseconds, {style.mask(series[0][1])}, on "
        f"{'; on '.join(parts)}."
    )
