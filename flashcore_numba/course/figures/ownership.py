"""One picture of a stage before its code: who owns which rows, where tiles live, the walk over the keys."""

from typing import Any

import numpy as np

from flashcore_numba.course.figures import division
from flashcore_numba.course.figures.canvas import (
    BLUE,
    CYCLE,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.division import Division, Owners, Place
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.figures.recording import WARP
from flashcore_numba.simulator.group import MAX_SHARED
from flashcore_numba.stages import Stage

WIDTH, HEIGHT = 9.4, 6.3  # inches
MATRICES = ("Q", "K", "V", "S", "P", "O", "m, l")
MEMORIES = {
    division.GLOBAL: ("global", "bytes per head", "#FBE3B5"),
    division.SHARED: ("shared", "bytes per block", "#BFE1F6"),
    division.REGISTERS: ("registers", "bytes per lane", "#B5E3D2"),
}
KINDS = {
    division.LOAD: (ORANGE, "////", "brought from global memory"),
    division.MULTIPLY: (SKY, "", "multiplied"),
    division.SOFTMAX: (YELLOW, "", "softmax"),
    division.MERGE: (PURPLE, "", "parts merged"),
}
MOST_LINES, MOST_NAMED = 128, 32  # pieces of a whole that are drawn, and those that are numbered


def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The stage as `division.of` describes it, which see for what it raises."""
    d = division.of(stage)
    caption = (
        "Left: the query rows of a head, cut into work tiles, and who has which element of the first one. "
        "Right: where each matrix lives. Below: the walk over the keys."
    )
    return Figure(f"Who owns what: {whose}", (Frame(png(painted(d)), caption, in_words(d)),))


@lettered
def painted(d: Division) -> Any:
    """The picture, as a figure of matplotlib."""
    figure = paper(WIDTH, HEIGHT)
    figure.text(0.012, 0.965, _heading(d), fontsize=10.5)
    warp = "block:warp" if d.cluster > 1 else "the warp"
    named = f"number and colour: {warp}; black: one lane" if d.owners else ""
    _section(figure, 0.012, 0.915, "Who owns what", named)
    _section(figure, 0.645, 0.915, "Where it lives", "")
    _section(figure, 0.012, 0.382, "The walk over the keys", d.walk.loads and f"loads: {d.walk.loads}")
    _rows(figure, d)
    _owners(figure, d)
    _places(figure, d)
    _keys(figure, d)
    _walk(figure, d)
    return figure


def _heading(d: Division) -> str:
    """What is launched, in one line."""
    shape = f"one head of {d.shape}"
    if not d.grid:
        return f"{shape}: one query row after the other, in NumPy"
    tiles = " x ".join(
        several(n, word)
        for n, word in ((d.row_tiles, "work tile"), (d.shape.heads, "head"), (d.shape.batch, "batch"))
        if n > 1
    ).replace("batchs", "batches")
    works, blocks = d.row_tiles * d.shape.heads * d.shape.batch, int(np.prod(d.grid))
    if blocks == works * d.cluster:
        who = f"{blocks:,} blocks" if d.cluster == 1 else f"{works:,} clusters of {d.cluster} blocks"
    else:
        who = f"{works:,}, which {blocks:,} blocks share"
    return f"{d.shape}: {tiles} = {who}; {d.warps * WARP} threads per block"


def _section(figure: Any, x: float, y: float, title: str, more: str) -> None:
    figure.text(x, y, title, fontsize=10, fontweight="bold")
    figure.text(x + 0.0105 * len(title), y, more, fontsize=9, color="#555555")


def _rows(figure: Any, d: Division) -> None:
    """The query rows of a head; the first work tile in colour."""
    axes = figure.add_axes((0.075, 0.475, 0.04, 0.385))
    axes.broken_barh([(0, 1)], (0, d.shape.seq), fc="white", ec=INK, lw=0.8)
    axes.broken_barh([(0, 1)], (0, d.rows), fc=BLUE, ec=INK, lw=0.8)
    if d.row_tiles <= MOST_LINES:
        axes.hlines(np.arange(d.rows, d.shape.seq, d.rows), 0, 1, color=INK, lw=min(0.6, 20 / d.row_tiles))
    axes.set_xlim(0, 1)
    axes.set_ylim(d.shape.seq, 0)
    axes.set_yticks([0, d.rows, d.shape.seq] if d.rows > d.shape.seq / 20 else [0, d.shape.seq])
    axes.set_xticks([])
    axes.set_ylabel("query rows of a head", labelpad=0)
    axes.tick_params(length=2)
    axes.spines[:].set_visible(False)
    axes.set_title("Q, O", fontsize=9.5)


def _owners(figure: Any, d: Division) -> None:
    left, right = 0.165, 0.6
    if not d.owners:
        _one_row(figure, d, left, right)
        return
    width = (right - left) / len(d.owners)
    for n, owners in enumerate(d.owners):
        axes = figure.add_axes((left + n * width, 0.475, width - 0.035, 0.385))
        _map(axes, d, owners)
        if n == 0:
            axes.set_ylabel("rows of one work tile", labelpad=0)
        else:
            axes.set_yticks([])


def _map(axes: Any, d: Division, owners: Owners) -> None:
    """The sheets side by side: a colour and a number for each warp, black for what one lane has."""
    rows, columns = owners.sheets[0].shape
    gap = max(1, columns // 24)
    step = columns + gap
    for n, sheet in enumerate(owners.sheets):
        warp = sheet // WARP
        picture = np.array([_rgb(CYCLE[k % len(CYCLE)], 0.45) for k in range(warp.max() + 1)])[warp]
        if owners.lanes:
            picture[sheet == owners.one_lane] = _rgb(INK, 0)
        axes.imshow(
            picture, extent=(n * step, n * step + columns, rows, 0), aspect="auto", interpolation="nearest"
        )
        for line in np.flatnonzero((warp[1:] != warp[:-1]).any(1)) + 1:
            axes.hlines(line, n * step, n * step + columns, color="white", lw=1)
        for line in np.flatnonzero((warp[:, 1:] != warp[:, :-1]).any(0)) + 1:
            axes.vlines(n * step + line, 0, rows, color="white", lw=1)
        for number in np.unique(warp):
            _name(axes, d, warp == number, int(number), n * step, owners)
    end = len(owners.sheets) * step - gap
    axes.set_xlim(0, end)
    axes.set_ylim(rows, 0)
    axes.set_yticks([0, rows])
    axes.set_xticks([0, columns] if len(owners.sheets) == 1 else [])
    axes.tick_params(length=2, pad=1)
    axes.spines[:].set_visible(False)
    sheets = f"{len(owners.sheets)} x " if len(owners.sheets) > 1 else ""
    axes.set_title(f"{owners.matrix}: {sheets}[{rows}, {columns}]", fontsize=9.5)
    have = f"{owners.per_lane} per lane" + ", unspecified" * (not owners.lanes)
    axes.set_xlabel(f"{owners.columns}\n{have}", fontsize=8.5, labelpad=1)


def _name(axes: Any, d: Division, mine: np.ndarray, warp: int, left: int, owners: Owners) -> None:
    """The number of a warp in the middle of its part, where that is one piece."""
    rows, columns = np.flatnonzero(mine.any(1)), np.flatnonzero(mine.any(0))
    middle = (rows[0] + rows[-1] + 1) / 2, left + (columns[0] + columns[-1] + 1) / 2
    text = f"{warp // d.warps}:{warp % d.warps}" if d.cluster > 1 else str(warp)
    size = min(9.0, max(5.5, 185 * len(rows) / mine.shape[0] * 0.8))
    word = "warp " if d.cluster == 1 and len(owners.warps) <= 8 and len(columns) > mine.shape[1] / 2 else ""
    axes.text(middle[1], middle[0], word + text, ha="center", va="center", fontsize=size,
              bbox={"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.8})  # fmt: skip


def _one_row(figure: Any, d: Division, left: float, right: float) -> None:
    """Of stage 00: a row of Q against all keys."""
    axes = figure.add_axes((left, 0.475, right - left - 0.035, 0.385))
    for k, (name, width, text) in enumerate(
        (
            ("Q[i]", 0.3, f"{d.shape.head_dim} numbers"),
            ("scores", 1.0, f"one for each of {d.shape.seq} keys"),
            ("p", 1.0, "their softmax"),
            ("O[i]", 0.3, f"{d.shape.head_dim} numbers"),
        )
    ):
        axes.broken_barh([(0, width)], (k + 0.3, 0.4), fc=CYCLE[k], ec=INK, lw=0.8)
        axes.text(0.0, k + 0.2, f"{name}: {text}", ha="left", va="center", fontsize=9)
    axes.set_xlim(0, 1)
    axes.set_ylim(4, 0)
    axes.axis("off")


def _places(figure: Any, d: Division) -> None:
    """A grid: a row for each matrix, a column for each memory."""
    axes = figure.add_axes((0.645, 0.41, 0.345, 0.485))
    for x, (memory, (name, whose, colour)) in enumerate(MEMORIES.items()):
        axes.text(
            x + 0.5,
            -0.42,
            name if d.grid else ("memory", "", "")[x],
            ha="center",
            fontsize=9,
            fontweight="bold",
        )
        axes.text(x + 0.5, -0.1, whose if d.grid else ("bytes", "", "")[x], ha="center", fontsize=8)
        for y, matrix in enumerate(MATRICES if d.grid or x == 0 else ()):
            place = _place(d, matrix, memory)
            axes.broken_barh([(x + 0.02, 0.96)], (y + 0.04, 0.92), fc=colour if place else "#F7F7F7",
                             ec="#888888" if place else GREY, lw=0.6)  # fmt: skip
            if place:
                over = f"over {place.over}" if place.over else f"{place.bytes:,}"
                axes.text(
                    x + 0.5,
                    y + 0.5,
                    f"{place.what}\n{over}",
                    ha="center",
                    va="center",
                    fontsize=7.6,
                    linespacing=1.15,
                )
    for y, matrix in enumerate(MATRICES):
        axes.text(-0.06, y + 0.5, matrix, ha="right", va="center", fontsize=10, fontweight="bold")
    if d.grid:
        end = 3 * d.shared_bytes / MAX_SHARED
        axes.broken_barh([(0, 3)], (7.25, 0.3), fc="white", ec=INK, lw=0.7)
        axes.broken_barh([(0, end)], (7.25, 0.3), fc=MEMORIES[division.SHARED][2], ec=INK, lw=0.7)
        text = f"shared: {d.shared_bytes:,} of at most {MAX_SHARED:,} bytes"
        axes.text(0, 7.95, text, fontsize=8)
    axes.set_xlim(-0.3, 3)
    axes.set_ylim(8.1, -0.75)
    axes.axis("off")


def _place(d: Division, matrix: str, memory: str) -> Place | None:
    return next((p for p in d.places if (p.matrix, p.memory) == (matrix, memory)), None)


def _keys(figure: Any, d: Division) -> None:
    """The keys of a head as tiles, and the way over them."""
    axes = figure.add_axes((0.165, 0.302, 0.82, 0.075))
    tile, seq = d.walk.tile, d.shape.seq
    for n in range(d.tiles if d.tiles <= MOST_NAMED * 2 else 1):
        wide = min(tile, seq - n * tile) if d.tiles <= MOST_NAMED * 2 else seq
        axes.broken_barh([(n * tile, wide)], (0, 0.9), fc="#F2F2F2", ec=INK, lw=0.6)
        if d.tiles <= MOST_NAMED:
            axes.text(n * tile + wide / 2, 0.42, str(n), ha="center", va="center", fontsize=8)
    ends = (seq, 0) if d.walk.backwards else (0, seq)
    for n, name in enumerate(d.walk.passes):
        y = 1.35 + 0.6 * n
        axes.annotate(
            "", (ends[1], y), (ends[0], y), arrowprops={"arrowstyle": "->", "color": INK, "lw": 1.2}
        )
        if len(d.walk.passes) > 1:
            x = seq * (n + 1) / (len(d.walk.passes) + 2)  # left of what the figure says above
            axes.text(x, y, f"walk {n + 1}: {name}", ha="center", va="center", fontsize=8.5,
                      bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
    axes.set_xlim(0, seq)
    axes.set_ylim(0, 2.8)
    axes.axis("off")
    keys = several(tile, "key")
    tiles = f"{d.tiles} tiles\nof {keys}" if tile > 1 else f"{seq} keys,\none by one"
    figure.text(0.15, 0.325, f"K and V:\n{tiles}", ha="right", va="center", fontsize=8.5)


def _walk(figure: Any, d: Division) -> None:
    """The operations in program order, a row for each kind or group of warps."""
    names = list(dict.fromkeys(op.row for op in sorted(d.walk.ops, key=lambda op: op.kind != division.LOAD)))
    axes = figure.add_axes((0.165, 0.07, 0.82, 0.215))
    bottom, ticks, y = 0.0, [], 0.0
    for name in names:
        ops = sorted((op for op in d.walk.ops if op.row == name), key=lambda op: op.start)
        free: list[float] = []  # where each line of the row is free again
        lines = []
        for op in ops:
            line = next((k for k, until in enumerate(free) if until <= op.start + 1e-6), len(free))
            free[line : line + 1] = [op.stop]
            lines.append(line)
        height = 1.1 if len(free) == 1 else 0.7
        for op, line in zip(ops, lines, strict=True):
            aside = (line + 1) / (len(free) + 1) if len(free) > 2 else 0.5  # where lines are too near
            _box(axes, op, y + line * height, height, aside)
        ticks.append(y + height * len(free) / 2)
        y += height * len(free) + 0.12
    bottom = y
    for x in d.walk.barriers:
        axes.plot([x, x], [-0.05, bottom], color="black", lw=1.8, solid_capstyle="butt", zorder=4)
    for x in d.walk.skips:
        axes.text(x, bottom / 2, "\u2026", ha="center", va="center", fontsize=13)
    axes.set_xlim(0, max(max(op.stop for op in d.walk.ops), *d.walk.skips, 0) + 0.4)
    axes.set_ylim(bottom, -0.05)
    axes.set_yticks(ticks, [_label(d, name) for name in names])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    used = [kind for kind in KINDS if any(op.kind == kind for op in d.walk.ops)]
    x = 0.165
    for kind in used:
        colour, hatch, words = KINDS[kind]
        box = {"fc": colour, "ec": "#333333", "hatch": hatch, "pad": 1.5, "lw": 0.6}
        figure.text(x, 0.022, "    ", fontsize=7, bbox=box)
        figure.text(x + 0.025, 0.022, words, fontsize=8.5)
        x += 0.05 + 0.0073 * len(words)
    if d.walk.barriers:
        figure.text(x, 0.02, "\u2503", fontsize=10, fontweight="bold")
        figure.text(x + 0.015, 0.022, "barrier of the block", fontsize=8.5)
    figure.text(0.985, 0.382, "program order, not to scale", fontsize=9, ha="right", color="#555555")


def _box(axes: Any, op: division.Op, y: float, height: float, aside: float) -> None:
    colour, hatch, _ = KINDS[op.kind]
    axes.broken_barh([(op.start + 0.02, op.stop - op.start - 0.04)], (y + 0.04, height - 0.08), fc=colour,
                     ec="#333333", hatch=hatch, lw=0.6)  # fmt: skip
    box = {"fc": "white", "ec": "none", "pad": 0.8 if height > 1 else 0.1} if hatch else None
    x = op.start + aside * (op.stop - op.start)
    axes.text(x, y + height / 2, op.text, ha="center", va="center", bbox=box, zorder=6,
              fontsize=7 if height < 1.0 or len(op.text) > 6 else 8.5)  # fmt: skip


def _label(d: Division, row: str) -> str:
    """The name of a row of the walk; with its warps where not all of the block take part."""
    owners = next((o for o in d.owners if row[0] in o.matrix), None)
    if owners is None or row not in (division.SCORES.row, division.WEIGHTS.row, division.OUTPUT.row):
        return row
    return row if len(owners.warps) == d.warps else f"{row}, {_listed(owners.warps)}"


def _listed(warps: list[int]) -> str:
    return f"warp {warps[0]}" if len(warps) == 1 else f"warps {warps[0]} to {warps[-1]}"


def _rgb(colour: str, lighter: float) -> tuple[float, ...]:
    """Red, green and blue, mixed with white."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return tuple(part + (1 - part) * lighter for part in parts)


def in_words(d: Division) -> str:
    """What the picture shows."""
    work = f"Of {d.shape.seq} query rows a {'cluster' if d.cluster > 1 else 'block'} owns {d.rows}."
    said = [f"{_heading(d)}.", work if d.grid else ""]
    for owners in d.owners:
        rows, columns = owners.sheets[0].shape
        sheets = f"{len(owners.sheets)} times " if len(owners.sheets) > 1 else ""
        lanes = "" if owners.lanes else ", which ones is not specified"
        said.append(
            f"{owners.matrix} {sheets}[{rows}, {columns}]: {_listed(owners.warps)}, "
            f"{several(owners.per_lane, 'element')} per lane{lanes}."
        )
    for memory, (name, whose, _) in MEMORIES.items():
        there = [p for p in d.places if p.memory == memory]
        parts = [
            f"{p.matrix} {p.what}, " + (f"over {p.over}" if p.over else f"{p.bytes:,} bytes") for p in there
        ]
        said.append(f"In {name}, {whose}: {'; '.join(parts)}." if parts else "")
    if d.shared_bytes:
        said.append(f"Shared memory of a block: {d.shared_bytes:,} of {MAX_SHARED:,} bytes.")
    way = "from the last tile to the first" if d.walk.backwards else "from the first tile on"
    tiles = f"{d.tiles} tiles of {several(d.walk.tile, 'key')}"
    said.append(f"Walks over the keys: {', then '.join(d.walk.passes)}; {tiles}, {way}.")
    said.append(f"Loads: {d.walk.loads}." if d.walk.loads else "")
    ops = sorted(d.walk.ops, key=lambda op: (op.start, op.stop))
    order = ", ".join(f"{op.text} ({op.row}) {op.start:g} to {op.stop:g}" for op in ops)
    meetings = ", ".join(f"{x:g}" for x in d.walk.barriers)
    said.append(f"In program order: {order}. Barriers of the block at: {meetings or 'none'}.")
    return " ".join(part for part in said if part)
