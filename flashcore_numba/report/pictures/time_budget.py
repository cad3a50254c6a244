"""The time budget: of each stage's measured time, the part that each unit of the GPU needs at the least."""

from collections.abc import Sequence
from typing import Any

from flashcore_numba.evidence.roofline import LATENCY, SHORT, Row
from flashcore_numba.records.amounts import percent, provenance, short_us
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.roofline import timed
from flashcore_numba.report.pictures.style import Picture, Record, Theme

TRACK = 0.86  # of a column's width


def picture(records: Sequence[Record]) -> Picture:
    """Of the first artifact with measured ceilings. Raises LackingError."""
    (path, record), shape, rows = timed(records)
    return Picture(
        "time-budget", _alt(record, shape, rows), (path,), lambda theme: _paint(record, shape, rows, theme)
    )


def _paint(record: dict[str, Any], shape: dict[str, Any], rows: list[Row], theme: Theme) -> Any:
    figure = style.new_figure(1.75 + 0.4 * (len(rows) + 1))
    axes = figure.subplots()
    units = [unit for unit in SHORT if any(unit in row.units_us for row in rows)]
    for place, row in enumerate(rows):
        for column, unit in enumerate(units):
            if unit in row.units_us:
                _cell(axes, row, unit, column, place, theme)
        axes.text(len(units) + 0.55, place + 0.1, short_us(row.gpu_us), ha="right", va="center", fontsize=11)
    axes.set_xlim(-0.05, len(units) + 0.6)
    axes.set_ylim(len(rows) - 0.6, -0.6)
    axes.set_yticks([place + 0.1 for place in range(len(rows))], [row.label for row in rows])
    axes.set_xticks(
        [*(column + TRACK / 2 for column in range(len(units))), len(units) + 0.35],
        [*(SHORT[unit] for unit in units), "measured"],
        fontsize=10,
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style.caption(
        figure,
        "Time budget: how long each unit is busy at the least, µs",
        f"{style.mask(shape)}, fp16. A unit's work over the rate that it reached in the same run; % and "
        "bars: part of the\nmeasured time. Bold: the busiest unit, "
        f"green from {LATENCY:.0%} on; below, waiting takes most."
        + ("" if all(row.l2_measured for row in rows) else " \u2264: the L1 may serve some of it."),
        [record],
        theme,
    )
    return figure


def _cell(axes: Any, row: Row, unit: str, column: int, place: int, theme: Theme) -> None:
    from matplotlib.patches import Rectangle

    assert row.gpu_us is not None
    part = row.units_us[unit] / row.gpu_us
    axes.add_patch(Rectangle((column, place + 0.05), TRACK, 0.22, facecolor=theme.grid))
    colour = theme.tensor if unit == row.limiter else theme.fp32
    axes.add_patch(Rectangle((column, place + 0.05), TRACK * min(part, 1.0), 0.22, facecolor=colour))
    weight = "bold" if unit == row.busiest else "normal"
    near = percent(part) == percent(LATENCY)  # which side of it must show
    text = f"{_time(row, unit)}  {f'{part:.1%}' if near else percent(part)}"
    axes.text(column, place - 0.02, text, va="bottom", fontsize=9, fontweight=weight)


def _time(row: Row, unit: str) -> str:
    bound = "\u2264 " if unit == "l2" and not row.l2_measured else ""
    return bound + short_us(row.units_us[unit])


def _alt(record: dict[str, Any], shape: dict[str, Any], rows: list[Row]) -> str:
    parts = []
    for row in rows:
        units = [f"{SHORT[unit]} {_time(row, unit)}" for unit in row.units_us]
        parts.append(f"{row.label} measured {short_us(row.gpu_us)}: {', '.join(units)}")
    return (
        f"Table with bars: microseconds that each unit needs at the least, at {style.mask(shape)}, "
        f"{provenance(record)}. {'; '.join(parts)}."
    )
