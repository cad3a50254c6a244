"""The backward pass: rates of its stages and of other libraries at each recorded shape."""

import itertools
from collections.abc import Sequence
from typing import Any

from flashcore_numba.records.amounts import provenance, tflops
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import best_peer, defaults, peers
from flashcore_numba.report.pictures.style import Label, LackingError, Picture, Record, Theme

MARKS = "oDs^v*"  # of the stages, in the order in which they come
TIE = 1.01  # medians of two runs differ by more
CROWDED = 6  # marks of a row
LEAST = 0.05  # of the highest rate: what is lower would touch the axis


def picture(records: Sequence[Record]) -> Picture:
    """A row per shape and mask, of the GPU of the first artifact. Raises LackingError."""
    if not records:
        raise LackingError("no artifact is of the backward pass")
    own = [each for each in records if each[1]["gpu"]["name"] == records[0][1]["gpu"]["name"]]
    found: dict[tuple[str, bool], tuple[Record, dict[str, Any]]] = {}
    for record in own:
        for shape in record[1]["shapes"]:
            found.setdefault((shape["shape"], shape["causal"]), (record, shape))
    kept = list(found.values())
    used = list(dict.fromkeys(path for (path, _), _ in kept))
    by_path = {path: record for (path, record), _ in kept}
    sources = [by_path[path] for path in used]
    rows = [shape for _, shape in sorted(kept, key=lambda pair: order(pair[1]))]
    return Picture("backward", _alt(rows, sources), tuple(used), lambda theme: _paint(rows, sources, theme))


def order(shape: dict[str, Any]) -> tuple[int, int, bool]:
    """Short before long, D = 64 before 128, and of each the mask last."""
    *_, rows, dim = (int(part) for part in shape["shape"].split("x"))
    return rows, dim, shape["causal"]


def _fast(shape: dict[str, Any]) -> list[dict[str, Any]]:
    """What is right and not so slow that it would touch the axis."""
    right = [e for e in [*defaults(shape), *peers(shape)] if e["error"]["right"]]
    most = max(tflops(shape, e) for e in right)
    return [e for e in right if tflops(shape, e) >= LEAST * most]


def _paint(rows: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]], theme: Theme) -> Any:
    every = [_fast(shape) for shape in rows]
    # A row of so many marks that their labels need a second line has more room below it.
    *places, end = itertools.accumulate((1.7 if len(shown) > CROWDED else 1 for shown in every), initial=0)
    figure = style.new_figure(1.9 + 0.72 * end)
    axes = figure.subplots()
    stages = list(dict.fromkeys(e["label"] for shown in every for e in shown if e["kind"] == "stage"))
    marks = dict(zip(stages, MARKS, strict=False))
    labels = []
    for place, shape, shown in zip(places, rows, every, strict=True):
        values = [tflops(shape, entry) for entry in shown]
        axes.plot([min(values), max(values)], [place, place], color=theme.grid, lw=6, zorder=1)
        for entry, value in zip(shown, values, strict=True):
            mark = marks.get(entry["label"], "o")
            filled = theme.of(entry) if entry["kind"] == "stage" else theme.background
            axes.plot(value, place, mark, ms=8.5, mfc=filled, mec=theme.of(entry), mew=1.6, zorder=3)
            name = entry["label"].rpartition("/")[2]
            labels.append(Label(value, place, f"{name} {value:.0f}", theme.of(entry), 8.5))
    axes.set_yticks(places, [style.mask(shape) for shape in rows], fontsize=10)
    axes.set_ylim(end - 0.45, -0.6)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.04)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("TFLOP/s, five products of each head, from the median GPU time of a call")
    style.caption(
        figure,
        _title(rows),
        "Gradients of attention by q, k and v, with all that a call launches; fp16. Shapes: batch x heads x "
        "length x head dimension.\nFilled: stages. Rings: other libraries. Left out: what is below "
        f"{LEAST:.0%} of the fastest.",
        records,
        theme,
    )
    style.name_points(axes, labels, theme)
    return figure


def _title(rows: Sequence[dict[str, Any]]) -> str:
    """At how many shapes a stage is ahead of every library, by more than a tie."""
    ahead = [_ahead(shape) for shape in rows if best_peer(shape)]
    if not ahead:
        return "The backward pass"
    won = sum(factor > TIE for factor in ahead)
    return (
        f"The backward pass: {min(ahead):.2f} to {max(ahead):.2f} times the speed of the fastest library, "
        f"ahead at {won} of {len(ahead)}"
    )


def _ahead(shape: dict[str, Any]) -> float:
    """The fastest library's time over that of the fastest stage."""
    best = best_peer(shape)
    assert best is not None
    own = [e["gpu_us"]["p50"] for e in defaults(shape) if e["error"]["right"]]
    return best["gpu_us"]["p50"] / min(own) if own else 0.0


def _alt(rows: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> str:
    parts = []
    for shape in rows:
        rates = (f"{entry['label']} {tflops(shape, entry):.0f}" for entry in _fast(shape))
        parts.append(f"{style.mask(shape)}: {', '.join(rates)}")
    known = "; ".join(dict.fromkeys(provenance(record) for record in records))
    return f"Dots: TFLOP/s of the backward pass, {known}. {'; '.join(parts)}."
