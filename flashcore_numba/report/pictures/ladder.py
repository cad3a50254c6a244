"""The ladder: GPU time of every stage and peer on a logarithmic axis, for one GPU or several."""

from collections.abc import Sequence
from typing import Any

from flashcore_numba.records.amounts import provenance, short_us, times
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import chosen_shape, defaults, peers, same_shape
from flashcore_numba.report.pictures.style import Picture, Record, Theme

PITCH = 0.32  # inches a row, with one GPU
Series = tuple[dict[str, Any], dict[str, Any]]  # an artifact and the shape of it that is shown


def picture(records: Sequence[Record], at: tuple[str, bool] | None = None) -> Picture:
    """One row a stage and peer, at `at` (shape and mask) or `chosen_shape`. Raises LackingError."""
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
    names = dict.fromkeys(e["label"] for _, shape in series for e in peers(shape))
    return [stages[number] for number in sorted(stages)], list(names)


def _variants(shape: dict[str, Any], entry: dict[str, Any]) -> list[dict[str, Any]]:
    if entry["kind"] == "peer":
        return []
    return [e for e in shape["entries"] if e["stage"] == entry["stage"] and not e["default"]]


def _paint(series: Sequence[Series], theme: Theme) -> Any:
    stages, names = _labels(series)
    rows = {label: float(k) for k, label in enumerate(stages)}
    rows |= {label: len(stages) + k + 0.5 * bool(stages) for k, label in enumerate(names)}
    colours = theme.series[: len(series)] if len(series) > 1 else ()
    pitch = PITCH * (0.4 + 0.6 * len(series))
    figure = style.new_figure(1.9 + pitch * (len(rows) + 0.7))
    axes = figure.subplots()
    height = 0.8 / len(series)
    for k, (_, shape) in enumerate(series):
        shift = (k - (len(series) - 1) / 2) * height
        for entry in [*defaults(shape), *peers(shape)]:
            colour = colours[k] if colours else theme.of(entry)
            place = rows[entry["label"]] + shift
            _mark(axes, entry, place, colour)
            _write(axes, shape, entry, place, colour, theme, not colours)
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_ylim(max(rows.values()) + 0.6, -0.6)
    axes.set_xscale("log")
    style.log_axis(axes.xaxis)
    every = [e for _, shape in series for e in shape["entries"]]
    seen = [e["gpu_us"]["p50"] for e in every]
    axes.set_xlim(min([*seen, *filter(None, map(_limit, every))]) / 1.4, max(seen) * 3)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("GPU time of one launch, median, µs (logarithmic)")
    marks = f"{style.mask(series[0][1])} (B x H x S x D), fp16. Dots: measured; strokes: what the GPU allows"
    marks += (
        ".\nColours: see the foot. Where a dot is missing, that GPU or library did not run it."
        if colours
        else f"; rings: variants of the stage;\nin brackets: times faster than 01. {style.KINDS}"
    )
    style.caption(
        figure, "The ladder: how long one launch takes", marks, [r for r, _ in series], theme, colours
    )
    return figure


def _limit(entry: dict[str, Any]) -> float | None:
    """The time that the hardware allows; None where its rates are not known."""
    return entry["gpu_us"]["p50"] * entry["share_of_limit"] if entry["share_of_limit"] else None


def _mark(axes: Any, entry: dict[str, Any], place: float, colour: str) -> None:
    """A dot at the measured time and a thin line back to the limit, where a stroke stands."""
    time, limit = entry["gpu_us"]["p50"], _limit(entry)
    if limit:
        axes.plot([limit, time], [place, place], color=colour, linewidth=2, alpha=0.55, zorder=2)
        axes.plot(limit, place, "|", ms=9, mew=2, color=colour, zorder=2)
    axes.plot(time, place, "o", ms=9, color=colour, zorder=3)


def _write(
    axes: Any,
    shape: dict[str, Any],
    entry: dict[str, Any],
    place: float,
    colour: str,
    theme: Theme,
    one: bool,
) -> None:
    """The figures behind a dot and, with one GPU, the rings of the variants."""
    own = entry["gpu_us"]["p50"]
    text, right = _time(entry), entry["error"]["right"]
    if right and one and entry["kind"] == "stage" and entry["stage"] != 1 and entry["speed_up"]["stage_01"]:
        text += f"  ({times(entry['speed_up']['stage_01'])})"
    if one:
        for ring in (variants := _variants(shape, entry)):
            axes.plot(
                ring["gpu_us"]["p50"], place + 0.34, "o", ms=4.5, mfc=theme.background, mec=colour, mew=1.2
            )
        able = [e for e in variants if e["error"]["right"]]
        fastest = min(able, key=lambda e: e["gpu_us"]["p50"], default=entry)
        if fastest["gpu_us"]["p50"] < own:
            text += f"   {_name(fastest)}: {_time(fastest)}"
    axes.annotate(text, (own, place), xytext=(9, 0), textcoords="offset points", va="center", fontsize=10)


def _time(entry: dict[str, Any]) -> str:
    """The measured time, and whether the clocks were held back; never the time of a wrong output."""
    if not entry["error"]["right"]:
        return "WRONG"
    return f"{short_us(entry['gpu_us']['p50'])} µs{' throttled' if entry['throttled'] else ''}"


def _name(entry: dict[str, Any]) -> str:
    return f"variant {entry['variant']}" if entry["variant"].isdigit() else entry["variant"]


def _alt(series: Sequence[Series]) -> str:
    parts = []
    for record, shape in series:
        entries = [
            f"{e['label']} {_time(e).replace(' µs', '')}"
            for e in shape["entries"]
            if len(series) == 1 or e["default"]
        ]
        parts.append(f"{provenance(record)}: {', '.join(entries)}")
    return (
        f"Dots on a logarithmic axis: GPU time in microseconds, {style.mask(series[0][1])}, on "
        f"{'; on '.join(parts)}."
    )
