"""The roofline: what each stage reaches under the roofs that the same GPU reached in the same run."""

import math
from collections.abc import Sequence
from typing import Any

from flashcore_numba.evidence.roofline import Row, rows
from flashcore_numba.records.amounts import provenance, short_us
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import best_peer, chosen_shape, defaults, problem, same_shape
from flashcore_numba.report.pictures.style import Label, LackingError, Picture, Record, Theme

# Ceilings in 10^9 bytes per second, by panel.
SLOPES = (
    {"l2_gbs": "L2", "dram_gbs": "DRAM"},
    {"l1_gbs": "L1, shared"},
)


def timed(records: Sequence[Record]) -> tuple[Record, dict[str, Any], list[Row]]:
    """The first artifact with ceilings, its shape and the rows of its stages. Raises LackingError."""
    found = same_shape(records, *chosen_shape(records))
    known = [item for item in found if item[0][1]["ceilings"]]
    if not known:
        raise LackingError(f"no artifact of {style.mask(found[0][1])} has measured ceilings")
    record, shape = known[0]
    right = {entry["label"] for entry in defaults(shape) if entry["error"]["right"]}
    stages = [row for row in rows(record[1], shape) if row.label in right]
    if not stages:
        raise LackingError(f"{record[0].name}: no stage of the ladder ran at {style.mask(shape)}")
    return record, shape, stages


def picture(records: Sequence[Record]) -> Picture:
    """Of the first artifact with measured ceilings. Raises LackingError."""
    (path, record), shape, stages = timed(records)
    return Picture(
        "roofline",
        _alt(record, shape, stages),
        (path,),
        lambda theme: _paint(record, shape, stages, theme),
    )


def _tflops(row: Row) -> float:
    assert row.gpu_us is not None
    return row.flops / row.gpu_us / 1e6


def _per_byte(row: Row) -> tuple[float, float]:
    """Operations for each byte of the L2, and of L1 and shared memory together."""
    return row.flops / row.l2_bytes, row.flops / row.l1_bytes


def _flat(record: dict[str, Any], shape: dict[str, Any]) -> dict[str, float]:
    """The ceilings that bytes do not move, in 10^12 operations per second, by name."""
    ceilings = record["ceilings"]
    exp = ceilings.get("exp_gops")
    named = {
        "tensor cores": ceilings.get("tensor_tflops"),
        "mma.sync": ceilings.get("mma_sync_tflops"),
        # One exponential goes with the 4 D operations of its pair.
        "exponentials": exp and exp * 4 * problem(shape).head_dim / 1e3,
        "CUDA cores": ceilings.get("fp32_tflops"),
    }
    return {name: value for name, value in named.items() if value}


def _paint(record: dict[str, Any], shape: dict[str, Any], stages: list[Row], theme: Theme) -> Any:
    figure = style.new_figure(7.0)
    panels = figure.subplots(1, 2, sharey=True)
    flat, best = _flat(record, shape), best_peer(shape)
    peer = best and (best["label"], problem(shape).flops / best["gpu_us"]["p50"] / 1e6)
    colours = {entry["label"]: theme.of(entry) for entry in defaults(shape)}
    top = max(flat.values(), default=2 * max(map(_tflops, stages)))
    for number, (axes, slopes) in enumerate(zip(panels, SLOPES, strict=True)):
        gbs = [value for key in slopes if (value := record["ceilings"].get(key))]
        seen = [_per_byte(row)[number] for row in stages] + [1e3 * top / value for value in gbs]
        axes.set(xscale="log", yscale="log", ylim=(min(map(_tflops, stages)) / 2.5, top * 2))
        axes.set_xlim(min(seen) / 3, max(seen) * 2)
        style.log_axis(axes.xaxis)
        style.log_axis(axes.yaxis)
        axes.grid(axis="both")
        left, right = axes.get_xlim()
        steepest = max(gbs, default=None)
        for value in flat.values():
            start = 1e3 * value / steepest if steepest else left
            axes.plot([start, right], [value, value], color=theme.muted, linewidth=1.4)
        if peer:
            start = 1e3 * peer[1] / steepest if steepest else left
            axes.plot([start, right], [peer[1], peer[1]], color=theme.peer, linewidth=1.4, linestyle="--")
        for value in gbs:
            ends = left, 1e3 * top / value
            axes.plot(ends, [value * x / 1e3 for x in ends], color=theme.muted, linewidth=1.4)
        for row in stages:
            filled = number == 1 or row.l2_measured
            axes.plot(
                _per_byte(row)[number],
                _tflops(row),
                "o",
                ms=9 if filled else 8,
                mew=1.8,
                mec=colours[row.label],
                mfc=colours[row.label] if filled else theme.background,
                zorder=4,
            )
    panels[0].set_ylabel("TFLOP/s")
    panels[0].set_xlabel("operations per byte of the L2")
    panels[1].set_xlabel("operations per byte of L1 and shared memory")
    style.legend(panels[1], [e for e in shape["entries"] if e["kind"] == "stage"], theme, "lower right")
    dim, words = problem(shape).head_dim, ""
    if "exponentials" in flat:
        rate, allowed = record["ceilings"]["exp_gops"], flat["exponentials"]
        words = (
            f"\nOne exponential goes with 4 x {dim} operations of its query row and key: "
            f"{rate:,.0f} x 10\u2079 per second allow {allowed:,.0f} TFLOP/s."
        )
    if not all(row.l2_measured for row in stages):
        words += "\nRings: by the bytes asked for, some of which the L1 serves."
    style.caption(
        figure,
        f"Roofline: what the stages reach, and what {record['gpu']['name']} allows",
        f"{style.mask(shape)} (batch x heads x length x head dimension), fp16, logarithmic axes. Numbers: "
        f"stages. Roofs: measured in the same run.{words}",
        [record],
        theme,
    )
    edge = panels[1].get_xlim()[1]
    ceilings = [
        Label(edge, value, f"{name} {value:.0f} TFLOP/s", theme.muted) for name, value in flat.items()
    ]
    if peer:
        ceilings.append(Label(edge, peer[1], f"{peer[0]} {peer[1]:.0f} TFLOP/s", theme.peer))
    style.name_ends([(panels[1], ceilings)], theme)
    for number, (axes, slopes) in enumerate(zip(panels, SLOPES, strict=True)):
        labels = [
            Label(_per_byte(row)[number], _tflops(row), f"{row.stage:02d}", colours[row.label])
            for row in stages
        ]
        style.name_points(axes, labels, theme)
        for key, name in slopes.items():
            if value := record["ceilings"].get(key):
                _name_slope(axes, name, value, key == "dram_gbs", labels, theme)
    return figure


def _name_slope(axes: Any, name: str, gbs: float, below: bool, dots: list[Label], theme: Theme) -> None:
    """The name of a bandwidth along its line, or below it, at the first place that is clear of the dots."""
    x0, y0 = axes.get_xlim()[0], axes.get_ylim()[0]
    text = f"{name} {gbs / 1e3:.1f} TB/s"
    point = axes.figure.dpi / 72
    length, clearance = 5.2 * len(text) * point, 22 * point
    taken = [axes.transData.transform((dot.x, dot.y)) for dot in dots]
    first = max(x0, 1e3 * y0 / gbs) * 1.7
    here, there = (axes.transData.transform((x, gbs * x / 1e3)) for x in (first, 2 * first))
    step = (there - here) / math.dist(here, there)
    for k in range(40):
        start = here + k * clearance / 2 * step
        along = [start + part * length * step for part in (0, 0.2, 0.4, 0.6, 0.8, 1)]
        if all(math.dist(place, dot) > clearance for place in along for dot in taken):
            break
    axes.annotate(
        text,
        tuple(axes.transData.inverted().transform(start)),
        xytext=(9, -9) if below else (-4, 5),
        textcoords="offset points",
        rotation=math.degrees(math.atan2(step[1], step[0])),
        rotation_mode="anchor",
        fontsize=9,
        color=theme.muted,
    )


def _alt(record: dict[str, Any], shape: dict[str, Any], stages: list[Row]) -> str:
    ceilings = [f"{name} {value:.0f} TFLOP/s" for name, value in _flat(record, shape).items()]
    ceilings += [
        f"{name} {value / 1e3:.1f} TB/s"
        for key, name in (SLOPES[0] | SLOPES[1]).items()
        if (value := record["ceilings"].get(key))
    ]
    of = [
        f"{row.label} {short_us(_tflops(row))} at {'' if row.l2_measured else 'at least '}"
        f"{' and '.join(map(short_us, _per_byte(row)))}"
        for row in stages
    ]
    return (
        f"Roofline plot, {style.mask(shape)}, {provenance(record)}. Ceilings: {', '.join(ceilings)}. Stages, "
        f"TFLOP/s at operations for a byte of L2 and of L1 and shared memory: {', '.join(of)}."
    )
