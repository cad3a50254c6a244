"""Error beside speed: no time without the error of the very output that was timed."""

import math
from collections.abc import Sequence
from typing import Any

from flashcore_numba.records.amounts import percent, provenance, short_us
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import chosen_shape, defaults, peers, same_shape
from flashcore_numba.report.pictures.style import Label, LackingError, Picture, Record, Theme


def picture(records: Sequence[Record]) -> Picture:
    """Of the first artifact that has the shape. Raises LackingError."""
    (path, record), shape = same_shape(records, *chosen_shape(records))[0]
    entries = [e for e in [*defaults(shape), *peers(shape)] if e["error"]["max"] and e["error"]["margin"]]
    if not entries:
        raise LackingError(f"{path.name}: no error of {style.mask(shape)} is known")
    return Picture(
        "error-speed",
        _alt(record, shape, entries),
        (path,),
        lambda theme: _paint(record, shape, entries, theme),
    )


def _paint(record: dict[str, Any], shape: dict[str, Any], entries: list[dict[str, Any]], theme: Theme) -> Any:
    figure = style.new_figure(7.4)
    above, below = figure.subplots(2, 1, sharex=True)
    times = [e["gpu_us"]["p50"] for e in entries]
    errors = [e["error"]["max"] for e in entries]
    used = [100 / e["error"]["margin"] for e in entries]
    for axes, values in ((above, errors), (below, used)):
        for entry, time, value in zip(entries, times, values, strict=True):
            axes.plot(time, value, "o", ms=8, color=theme.of(entry), zorder=3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(axis="both")
    decades = math.floor(math.log10(min(errors))), math.floor(math.log10(max(errors))) + 1
    above.set_ylim(*(10.0**n for n in decades))
    style.log_axis(above.yaxis)
    above.set_ylabel("largest error")
    below.set_ylim(min(used) / 3, max(250.0, max(used) * 2))
    below.axhline(100, color=theme.ink, linewidth=1.2, linestyle="--")
    below.annotate(
        "100 %: from here on an output is wrong",
        (0.995, 100),
        xycoords=below.get_yaxis_transform(),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        fontsize=9.5,
    )
    below.set_ylabel("share of its bound, %")
    style.log_axis(below.yaxis)
    style.log_axis(below.xaxis)
    below.set_xlim(min(times) / 1.5, max(times) * 1.8)
    below.set_xlabel("GPU time of one launch, median, µs (logarithmic)")
    style.caption(
        figure,
        "How wrong is what was timed?",
        f"{style.mask(shape)}, fp16. {style.KINDS} Numbers: stages.\n"
        "Above: the largest |output - float64 attention|. Below: at the element nearest to its bound.",
        [record],
        theme,
    )
    for axes, values in ((above, errors), (below, used)):
        labels = [
            Label(time, value, style.short_name(entry), theme.of(entry))
            for entry, time, value in zip(entries, times, values, strict=True)
        ]
        style.name_points(axes, labels, theme)
    return figure


def _alt(record: dict[str, Any], shape: dict[str, Any], entries: list[dict[str, Any]]) -> str:
    parts = [
        f"{e['label']} {short_us(e['gpu_us']['p50'])}, {e['error']['max']:.1e}, "
        f"{percent(1 / e['error']['margin'])}"
        for e in entries
    ]
    return (
        f"Two dot plots over GPU time at {style.mask(shape)}, {provenance(record)}: the largest error, and "
        f"how much of its bound the error uses. Label, microseconds, error, part: {'; '.join(parts)}."
    )
