"""What each warp of a block does, instruction after instruction, from barrier to barrier."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flashcore_numba.course.figures.canvas import (
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.figure import MAX_FRAMES, Figure, Frame
from flashcore_numba.course.figures.recording import Recording, record
from flashcore_numba.stages import Stage

PHASES = 2  # between barriers, a frame
LONGEST = 8  # runs in a loop's body, at most
LABEL = 1.5  # room for `x 32`
# Kind -> short name in a box, colour, hatch, words. What a box is can be told without its colour.
KINDS = {
    ("load", "global"): ("GL", ORANGE, "", "load from global memory"),
    ("store", "global"): ("GS", VERMILION, "", "store to global memory"),
    ("atomic", "global"): ("GA", VERMILION, "///", "atomic on global memory"),
    ("load", "shared"): ("SL", SKY, "", "load from shared memory"),
    ("store", "shared"): ("SS", GREEN, "", "store to shared memory"),
    ("atomic", "shared"): ("SA", GREEN, "///", "atomic on shared memory"),
    ("shuffle", ""): ("X", PURPLE, "", "shuffle"),
    ("vote", ""): ("V", PURPLE, "///", "vote"),
    ("syncwarp", ""): ("W", "#FFFFFF", "", "syncwarp"),
}


@dataclass(frozen=True)
class Run:
    """`count` warp instructions of one kind, one after the other."""

    kind: tuple[str, str]
    count: int

    @property
    def width(self) -> float:
        return 1.0 + 0.35 * float(np.log2(self.count))

    def total(self, kind: tuple[str, str]) -> int:
        return self.count * (self.kind == kind)


@dataclass(frozen=True)
class Turns:
    """The same runs again and again."""

    times: int
    body: tuple[Run, ...]

    @property
    def width(self) -> float:
        return sum(run.width for run in self.body) + LABEL

    def total(self, kind: tuple[str, str]) -> int:
        return self.times * sum(run.total(kind) for run in self.body)


@dataclass
class Phase:
    """What happens up to a barrier, or to the end: the parts of each warp, and the barrier's line."""

    warps: list[list[Run | Turns]]
    barrier: str = ""
    arrays: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def total(self, kind: tuple[str, str]) -> int:
        return sum(part.total(kind) for warp in self.warps for part in warp)

    @property
    def width(self) -> float:
        return max(sum(part.width for part in warp) for warp in self.warps) + 0.3


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """A frame for every two phases: a phase ends at a barrier of the whole block."""
    recording = record(stage)
    phases = _phases(recording)
    starts = range(0, min(len(phases), PHASES * MAX_FRAMES), PHASES)
    frames = tuple(_frame(recording, phases, start) for start in starts)
    return Figure(f"Timeline of a block: {whose}", frames)


def _phases(recording: Recording) -> list[Phase]:
    phases, runs = [], [[] for _ in range(recording.warps)]  # type: ignore[var-annotated]
    arrays: dict[tuple[str, str], set[str]] = {}
    for event in recording.events:
        warps = np.unique(event.warp[event.active])
        if event.op == "barrier":
            phases.append(Phase([_fold(warp) for warp in runs], f"line {event.site.line}", arrays))
            runs, arrays = [[] for _ in runs], {}
            continue
        kind = (event.op, event.space)
        if event.array:
            arrays.setdefault(kind, set()).add(event.array)
        for warp in warps:
            mine = runs[warp]
            if mine and mine[-1].kind == kind and kind != ("syncwarp", ""):
                mine[-1] = Run(kind, mine[-1].count + 1)
            else:
                mine.append(Run(kind, 1))
    if any(runs) or not phases:
        phases.append(Phase([_fold(warp) for warp in runs], "", arrays))
    return phases


def _fold(runs: list[Run]) -> list[Run | Turns]:
    """Repeated sequences of runs become `Turns`: at each place the one that covers most."""
    out: list[Run | Turns] = []
    at = 0
    while at < len(runs):
        best = (0, 1)
        for length in range(1, LONGEST + 1):
            body, times = runs[at : at + length], 1
            while runs[at + times * length : at + (times + 1) * length] == body:
                times += 1
            if times > 2 and (times - 1) * length > best[0] * best[1]:
                best = (times, length)
        times, length = best
        out.append(Turns(times, tuple(runs[at : at + length])) if times else runs[at])
        at += max(1, times) * length
    return out


def _frame(recording: Recording, phases: list[Phase], start: int) -> Frame:
    shown = phases[start : start + PHASES]
    warps = recording.warps
    figure = paper(8.6, 1.75 + 0.26 * warps)
    tall = figure.get_figheight()
    figure.text(
        0.012, 1 - 0.22 / tall, f"block 0, {several(warps, 'warp')}, {recording.shape}", fontsize=10.5
    )
    axes = figure.add_axes((0.075, 0.95 / tall, 0.915, 1 - 1.5 / tall))
    x = 0.0
    for number, phase in enumerate(shown, start + 1):
        for warp, parts in enumerate(phase.warps):
            _row(axes, x, x + phase.width, warp, parts, bool(phase.barrier))
        end = x + phase.width
        axes.text(x, -0.15, f"phase {number}", va="bottom")
        if phase.barrier:
            axes.plot([end, end], [-0.1, warps], color="black", linewidth=3.5, solid_capstyle="butt")
            axes.text(end, -0.15, f"barrier, {phase.barrier}", ha="right", va="bottom", fontsize=9)
        x = end + 0.25
    axes.set_xlim(0, x)
    axes.set_ylim(warps, -0.1)
    step = 1 if warps <= 8 else 2
    axes.set_yticks(np.arange(0, warps, step) + 0.5, [str(warp) for warp in range(0, warps, step)])
    axes.set_ylabel("warp")
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("program order, not time; the number in a box counts the warp's instructions")
    _key(figure, shown, tall)
    told = " ".join(_told(number, phase) for number, phase in enumerate(shown, start + 1))
    alt = f"Block 0, {several(warps, 'warp')}. {told}"
    return Frame(png(figure), f"{told}{recording.note()}", alt)


def _row(axes: Any, x: float, end: float, warp: int, parts: list[Run | Turns], waits: bool) -> None:
    for part in parts:
        if isinstance(part, Turns):
            axes.broken_barh(
                [(x, part.width)], (warp + 0.02, 0.96), fc="none", ec="black", lw=1.4, ls="--", zorder=3
            )
            for run in part.body:
                _box(axes, x, warp, run)
                x += run.width
            label = f"x {part.times}"
            axes.text(
                x + LABEL / 2, warp + 0.5, label, ha="center", va="center", fontsize=9, fontweight="bold"
            )
            x += LABEL
        else:
            _box(axes, x, warp, part)
            x += part.width
    if waits and end - x > 0.35:
        axes.broken_barh(
            [(x, end - x)], (warp + 0.12, 0.76), fc="#F2F2F2", ec="#AAAAAA", hatch="....", lw=0.5
        )
        if end - x > 1.5:
            axes.text((x + end) / 2, warp + 0.5, "waits", ha="center", va="center", fontsize=9,
                      bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip


def _box(axes: Any, x: float, warp: int, run: Run) -> None:
    name, colour, hatch, _ = KINDS[run.kind]
    axes.broken_barh([(x, run.width)], (warp + 0.1, 0.8), fc=colour, ec="#333333", hatch=hatch, lw=0.6)
    text = name if run.count == 1 else f"{name} {run.count}"
    axes.text(
        x + run.width / 2, warp + 0.5, text, ha="center", va="center", fontsize=9, color="black", zorder=4
    )


def _key(figure: Any, shown: list[Phase], tall: float) -> None:
    used = [kind for kind in KINDS if any(phase.total(kind) for phase in shown)]
    for place, kind in enumerate(used):
        name, colour, hatch, words = KINDS[kind]
        x, y = 0.012 + 0.25 * (place % 4), (0.4 - 0.24 * (place // 4)) / tall
        figure.text(
            x,
            y,
            name,
            fontsize=9,
            bbox={"fc": colour, "ec": "#333333", "pad": 1.5, "hatch": hatch, "lw": 0.6},
        )
        figure.text(x + 0.035, y, words, fontsize=9)


def _told(number: int, phase: Phase) -> str:
    parts = []
    for kind, (_, _, _, words) in KINDS.items():
        if total := phase.total(kind):
            arrays = ", ".join(sorted(phase.arrays.get(kind, ())))
            parts.append(
                f"{several(total, words.split()[0])}{words[len(words.split()[0]) :]}"
                + f" ({arrays})" * bool(arrays)
            )
    idle = [k for k, warp in enumerate(phase.warps) if not warp]
    text = f"Phase {number}: {', '.join(parts) or 'no memory access'}"
    if idle:
        text += f"; {several(len(idle), 'warp')} only wait" + "s" * (len(idle) == 1)
    return text + (f"; then the barrier at {phase.barrier}." if phase.barrier else "; then the end.")
