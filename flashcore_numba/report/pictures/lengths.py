"""Latency against length: a few stages and the best peer at one batch, head count and head dimension."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flashcore_numba.core.problem import Problem
from flashcore_numba.records.amounts import provenance, short_us
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import MILESTONES, best_peer, defaults, peers, problem
from flashcore_numba.report.pictures.style import Label, LackingError, Picture, Record, Theme

FEWEST = 3  # lengths that make a curve
LEAST = 0.05  # of the highest TFLOP/s: what is lower would touch the axis


@dataclass(frozen=True)
class Curve:
    """One stage or peer by length; `entry`: one of its entries, for name and colour."""

    entry: dict[str, Any]
    lengths: list[int] = field(default_factory=list)
    us: list[float] = field(default_factory=list)
    tflops: list[float] = field(default_factory=list)


def picture(records: Sequence[Record]) -> Picture:
    """Of the most lengths of one B x H x D and mask that one artifact has. Raises LackingError."""
    groups: dict[Any, tuple[Record, list[tuple[Problem, dict[str, Any]]]]] = {}
    for each in records:
        for shape in each[1]["shapes"]:
            p = problem(shape)
            if p.seq_q == p.seq_k:
                family = (p.causal, p.batch, p.heads, p.kv_heads, p.head_dim)
                groups.setdefault((each[0], family), (each, []))[1].append((p, shape))
    enough = [group for group in groups.values() if len(group[1]) >= FEWEST]
    if not enough:
        raise LackingError(f"no artifact has {FEWEST} lengths of one batch size, head count and dimension")
    (path, record), found = max(enough, key=lambda group: len(group[1]))
    found.sort(key=lambda pair: pair[0].seq_q)
    return Picture("lengths", _alt(record, found), (path,), lambda theme: _paint(record, found, theme))


def _curves(found: Sequence[tuple[Problem, dict[str, Any]]]) -> list[Curve]:
    curves: dict[str, Curve] = {}
    for p, shape in found:
        for entry in [*defaults(shape), *peers(shape)]:
            if entry["error"]["right"]:
                curve = curves.setdefault(entry["label"], Curve(entry))
                curve.lengths.append(p.seq_q)
                curve.us.append(entry["gpu_us"]["p50"])
                curve.tflops.append(p.flops / entry["gpu_us"]["p50"] / 1e6)
    return list(curves.values())


def _named(found: Sequence[tuple[Problem, dict[str, Any]]]) -> list[Curve]:
    """Stages of `MILESTONES`, or all where none of them ran, and the peer that is the best most often."""
    curves = _curves(found)
    best = [peer["label"] for _, shape in found if (peer := best_peer(shape))]
    peer = max(best, key=best.count, default=None)
    stages = [c for c in curves if c.entry["kind"] == "stage"]
    kept = [c for c in stages if c.entry["stage"] in MILESTONES] or stages
    return kept + [c for c in curves if c.entry["label"] == peer]


def _paint(record: dict[str, Any], found: Sequence[tuple[Problem, dict[str, Any]]], theme: Theme) -> Any:
    figure = style.new_figure(6.6)
    left, right = figure.subplots(1, 2)
    curves = _named(found)
    most = max(max(curve.tflops) for curve in curves)
    fast = [curve for curve in curves if max(curve.tflops) >= LEAST * most]
    for axes, shown, values in ((left, curves, "us"), (right, fast, "tflops")):
        for curve in shown:
            style_of = {"color": theme.of(curve.entry), "ls": "-" if curve.entry["kind"] == "stage" else "--"}
            axes.plot(curve.lengths, getattr(curve, values), "o", ms=4.5, lw=2, **style_of)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({n for curve in curves for n in curve.lengths}))
        style.log_axis(axes.xaxis)
        axes.tick_params(axis="x", rotation=45)
        axes.grid(axis="both")
        axes.set_xlabel("length S (logarithmic)")
    left.set_yscale("log")
    style.log_axis(left.yaxis)
    left.set_title("GPU time of one launch, median, µs (logarithmic)", loc="left", fontsize=10)
    right.set_ylim(0, most * 1.05)
    right.set_title("rate of the same launches, TFLOP/s", loc="left", fontsize=10)
    p = found[0][0]
    heads = f"{p.heads}" if p.group == 1 else f"{p.heads}/{p.kv_heads}"
    style.legend(left, [curve.entry for curve in curves], theme, "upper left")
    style.caption(
        figure,
        f"How the time of a launch grows with the length, on {record['gpu']['name']}",
        f"{p.batch}x{heads}xSx{p.head_dim} (batch x heads x length x head dimension), fp16"
        f"{', causal' if p.causal else ''}. Of the libraries the one that is fastest at most lengths.\n"
        f"On the right, what reaches {LEAST:.0%} of the highest rate.",
        [record],
        theme,
    )
    longest = found[-1][0].seq_q
    named = [(left, _ends(curves, "us", theme)), (right, _ends(fast, "tflops", theme))]
    style.name_ends([(axes, [end for end in ends if end.x == longest]) for axes, ends in named], theme)
    for axes, ends in named:
        style.name_points(axes, [end for end in ends if end.x < longest], theme)
    return figure


def _ends(curves: list[Curve], values: str, theme: Theme) -> list[Label]:
    return [
        Label(
            curve.lengths[-1],
            getattr(curve, values)[-1],
            curve.entry["label"],
            theme.of(curve.entry),
        )
        for curve in curves
    ]


def _alt(record: dict[str, Any], found: Sequence[tuple[Problem, dict[str, Any]]]) -> str:
    lengths = ", ".join(str(p.seq_q) for p, _ in found)
    parts = [
        f"{curve.entry['label']} {', '.join(map(short_us, curve.us))}"
        + (f" (from S = {curve.lengths[0]} to {curve.lengths[-1]})" if len(curve.us) < len(found) else "")
        for curve in _named(found)
    ]
    return (
        f"Curves of GPU time in microseconds, and of TFLOP/s, over length S = {lengths} at "
        f"{style.mask(found[0][1])} and its longer kin, {provenance(record)}: {'; '.join(parts)}."
    )
