"""The online softmax tile by tile: running max m, running sum l, and what each tile weighs in the end."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashcore_numba.checks.mutation import imported, sources
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.mask import Mask
from flashcore_numba.core.problem import Problem
from flashcore_numba.course.figures.canvas import BLUE, INK, SKY, VERMILION, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.figures.recording import WARP
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator import Probed
from flashcore_numba.stages import Stage, files

SEQ_Q, KEYS, TILE, HEAD_DIM = 64, 128, 32, 64
PROBE = "_flashcore_probe"
# In the loop over tiles: the line behind which the tile's scores are known, and the one that uses P.
SCORES, USED = "score = score if first_key + lane < visible", "accumulate_pv(o_rmem"
# Row of block 0, causal, what it shows.
CHOSEN = ((0, False, "rising scores"), (1, False, "falling scores"), (3, True, "rising, causal"))


@dataclass(frozen=True)
class Tile:
    """One turn of the loop for one query row: scores [32], and m and l before and after.

    rescale: what O was multiplied by, read off O itself; 1 while O was zero. added: the sum of the tile's
    weights, read in `p_smem`.
    """

    scores: np.ndarray
    m: tuple[float, float]
    l: tuple[float, float]
    rescale: float
    added: float


@dataclass(frozen=True)
class Row:
    """A query row. weights: of each tile in the output, from the kernel's own weights, rescaling of O and
    final l; `right`: of a softmax in float64."""

    row: int
    what: str
    tiles: list[Tile]
    weights: np.ndarray
    right: np.ndarray


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each K/V tile, and one for the weights at the end; of a kernel shaped like stage 05."""
    title = f"Online softmax over the tiles: {whose}"
    rows = rows_of(stage)
    if not rows:
        text = "No loop of this kernel carries m and l from tile to tile as that of stage 05 does."
        figure = paper(8.6, 1.2)
        figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=11)
        return Figure(title, (Frame(png(figure), text, text),))
    frames = [_tile_frame(rows, tile) for tile in range(len(rows[0].tiles))]
    return Figure(title, (*frames, _weights_frame(rows)))


def rows_of(stage: Stage) -> list[Row]:
    """The chosen rows of block 0, with values read out of the running kernel; empty for a kernel whose
    rows do not come through the loop of stage 05, once for each tile."""
    module = sys.modules[stage.launch.__module__]
    path = Path(str(module.__file__))
    copies = {file.stem: file.read_text() for file in path.parent.glob("*.py")}
    texts = sources(stage.place)[0] if path.parent == files.FOLDER else copies
    lines = texts[path.stem].splitlines()
    scores = [k for k, line in enumerate(lines) if line.strip().startswith(SCORES)]
    used = [k for k, line in enumerate(lines) if line.strip().startswith(USED)]
    if len(scores) != 1 or len(used) != 1:
        return []
    indent = lines[used[0]][: len(lines[used[0]]) - len(lines[used[0]].lstrip())]
    lines.insert(used[0], f'{indent}{PROBE}("after", m, l, o_rmem, p_smem[warp, lane])')
    lines.insert(scores[0] + 1, f'{indent}{PROBE}("before", m, l, o_rmem, score)')
    lines.append(f"\nfrom flashcore_numba.simulator import probe as {PROBE}\n")
    q, k, v = _inputs()
    with imported(texts | {path.stem: "\n".join(lines)}, path.stem) as probed:
        runs = {causal: _run(probed, Problem(q, k, v, causal=causal)) for causal in (False, True)}
    rows = [_row(runs[causal], row, causal, what, q, k) for row, causal, what in CHOSEN]
    return rows if all(len(row.tiles) == KEYS // TILE for row in rows) else []


def _inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Component 0 of the keys rises, and row 1 counts it negative, so a row's scores rise or fall."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, HEAD_DIM), dtype=np.float32) for n in (SEQ_Q, KEYS, KEYS))
    q, k = 0.6 * q, 0.6 * k
    k[0, 0, :, 0] = np.linspace(-2, 2, KEYS)
    q[0, 0, :, 0] = np.where(np.arange(SEQ_Q) == 1, -14, 14)
    return FLOAT16.round(q), FLOAT16.round(k), FLOAT16.round(v)


def _run(stage: Stage, problem: Problem) -> list[Probed]:
    executor = Simulator(races=False, ops=False)
    stage.run(problem, executor, optional=False)
    return [probed for launch in executor.launches for probed in launch.probes]


def _row(probes: list[Probed], row: int, causal: bool, what: str, q: np.ndarray, k: np.ndarray) -> Row:
    tiles = []
    before = [probed for probed in probes if probed.label == "before"]
    after = [probed for probed in probes if probed.label == "after"]
    for one, two in zip(before, after, strict=False):
        mine = (one.block == 0) & (one.thread // WARP == row)
        if not mine.any():
            continue
        m0, l0, o0, scores = (_lanes(value, mine) for value in one.values)
        m1, l1, o1, p = (_lanes(value, mine) for value in two.values)
        largest = np.unravel_index(np.abs(o0).argmax(), o0.shape)
        rescale = float(o1[largest] / o0[largest]) if o0[largest] else 1.0
        sums = float(l0.sum()), float(l1.sum())
        tiles.append(Tile(scores, (float(m0[0]), float(m1[0])), sums, rescale, float(p.sum())))
    later = np.cumprod([1.0, *(tile.rescale for tile in tiles[:0:-1])])[::-1]
    with np.errstate(all="ignore"):
        weights = np.array([tile.added for tile in tiles]) * later / (tiles[-1].l[1] if tiles else 1.0)
    exact = k[0, 0].astype(np.float64) @ q[0, 0, row].astype(np.float64) / np.sqrt(HEAD_DIM)
    if causal:
        exact[Mask(SEQ_Q, KEYS, right=0).interval(row)[1] :] = -np.inf
    p = np.exp(exact - exact.max())
    return Row(row, what, tiles, weights, (p / p.sum()).reshape(-1, TILE).sum(1))


def _lanes(value: np.ndarray | None, mine: np.ndarray) -> np.ndarray:
    return np.full(WARP, np.nan) if value is None else value[..., mine].astype(np.float64)


def _number(value: float) -> str:
    if value == -np.inf:
        return "-inf"
    return f"{value:.0e}" if 0 < abs(value) < 0.0005 else f"{value:.3g}"


def _tile_frame(rows: list[Row], at: int) -> Frame:
    figure = paper(8.6, 4.5)
    finite = np.concatenate([t.scores[np.isfinite(t.scores)] for row in rows for t in row.tiles])
    low, high = (-1.0, 1.0) if not len(finite) else (finite.min() - 0.7, finite.max() + 0.9)
    told = []
    for place, row in enumerate(rows):
        left = 0.05 + 0.325 * place
        axes = figure.add_axes((left, 0.36, 0.275, 0.5))
        _scores(axes, row, at, low)
        axes.set_ylim(low, high)
        (m0, m1), (l0, l1) = row.tiles[at].m, row.tiles[at].l
        factor = f"times {_number(row.tiles[at].rescale)}" if at else "zero so far"
        text = f"m:  {_number(m0)} to {_number(m1)}\nO {factor}\nl:  {_number(l0)} to {_number(l1)}"
        figure.text(left, 0.235, text, va="top", linespacing=1.5, fontsize=10)
        moves = f"m from {_number(m0)} to {_number(m1)}, O {factor}, l from {_number(l0)} to {_number(l1)}"
        told.append(f"row {row.row} ({row.what}): {moves}")
    where = f"{at + 1} of {len(rows[0].tiles)}, keys {at * TILE} to {(at + 1) * TILE - 1}"
    figure.text(0.012, 0.955, f"tile {where}", fontsize=10.5)
    key = "dots: scores, this tile's large    dashed line: m before this tile    thick line: m after it"
    figure.text(0.012, 0.015, key, fontsize=9)
    said = "; ".join(told)
    return Frame(png(figure), f"{said[0].upper()}{said[1:]}.", f"Tile {where}. {said}.")


def _scores(axes: Any, row: Row, at: int, low: float) -> None:
    """The scores up to tile `at`, where they are masked, and m before and after that tile."""
    axes.set_title(f"row {row.row}: {row.what}", loc="left", fontsize=10)
    axes.axvspan(at * TILE, (at + 1) * TILE, color="#EAF4FB", zorder=0)
    for number, tile in enumerate(row.tiles[: at + 1]):
        x, seen = np.arange(number * TILE, (number + 1) * TILE) + 0.5, np.isfinite(tile.scores)
        style = {"marker": "o", "color": BLUE} if number == at else {"marker": ".", "color": "#999999"}
        axes.plot(x[seen], tile.scores[seen], linestyle="", markersize=4, **style)
        if not seen.all():
            first = x[int(np.argmin(seen))] - 0.5
            axes.axvspan(first, (number + 1) * TILE, fc="none", ec="#999999", hatch="xx", lw=0)
            box = {"fc": "white", "ec": "none", "pad": 1}
            axes.text(first + 1, low + 0.3, "masked", fontsize=9, bbox=box)
    before, after = row.tiles[at].m
    if np.isfinite(before):
        axes.axhline(before, color=INK, linewidth=1.3, linestyle="--")
    if np.isfinite(after):
        axes.axhline(after, color=VERMILION, linewidth=2.2)
    axes.set_xlim(0, KEYS)
    axes.set_xticks(range(0, KEYS + 1, TILE))
    axes.set_xlabel("key")
    axes.spines[["top", "right"]].set_visible(False)


def _weights_frame(rows: list[Row]) -> Frame:
    figure = paper(8.6, 3.6)
    told = []
    for place, row in enumerate(rows):
        axes = figure.add_axes((0.05 + 0.325 * place, 0.22, 0.275, 0.6))
        axes.set_title(f"row {row.row}: {row.what}", loc="left", fontsize=10)
        numbers = np.arange(1, len(row.weights) + 1)
        weights = np.nan_to_num(row.weights)
        axes.bar(numbers, weights, width=0.7, color=SKY, edgecolor=BLUE)
        axes.hlines(row.right, numbers - 0.42, numbers + 0.42, color=INK, linewidth=2)
        top = max(1.0, float(weights.max()))
        for number, weight, right in zip(numbers, row.weights, row.right, strict=True):
            y = max(np.nan_to_num(weight), right) + 0.03 * top
            axes.text(number, y, f"{weight:.1%}", ha="center", fontsize=9)
        axes.set_ylim(0, 1.15 * top)
        axes.set_xticks(numbers)
        axes.set_xlabel("tile")
        axes.spines[["top", "right"]].set_visible(False)
        exact = ", ".join(f"{weight:.1%}" for weight in row.right)
        agree = "as in exact softmax" if np.allclose(row.weights, row.right, atol=1e-3) else f"exact: {exact}"
        told.append(f"row {row.row} ({row.what}): {', '.join(f'{w:.1%}' for w in row.weights)}, {agree}")
    figure.text(0.012, 0.935, "what each tile weighs in the output", fontsize=10.5)
    key = "bars: from the kernel's own weights, rescaling and l    black lines: softmax in float64"
    figure.text(0.012, 0.02, key, fontsize=9)
    caption = f"Weight of each tile in the output: {'; '.join(told)}."
    return Frame(png(figure), caption, caption)
