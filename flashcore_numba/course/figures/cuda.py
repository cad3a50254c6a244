"""Figures of kernels in CUDA C: wavefronts and barriers by source line, and the memory map to scale."""

import textwrap
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from flashcore_numba.checks.forward import operation
from flashcore_numba.core.shapes import parse
from flashcore_numba.course import launches, memory_map
from flashcore_numba.course.evidence import COUNTED
from flashcore_numba.course.exercise import region
from flashcore_numba.course.figures.canvas import (
    BLUE,
    CYCLE,
    INK,
    ORANGE,
    VERMILION,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage
from flashcore_numba.stages.files import place_of, shown

MOST_LINES, LABEL = 16, 54  # bars, and characters of a line beside a bar
SEED = 7  # counts do not depend on the values, pictures should not change


@dataclass(frozen=True)
class Bar:
    """One source line: what it did, and the share of it that is wasted."""

    line: str
    text: str
    value: int
    wasted: int = 0


def launched(
    stage: Stage, shape: str = COUNTED, variant: str | None = None, causal: bool = False
) -> list[Any]:
    """What the CPU executor counted and found in the stage's launches at a shape."""
    inputs = operation(stage).draw(parse(shape), causal, np.random.default_rng(SEED))
    executor = Simulator()
    stage.run(inputs.problem(inputs.arrays), executor, variant or stage.default_variant)
    return executor.launches


@lettered
def draw_wavefronts(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Wavefronts of shared memory by source line; those that bank conflicts cost are hatched."""
    ops = ("load", "store", "atomic")
    every = _bars(stage, lesson, ops, whose=whose)
    bars = [bar for bar in every if bar.value and bar in _most(every)]
    total, lost = sum(bar.value for bar in every), sum(bar.wasted for bar in every)
    if len(bars) == 1 and lesson is not None:  # one bar alone has no length
        before = _before(stage)
        all_lines = sum(bar.value for bar in _bars(before, None, ops))
        bars.insert(0, Bar("", f"stage {shown(place_of(before))}, all its lines together", all_lines))
    picture = paper(9.4, 1.1 + 0.36 * max(2, len(bars)))
    _drawn(picture, bars, "wavefronts", "lost to bank conflicts")
    caption = (
        f"{several(total, 'wavefront')} at {_at(stage)}, {lost:,} of them lost to bank conflicts. A line "
        "of a header counts for all its calls."
    )
    frame = Frame(png(picture), caption, f"{caption} By line: {_words(bars)}.")
    return Figure(f"Wavefronts of shared memory by source line: {whose}", (frame,))


@lettered
def draw_barriers(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The ledger of barriers by source line: of the stage before, then of this one."""
    before = _before(stage)
    named = f"stage {shown(place_of(before))}"
    frames = []
    for each, name in ((before, named), (stage, whose)):
        every = _bars(each, lesson if each is stage else None, ("barrier",), "requests", whose)
        total, bars = sum(bar.value for bar in every), _most(every)
        picture = paper(9.4, 1.1 + 0.36 * max(2, len(bars)))
        if bars:
            _drawn(picture, bars, "warps that came to the barrier", "")
        else:
            picture.text(0.5, 0.5, f"{name} has no barrier", ha="center", va="center", fontsize=10)
        caption = f"{name}: {several(total, 'arrival')} of warps at barriers, at {COUNTED}."
        frames.append(Frame(png(picture), caption, f"{caption} By line: {_words(bars)}."))
    return Figure(f"Barriers by source line, first those of {named}: {whose}", tuple(frames), 1)


def _before(stage: Stage) -> Stage:
    """The stage that its ladder has before this one, or before the stage that it is a copy of."""
    ladder = operation(stage).ladder()
    return ladder[[each.key for each in ladder].index(stage.key) - 1]


@lettered
def draw_memory(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The shared memory of a block to scale, read from the kernel's own text."""
    launch = launches.recorded(stage, lesson.exercise.variant, COUNTED).launches[0]
    parts = memory_map.parts(launch.kernel, launch.shared_bytes)
    total = launch.shared_bytes + sum(part.bytes for part in memory_map.static_parts(launch.kernel))
    below = [part for part in parts if part.over]
    narrow = [part for part in parts if part.bytes <= 0.055 * total]
    picture = paper(9.4, 2.5 if below else 1.9)
    axes = picture.add_axes((0.02, 0.30 if below else 0.34, 0.96, 0.64 if below else 0.56))
    for number, part in enumerate(parts):
        row = -1.25 if part.over else 0.0
        colour = CYCLE[number % len(CYCLE)]
        axes.add_patch(_box(part.first, row, part.bytes, colour, "///" if part.over else ""))
        if part not in narrow:
            text = f"{part.name.removesuffix('_smem')}\n{part.bytes:,}"
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text(part.first + part.bytes / 2, row + 0.5, text, ha="center", va="center", bbox=box)
    axes.set_xlim(-0.002 * total, 1.002 * max(total, 1))
    axes.set_ylim(-1.4 if below else -0.05, 1.05)
    axes.set_yticks([])
    axes.set_xlabel("byte of the block's shared memory")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    listed = "; ".join(_part_in_words(part) for part in parts)
    over = " The lower row lies over the upper one, at another time." if below else ""
    unnamed = ", ".join(f"{part.name.removesuffix('_smem')} {part.bytes:,}" for part in narrow)
    caption = f"{total:,} bytes per block.{over}" + f" Too narrow for a name: {unnamed}." * bool(narrow)
    return Figure(
        f"The memory map of a block: {whose}", (Frame(png(picture), caption, f"{caption} {listed}."),)
    )


def _at(stage: Stage) -> str:
    """How captions name the shape that was counted."""
    if stage.operation is None:
        return COUNTED
    return str(stage.operation.draw(parse(COUNTED), False, np.random.default_rng()).label)


def _part_in_words(part: memory_map.Part) -> str:
    over = f", over {part.over}" if part.over else ""
    shape = f" {part.shape}" if part.shape else ""
    return f"{part.name}{shape} of {part.type}: bytes {part.first:,} to {part.stop - 1:,}{over}"


def _box(first: int, row: float, width: int, colour: str, hatch: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((first, row), width, 1.0, facecolor=colour, edgecolor=INK, linewidth=0.7, hatch=hatch)


def _bars(
    stage: Stage, lesson: Any, ops: tuple[str, ...], field: str = "wavefronts", whose: str = ""
) -> list[Bar]:
    """The source lines in the order of the files; those that the lesson's reader writes without their text,
    as long as they are the stage's own.
    """
    variant = lesson.exercise.variant if lesson is not None else None
    sums: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0])
    for launch in launched(stage, COUNTED, variant):
        for row in launch.lines():
            if row.op in ops and (row.space == "shared" or field != "wavefronts"):
                total = sums[row.file, row.line, row.text]
                total[0] += getattr(row, field)
                total[1] += row.conflicts
    kept = sorted(sums, key=lambda key: (PurePath(key[0]).suffix == ".cuh", key))
    hidden = (
        _written_by_the_reader(lesson) if lesson is not None and whose.startswith(("stage", "the ")) else {}
    )
    return [
        Bar(f"{_file(file)}:{line}", hidden.get((PurePath(file).name, line), text), *sums[file, line, text])
        for file, line, text in kept
    ]


def _written_by_the_reader(lesson: Any) -> dict[tuple[str, int], str]:
    """What stands for the lines of the lesson's region."""
    place = region(lesson.exercise)
    lines = range(place.first_line, place.last_line + 1)
    return {(lesson.exercise.file, n): f"line {n - place.first_line + 1} of the region" for n in lines}


def _most(bars: list[Bar]) -> list[Bar]:
    """Those with the largest values, in their order."""
    kept = sorted(bars, key=lambda bar: -bar.value)[:MOST_LINES]
    return [bar for bar in bars if bar in kept]


def _file(path: str) -> str:
    name = PurePath(path).name
    return name if name.endswith(".cuh") else ""


def _drawn(picture: Any, bars: list[Bar], unit: str, wasted: str) -> None:
    axes = picture.add_axes((0.50, 0.75 / picture.get_figheight(), 0.44, 1 - 0.85 / picture.get_figheight()))
    at = range(len(bars))
    axes.barh(at, [bar.value - bar.wasted for bar in bars], color=BLUE, edgecolor=INK, linewidth=0.6)
    if wasted and any(bar.wasted for bar in bars):
        some = [(n, bar) for n, bar in enumerate(bars) if bar.wasted]
        left = [bar.value - bar.wasted for _, bar in some]
        values = [bar.wasted for _, bar in some]
        style = {"color": ORANGE, "edgecolor": VERMILION, "hatch": "////", "label": wasted}
        axes.barh([n for n, _ in some], values, left=left, **style)
        axes.legend(loc="lower right", frameon=False)
    most = max((bar.value for bar in bars), default=1)
    for n, bar in enumerate(bars):
        axes.text(bar.value + 0.01 * most, n, f"{bar.value:,}", va="center", fontsize=8.5)
    axes.set_yticks(list(at), [_folded(bar) for bar in bars])
    axes.tick_params(axis="y", labelsize=7.8, length=0)
    axes.set_xlim(0, 1.14 * most)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)


def _folded(bar: Bar) -> str:
    """The statement in two lines, as far as they hold it, and where it is."""
    lines = textwrap.wrap(_bare(bar.text), LABEL, max_lines=2, placeholder=" \u2026", break_on_hyphens=False)
    return f"{chr(10).join(lines)}  {bar.line.lstrip(':')}"


def _bare(text: str) -> str:
    """The statement; of a barrier what it closes, which its comment says."""
    statement, _, comment = text.partition("//")
    is_barrier = "__syncthreads" in statement or "bar_sync" in statement
    return (comment.strip() if is_barrier else "") or statement.strip()


def _words(bars: list[Bar]) -> str:
    said = []
    for bar in bars:
        lost = f" ({bar.wasted:,} lost)" if bar.wasted else ""
        said.append(f"{bar.line.lstrip(':')} {_bare(bar.text)} {bar.value:,}{lost}")
    return "; ".join(said) or "none"
