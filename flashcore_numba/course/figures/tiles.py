"""The walk of one block over Q, K and V: the rows it fetches at each step, and those in shared memory."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import BLUE, GREY, INK, ORANGE, SKY, lettered, paper, png
from flashcore_numba.course.figures.figure import MAX_FRAMES, Figure, Frame
from flashcore_numba.course.figures.recording import Recording, record, requests
from flashcore_numba.simulator import Event
from flashcore_numba.simulator.count import SECTOR, sectors_of
from flashcore_numba.stages import Stage

ARRAYS = ("q", "k", "v")
KEYS = {5: 96, 6: 128}  # so that several tiles pass
PORTIONS = 8  # frames of a kernel without barriers
PALE = "#FBE3B0"


@dataclass
class Step:
    """What happened between two barriers. All arrays have one entry a row of Q, K or V.

    sectors: 32-byte sectors fetched from global memory in this step; so_far: up to its end. held: whole in
    shared memory at its end. used: read from shared memory in this step. others: accesses that are not loads
    of Q, K or V.
    """

    sectors: dict[str, np.ndarray]
    so_far: dict[str, np.ndarray]
    held: dict[str, np.ndarray]
    used: dict[str, np.ndarray]
    others: set[str] = field(default_factory=set)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for each step between barriers; without barriers, for each eighth of the loads of K and V."""
    recording = record(stage, KEYS.get(lesson.number, 64))
    steps = _steps(recording)
    tiled = any(line.op == "store" for line in recording.lines("shared"))
    shown = steps[:MAX_FRAMES]
    frames = [_frame(recording, k, len(steps), step, tiled, steps[-1]) for k, step in enumerate(shown)]
    return Figure(f"Walk over Q, K and V: {whose}", tuple(frames), telling=min(2, len(frames) - 1))


class _Walk:
    """Follows the block's events: which rows were fetched, and what each cell of shared memory holds."""

    def __init__(self, recording: Recording):
        p = recording.problem
        self.d = p.head_dim
        self.rows = {"q": p.seq_q, "k": p.seq_k, "v": p.seq_k}
        self.first = {"q": 0, "k": p.seq_q, "v": p.seq_q + p.seq_k}  # rows of all three, numbered on
        self.all = p.seq_q + 2 * p.seq_k
        self.total = np.zeros(self.all, int)
        self.cells: dict[
            str, np.ndarray
        ] = {}  # shared array -> the row that each cell holds a part of, or -1
        threads = 32 * recording.warps
        self.holds = np.full(threads, -1)  # the row that a thread has just loaded a part of
        self.left = np.zeros(threads, int)  # elements of it that it has not stored yet
        self.begin()

    def begin(self) -> None:
        self.fetched, self.read = np.zeros(self.all, int), np.zeros(self.all, bool)
        self.others: set[str] = set()

    def end(self) -> Step:
        """The step since `begin`."""
        self.total = self.total + self.fetched
        held = np.zeros(self.all, int)
        for cells in self.cells.values():
            held += np.bincount(cells[cells >= 0], minlength=self.all)
        step = Step(
            self.split(self.fetched), self.split(self.total), self.split(held >= self.d),
            self.split(self.read), self.others,
        )  # fmt: skip
        self.begin()
        return step

    def split(self, values: np.ndarray) -> dict[str, np.ndarray]:
        return {name: values[self.first[name] :][: self.rows[name]] for name in ARRAYS}

    def follow(self, event: Event) -> None:
        threads, elements = event.thread[event.active], event.element[event.active]
        if event.op == "load" and event.array in ARRAYS:
            first, final = self.first[event.array], self.rows[event.array] - 1
            self.holds[threads] = first + np.minimum(elements // self.d, final)
            self.left[threads] = event.width
            for sectors in sectors_of(requests(event)[1], event.itemsize * max(1, event.width)):
                touched = np.unique(sectors[sectors >= 0]) * SECTOR // (self.d * event.itemsize)
                self.fetched += np.bincount(first + np.minimum(touched, final), minlength=self.all)
        elif event.space == "shared":
            cells = self._cells(event)
            if event.op == "load":
                rows = cells[elements[:, None] + np.arange(event.width)]
                self.read[rows[rows >= 0]] = True
                self.holds[threads] = -1
                if (rows < 0).any():
                    self.others.add(f"reads computed values from {event.array}")
            else:
                rows = np.where(self.left[threads] > 0, self.holds[threads], -1)
                cells[elements[:, None] + np.arange(event.width)] = rows[:, None]
                self.left[threads] -= event.width
                if (rows < 0).any():
                    self.others.add(f"stores computed values in {event.array}")
        elif event.space == "global":
            self.holds[threads] = -1
            self.others.add(f"{'reads' if event.op == 'load' else 'writes'} {event.array}")

    def _cells(self, event: Event) -> np.ndarray:
        cells = self.cells.get(event.array, np.full(0, -1))
        missing = int(event.element.max()) + event.width - len(cells)
        if missing > 0:
            self.cells[event.array] = cells = np.r_[cells, np.full(missing, -1)]
        return cells


def _steps(recording: Recording) -> list[Step]:
    walk, steps, busy = _Walk(recording), [], False
    barriers = any(event.op == "barrier" for event in recording.events)
    loads = [event.op == "load" and event.array in ("k", "v") for event in recording.events]
    portion, done = -(-sum(loads) // PORTIONS), 0
    for event, load in zip(recording.events, loads, strict=True):
        done += load
        if event.op == "barrier" or (not barriers and load and done > portion):
            if busy:
                steps.append(walk.end())
            busy, done = False, int(load)
        if event.space:
            walk.follow(event)
            busy = True
    return [*steps, walk.end()] if busy or not steps else steps


def _frame(recording: Recording, k: int, of: int, step: Step, tiled: bool, last: Step) -> Frame:
    happens = _happens(step)
    figure = paper(8.6, 4.7)
    name = "between barriers" if tiled else "of the walk"
    figure.text(0.012, 0.955, f"step {k + 1} of {of} {name}: block 0, {recording.shape}", fontsize=10.5)
    for place, array in enumerate(ARRAYS):
        low = 0.68 - 0.265 * place
        axes = figure.add_axes((0.115, low, 0.64, 0.2))
        (_strips if tiled else _bars)(axes, step, array, last)
        axes.set_xlim(0, len(step.sectors[array]))
        axes.set_xticks([*range(0, len(step.sectors[array]) + 1, 16)])
        axes.spines[["top", "right"]].set_visible(False)
        figure.text(0.012, low + 0.1, array.upper(), fontsize=20, fontweight="bold", va="center")
        figure.text(
            0.775, low + 0.18, _so_far(step, array, recording.problem.head_dim), va="top", linespacing=1.4
        )
    axes.set_xlabel("row")
    figure.text(0.012, 0.018, _KEY_TILES if tiled else _KEY_BARS, fontsize=9)
    moved = ", ".join(f"{array.upper()} {_bytes(step.so_far[array]):,} bytes" for array in ARRAYS)
    held = _listed(step.held)
    kept = f" In shared memory at its end: {held or 'no whole row'}." if tiled else ""
    alt = f"Step {k + 1} of {of}: {happens}.{kept} Moved from global memory so far: {moved}."
    return Frame(png(figure), f"{happens[0].upper()}{happens[1:]}.{kept}{recording.note()}", alt)


_KEY_TILES = (
    "hatched orange: fetched in this step    light blue: in shared memory    dark blue: and read in this step"
)
_KEY_BARS = (
    "height: how many times over the bytes of a row have moved    hatched orange: the row moves in this step"
)


def _bytes(sectors: np.ndarray) -> int:
    return int(sectors.sum()) * SECTOR


def _times(sectors: np.ndarray, d: int) -> np.ndarray:
    """How many times over the bytes of each row (float16) have moved."""
    return sectors * SECTOR / (2 * d)


def _so_far(step: Step, array: str, d: int) -> str:
    times = _times(step.so_far[array], d)
    text = f"{_bytes(step.so_far[array]):,} bytes so far"
    if not times.any():
        return text
    low, high = times[times > 0].min(), times.max()
    many = "once" if high == 1 else f"{high:,.3g} times" if high < 1000 else f"{high:,.0f} times"
    return f"{text}\n{'each' if low == high else 'up to'} fetched row\nmoved {many}"


def _happens(step: Step) -> str:
    parts = []
    for words, rows in (("fetches", step.sectors), ("reads from shared memory", step.used)):
        listed = _listed({name: values > 0 for name, values in rows.items()})
        parts += [f"{words} {listed}"] if listed else []
    others = sorted(step.others)
    parts += [", ".join(others)] if others else []
    return f"the block {'; '.join(parts)}" if parts else "nothing happens"


def _listed(rows: dict[str, np.ndarray]) -> str:
    """`Q rows 0 to 15, K rows 0 to 31`."""
    found = []
    for name, marked in rows.items():
        runs = [f"{a} to {b - 1}" if b - a > 1 else f"{a}" for a, b in _runs(marked)]
        if runs:
            found.append(f"{name.upper()} row{'s' if marked.sum() > 1 else ''} {' and '.join(runs)}")
    return ", ".join(found)


def _runs(marked: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.r_[0, marked.astype(int), 0]))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _strips(axes: Any, step: Step, array: str, last: Step) -> None:
    rows = len(step.sectors[array])
    for y in (0.0, 1.1):
        axes.broken_barh([(0, rows)], (y, 0.9), facecolor="#F4F4F4", edgecolor="#999999", linewidth=0.6)
    _paint(axes, step.sectors[array] > 0, 1.1, {"fc": PALE, "ec": ORANGE, "hatch": "////"}, INK)
    _paint(axes, step.held[array] & ~step.used[array], 0.0, {"fc": SKY, "ec": BLUE}, "black")
    _paint(axes, step.used[array], 0.0, {"fc": BLUE, "ec": "black"}, "white")
    axes.set_yticks([1.55, 0.45], ["global", "shared"])
    axes.set_ylim(-0.05, 2.05)
    axes.tick_params(axis="y", length=0)


def _paint(axes: Any, marked: np.ndarray, y: float, style: dict[str, str], ink: str) -> None:
    for a, b in _runs(marked):
        axes.broken_barh([(a, b - a)], (y, 0.9), linewidth=0.8, **style)
        if (b - a) * 40 >= len(marked) * 5:
            box = {"fc": "white", "ec": "none", "pad": 1} if "hatch" in style else None
            axes.text(
                (a + b) / 2,
                y + 0.43,
                f"{a} to {b - 1}",
                ha="center",
                va="center",
                color=ink,
                fontsize=9,
                bbox=box,
            )


def _bars(axes: Any, step: Step, array: str, last: Step) -> None:
    d = SECTOR * 2
    times, top = _times(step.so_far[array], d), max(1.0, float(_times(last.so_far[array], d).max()))
    now = step.sectors[array] > 0
    for height in np.unique(times[times > 0]):
        for marked, style in (
            (~now, {"fc": GREY, "ec": "#888888"}),
            (now, {"fc": PALE, "ec": ORANGE, "hatch": "////"}),
        ):
            runs = [(a, b - a) for a, b in _runs(marked & (times == height))]
            axes.broken_barh(runs, (0, height), linewidth=0.8, **style)
    axes.set_ylim(0, top * 1.15)
    axes.set_yticks([0, top], ["0", f"{top:,.0f}x"])
