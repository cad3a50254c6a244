"""Speed against the best peer over the shapes that matter, with and without the mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashcore_numba.records.amounts import provenance, short_us
from flashcore_numba.report.pictures import style
from flashcore_numba.report.pictures.records import MILESTONES, best_peer, defaults, problem, same_shape
from flashcore_numba.report.pictures.style import LackingError, Picture, Record, Theme

# The shapes that a reader asks for, as far as they were measured: short, of models, many rows, wide, long.
SHAPES = {  # and whose they are
    "1x8x512x64": "",
    "1x8x1024x64": "",
    "4x8x256x64": "",
    "1x12x384x64": "BERT",
    "1x16x577x64": "ViT-L/336",
    "1x20x1500x64": "Whisper",
    "64x16x128x64": "",
    "1x8x512x128": "",
    "4x32x4096x64": "",
    "4x16x4096x128": "",
    "1x24x4429x128": "FLUX",
    "1x16x16384x128": "",
}
COLUMNS = {*MILESTONES, 14}  # 14 is the best where there are too few rows for 15
CLIP = 4.0  # times slower or faster, from where on the colour stays the same


@dataclass(frozen=True)
class Line:
    """One shape and mask: the best peer, and by stage number its time over the stage's."""

    shape: dict[str, Any]
    peer: dict[str, Any]
    shares: dict[int, float]

    @property
    def throttled(self) -> bool:
        """Whether the clocks were held back in a time that is shown."""
        return any(entry["throttled"] for entry in (*defaults(self.shape), self.peer))


def picture(records: Sequence[Record]) -> Picture:
    """Of the GPU of the first artifact. Raises LackingError."""
    own = [record for record in records if record[1]["gpu"]["name"] == records[0][1]["gpu"]["name"]]
    every = {(s["shape"], s["causal"]): s for _, record in own for s in record["shapes"]}
    shapes = {key: shape for key, shape in every.items() if key[0] in SHAPES} or every
    lines, used = [], {}
    for key in sorted(shapes, key=lambda key: _order(shapes[key])):
        (path, record), shape = same_shape(own, *key)[0]
        if line := _line(shape):
            lines.append(line)
            used[path] = record
    if not lines:
        raise LackingError("no artifact has a stage and a peer at one shape")
    return Picture(
        "share",
        _alt(lines, list(used.values())),
        tuple(path for path, _ in own if path in used),
        lambda theme: _paint(lines, list(used.values()), theme),
    )


def _order(shape: dict[str, Any]) -> tuple[int, ...]:
    """As in `SHAPES`, then by size; those with the mask last."""
    p, name = problem(shape), shape["shape"]
    return (
        p.causal,
        list(SHAPES).index(name) if name in SHAPES else len(SHAPES),
        p.head_dim,
        p.batch,
        p.heads,
        p.seq_q,
        p.seq_k,
    )


def _line(shape: dict[str, Any]) -> Line | None:
    best = best_peer(shape)
    shares = {e["stage"]: e["speed_up"]["best_peer"] for e in defaults(shape) if e["error"]["right"]}
    return Line(shape, best, shares) if best and shares else None


def _paint(lines: list[Line], records: list[dict[str, Any]], theme: Theme) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    ran = sorted({number for line in lines for number in line.shares})
    stages = [number for number in ran if number in COLUMNS] or ran
    figure = style.new_figure(2.0 + 0.19 * len(records) + 0.3 * (len(lines) + 1))
    axes = figure.subplots()
    colours = LinearSegmentedColormap.from_list("share", theme.ramp)
    norm = LogNorm(1 / CLIP, CLIP, clip=True)
    masked = [line.shape["causal"] for line in lines]
    places = [k + 0.5 * (masked[k] and not masked[0]) for k in range(len(lines))]
    for line, place in zip(lines, places, strict=True):
        for column, number in enumerate(stages):
            if number in line.shares:
                _cell(axes, column, place, line.shares[number], colours, norm, theme)
        peer = f"{line.peer['label']}  {short_us(line.peer['gpu_us']['p50'])} µs"
        axes.text(len(stages) - 0.3, place, peer, va="center", fontsize=9.5)
    axes.text(-0.62, -0.83, "stage", va="center", ha="right", fontsize=10.5, color=theme.muted)
    axes.text(len(stages) - 0.3, -0.83, "the fastest library", va="center", fontsize=9.5, color=theme.muted)
    axes.set_xlim(-0.5, len(stages) + 1.8)
    axes.set_ylim(places[-1] + 0.5, -0.5)
    axes.set_xticks(range(len(stages)), [f"{number:02d}" for number in stages])
    axes.set_yticks(places, [_name(line) for line in lines])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style.caption(
        figure,
        f"Speed in % of the fastest library's, on {records[0]['gpu']['name']}",
        "A cell is the time of the fastest other library over the stage's: green and framed above 100,\n"
        "where the stage is faster; orange below. Shapes: batch x heads x length x head dimension, fp16."
        + " Empty: not in these runs." * any(number not in line.shares for line in lines for number in stages)
        + " * clocks held back" * any(line.throttled for line in lines),
        records,
        theme,
    )
    return figure


def _name(line: Line) -> str:
    of = SHAPES.get(line.shape["shape"], "")
    return f"{of}  {style.mask(line.shape)}".strip() + " *" * line.throttled


def _cell(axes: Any, column: int, place: float, share: float, colours: Any, norm: Any, theme: Theme) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    fill = to_hex(colours(norm(share)))
    text = max((theme.ink, theme.background), key=lambda colour: style.contrast(colour, fill))
    edge, width = (theme.ink, 1.6) if share > 1 else (theme.background, 1.0)
    axes.add_patch(
        Rectangle((column - 0.46, place - 0.44), 0.92, 0.88, facecolor=fill, edgecolor=edge, linewidth=width)
    )
    axes.text(column, place, percentage(share), ha="center", va="center", fontsize=9, color=text)


def percentage(share: float) -> str:
    """Of 1: `0.47`, `9.1`, `45`, `107`."""
    value = 100 * share
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def _alt(lines: list[Line], records: list[dict[str, Any]]) -> str:
    """In words, the best stage of each shape."""
    parts = []
    for line in lines:
        best = max(line.shares, key=lambda number: line.shares[number])
        parts.append(
            f"{style.mask(line.shape)}: stage {best:02d} {percentage(line.shares[best])} % of "
            f"{line.peer['label']}{', clocks held back' if line.throttled else ''}"
        )
    known = "; ".join(dict.fromkeys(provenance(record) for record in records))
    return (
        f"Table of stages' speeds in per cent of the fastest library's at {len(lines)} shapes, {known}. "
        f"The best stage of each shape: {', '.join(parts)}."
    )
