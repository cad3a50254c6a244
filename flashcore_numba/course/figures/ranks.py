"""A sequence that several ranks hold: who computes what, who holds whose keys when, and what is moved."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.course.evidence import Evidence
from flashcore_numba.course.figures.canvas import (
    BLUE,
    CYCLE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    lettered,
    paper,
    plain_log,
    png,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.ranks.model import PIECE, STEP, end, timeline
from flashcore_numba.course.ranks.shares import KERNEL, LONG, RANKS, contiguous, moved, needed, work
from flashcore_numba.course.ranks.together import OWN, Ring, plan_of
from flashcore_numba.records.amounts import provenance
from flashcore_numba.stages import Stage

ROWS, DIM, HEADS = 65_536, 128, 32  # of the sequence whose bytes are drawn
COUNTS = (2, 4, 8, 16)
NAMES = {"ring": "ring", "pull": "pull, gather", "ulysses": "Ulysses"}


def _ring(stage: Any, whose: str) -> tuple[Ring, str]:
    """The functions to draw, and whose they are: without an answer the lesson's own."""
    return (stage, whose) if isinstance(stage, Ring) else (OWN, "the lesson's own")


def _mask(figure: Any, place: tuple[float, float, float, float], held: Sequence[Sequence[int]]) -> None:
    """Pieces of rows against pieces of keys, in the colour of the rank that computes them."""
    axes = figure.add_axes(place)
    count = 2 * len(held)
    owner = {piece: rank for rank, some in enumerate(held) for piece in some}
    for row in range(count):
        rank = owner.get(row, 0)
        for key in range(row + 1):
            corners = [(key, row), (key + 1, row + 1), (key, row + 1)]
            if key < row:
                corners.insert(1, (key + 1, row))
            axes.fill(*zip(*corners, strict=True), fc=CYCLE[rank], ec=INK, lw=0.4)
        axes.text(-0.25, row + 0.52, str(owner.get(row, "?")), ha="right", va="center")
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    axes.set_yticks([])
    axes.set_xticks([n + 0.5 for n in range(count)], [str(n) for n in range(count)])
    axes.set_xlabel("piece of keys")
    axes.set_ylabel("rank that holds the piece of rows", labelpad=18)
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _bars(figure: Any, place: tuple[float, float, float, float], does: Sequence[float]) -> None:
    axes = figure.add_axes(place)
    for rank, amount in enumerate(does):
        axes.broken_barh([(0, amount)], (rank + 0.12, 0.76), fc=CYCLE[rank], ec=INK, lw=0.6)
        axes.text(amount + 0.2, rank + 0.52, f"{amount:g}", va="center")
    axes.axvline(sum(does) / len(does), color="#666666", lw=0.9, ls="--")
    axes.set_xlim(0, 16)
    axes.set_ylim(len(does), 0)
    axes.set_yticks([n + 0.5 for n in range(len(does))], [f"rank {n}" for n in range(len(does))])
    axes.set_xlabel("pairs of pieces; dashed: the mean")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _frame(held: Sequence[Sequence[int]], caption: str) -> Frame:
    """The mask by rank, and the work of each."""
    does = work(held)
    figure = paper(9.4, 4.2)
    _mask(figure, (0.09, 0.13, 0.37, 0.82), held)
    _bars(figure, (0.57, 0.3, 0.4, 0.5), does)
    told = ", ".join(f"rank {rank} {amount:g}" for rank, amount in enumerate(does))
    return Frame(png(figure), caption, f"{caption} Pairs of pieces: {told}.")


def _longest(held: Sequence[Sequence[int]]) -> float:
    """The time of the rank with most work over that of equal shares."""
    does = work(held)
    return max(does) * len(does) / sum(does)


IN_ORDER = [contiguous(number, RANKS) for number in range(RANKS)]


@lettered
def draw_in_order(lesson: Any, stage: Any, whose: str) -> Figure:
    """Rows in order under a causal mask: who computes which part of it, and how much that is."""
    does = work(IN_ORDER)
    caption = (
        f"{RANKS} ranks hold a sequence of {2 * RANKS} pieces in order. Under a causal mask a piece of rows "
        f"sees the pieces of keys before it, and half of itself. Rank {RANKS - 1} computes "
        f"{does[-1] / does[0]:g} times as much as rank 0, and all wait for it."
    )
    return Figure("Rows in order", (_frame(IN_ORDER, caption),))


@lettered
def draw_shares(lesson: Any, stage: Any, whose: str) -> Figure:
    """Who computes which part of a causal mask, by `pieces`."""
    of, whose = _ring(stage, whose)
    held = [[int(piece) for piece in of.pieces(number, RANKS)] for number in range(RANKS)]
    caption = (
        f"The rank with most work takes {_longest(held):.2f} times as long as with equal shares; with rows "
        f"in order it was {_longest(IN_ORDER):.2f}."
    )
    return Figure(f"Who computes which part of the mask: {whose}", (_frame(held, caption),))


@lettered
def draw_side_by_side(lesson: Any, stage: Any, whose: str) -> Figure:
    """What the streams of each rank do, in a model, in the colour of whose keys they work on."""
    of, whose = _ring(stage, whose)
    found = timeline(of.pull, RANKS)
    last = end(found)
    longest = max(last, RANKS * STEP)
    figure = paper(9.4, 4.8)
    axes = figure.add_axes((0.13, 0.2, 0.85, 0.77))
    told, labels, places = [], [], []
    for rank, some in enumerate(found):
        plan = plan_of(RANKS, rank)
        for lane, stream in enumerate(("main", "side")):
            y = rank * 2.5 + lane
            places.append(y + 0.5)
            labels.append(f"rank {rank}, {stream}")
            for each in (span for span in some if span.stream == stream):
                owner = plan[each.step].owner
                axes.broken_barh(
                    [(each.start, each.stop - each.start)], (y + 0.06, 0.88), fc=CYCLE[owner], ec=INK, lw=0.5
                )
                text = f"step {each.step}" if each.what == "attention" else f"keys of {owner}"
                axes.text((each.start + each.stop) / 2, y + 0.52, text, ha="center", va="center", fontsize=8)
        idle = last - sum(each.stop - each.start for each in some if each.what == "attention")
        told.append(
            f"rank {rank}: keys of {', '.join(str(step.owner) for step in plan)}, {idle:g} units without "
            "attention"
        )
    axes.set_xlim(0, longest)
    axes.set_ylim(len(found) * 2.5 - 0.5, 0)
    axes.set_yticks(places, labels)
    axes.set_xlabel("time in units of the model")
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for n in range(RANKS):
        box = figure.add_axes((0.13 + 0.18 * n, 0.03, 0.025, 0.035))
        box.set_facecolor(CYCLE[n])
        box.set_xticks([])
        box.set_yticks([])
        figure.text(0.163 + 0.18 * n, 0.0475, f"keys of rank {n}", va="center")
    caption = (
        f"A model, no measurement: attention of a step takes {STEP:g} units, the copy of a piece {PIECE:g}. "
        f"The last kernel ends after {last:g}; {RANKS * STEP:g} are the least."
    )
    return Figure(
        f"Whose keys a rank has, and when: {whose}",
        (Frame(png(figure), caption, f"{caption} {'; '.join(told)}."),),
    )


@lettered
def draw_moved(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Bytes that a rank receives by the number of ranks, for three numbers of K/V heads."""
    figure = paper(9.4, 4.2)
    told = []
    for n, kv_heads in enumerate((32, 8, 2)):
        axes = figure.add_axes((0.075 + 0.315 * n, 0.17, 0.27, 0.7))
        axes.set_title(f"{HEADS} query heads, {kv_heads} K/V heads")
        for way, colour, mark in (("ring", ORANGE, "o"), ("pull", BLUE, "s"), ("ulysses", VERMILION, "^")):
            counts = [count for count in COUNTS if way != "ulysses" or kv_heads % count == 0]
            sizes = [moved(way, count, ROWS, HEADS, kv_heads, DIM) / 2**20 for count in counts]
            axes.plot(counts, sizes, f"{mark}-", color=colour, mec=INK, mew=0.4, label=NAMES[way])
            listed = ", ".join(f"{size:,.0f} on {count}" for count, size in zip(counts, sizes, strict=True))
            told.append(f"{kv_heads} K/V heads, {NAMES[way]}: {listed}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
        axes.minorticks_off()
        axes.set_xlabel("ranks")
        axes.set_ylim(0, None)
        axes.spines[["top", "right"]].set_visible(False)
        if n == 0:
            axes.set_ylabel("MiB that a rank receives")
        if n == 1:
            axes.legend(frameon=False)
    caption = (
        f"A sequence of {ROWS:,} rows, D = {DIM}, float16, causal; a mean of the ranks. Ulysses ends where "
        "the number of ranks does not divide the K/V heads."
    )
    return Figure(
        "What a rank receives in a call", (Frame(png(figure), caption, f"{caption} {'; '.join(told)}."),)
    )


@lettered
def draw_needed(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The bandwidth at which a step's copy takes as long as its attention, by rows per rank."""
    evidence = Evidence()
    record, _ = evidence.recorded(LONG)
    rate = evidence.flops(LONG) / evidence.us(KERNEL, LONG) / 1e6
    rows = np.array([512, 1024, 2048, 4096, 8192, 16384, 32768])
    figure = paper(9.4, 4.4)
    axes = figure.add_axes((0.085, 0.14, 0.89, 0.82))
    told = []
    for group, colour in ((1, VERMILION), (4, ORANGE), (16, BLUE)):
        for causal in (False, True):
            wanted = [needed(int(each), group, rate, causal) for each in rows]
            name = f"{group} query head{'s' * (group > 1)} per K/V head{', causal' * causal}"
            axes.plot(rows, wanted, "--" if causal else "-", color=colour, lw=1.6, label=name)
            told.append(
                f"{name}: {', '.join(f'{each:,.0f} at {n:,}' for n, each in zip(rows, wanted, strict=True))}"
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(rows, [f"{each:,}" for each in rows])
    axes.minorticks_off()
    plain_log(axes.yaxis)
    axes.grid(color=GREY, lw=0.6)
    axes.set_xlabel("rows per rank")
    axes.set_ylabel("GB/s")
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"A copy hides behind attention above its line: GB/s that must arrive, at {rate:.0f} TFLOP/s, the "
        f"rate of stage 15 at {LONG} ({provenance(record)}). On few rows a kernel is slower and needs less."
    )
    return Figure("How fast keys must come", (Frame(png(figure), caption, f"{caption} {'; '.join(told)}."),))
