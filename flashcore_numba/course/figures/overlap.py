"""Chains of products and softmax in time: a model, with shared tensor cores or turns, and measured stamps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flashcore_numba.course.counters import of_line, total
from flashcore_numba.course.figures.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    SKY,
    YELLOW,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

# A tile of 64 rows and 64 keys, D = 64, in clocks of an SM: what its products take at 4096 FLOP per clock,
# and its exponentials at 16 per clock.
PRODUCTS, EXPONENTIALS = 256, 256
# Stage 14 with such tiles, measured once on an H200: 7.93 us for 8 turns, 14.24 for 16, at 1980 MHz. What is
# not products is the rest of the chain.
SOFTMAX = round((14.24 - 7.93) / 8 * 1980) - PRODUCTS
# Clocks between stamps that a warp of stage 15 took in each turn, 4x32x4096x64, measured once on an H200.
STAMPS = {
    "waits for its turn": 150,
    "starts Q Kᵀ": 255,
    "starts P V": 225,
    "waits for S": 140,
    "exponentials": 895,
    "waits for O": 105,
    "packs P": 157,
    "taking the stamps": 246,
}
SHAPE = "1x1x256x64"
LONGEST = 6400  # clocks that a frame shows


@dataclass(frozen=True)
class Span:
    """What one chain does from `start` to `stop`, in clocks: "products" or "softmax"."""

    chain: int
    what: str
    start: float
    stop: float


def spans(
    starts: Sequence[float],
    products: float = PRODUCTS,
    softmax: float = SOFTMAX,
    exponentials: float = EXPONENTIALS,
    turns: bool = True,
    tiles: int = 4,
) -> list[Span]:
    """A chain for each of `starts`, the time at which it begins: products and softmax, `tiles` times.

    Chains that multiply share the tensor cores evenly; with `turns` only one does, each in its turn, and the
    others wait. `softmax` is what a chain needs alone; the unit that makes its exponentials needs
    `exponentials` of it, and is shared where several chains would need more than all of it. All in clocks.
    """
    chains = range(len(starts))
    now, turn, found = 0.0, 0, []
    doing, left = ["start"] * len(starts), list(map(float, starts))
    begun, done = [0.0] * len(starts), [0] * len(starts)
    while min(done) < tiles:
        ready = [c for c in chains if doing[c] == "products" and done[c] < tiles]
        multiplying = [c for c in ready if c == turn] if turns else ready
        weighing = [c for c in chains if doing[c] == "softmax"]
        rate = dict.fromkeys([c for c in chains if doing[c] == "start"], 1.0)
        rate |= dict.fromkeys(multiplying, 1 / max(1, len(multiplying)))
        rate |= dict.fromkeys(weighing, min(1.0, softmax / (exponentials * max(1, len(weighing)))))
        for c in multiplying:
            if left[c] == products:
                begun[c] = now
        step = min(left[c] / rate[c] for c in rate)
        now += step
        for c in rate:
            left[c] -= step * rate[c]
            if left[c] > 1e-6:
                continue
            if doing[c] != "start":
                found.append(Span(c, doing[c], begun[c], now))
            if doing[c] == "products":
                doing[c], left[c], begun[c] = "softmax", softmax, now
                turn = (turn + 1) % len(starts) if turns else turn
            else:
                done[c] += doing[c] == "softmax"
                doing[c], left[c], begun[c] = "products", products, now
    return found


def period(found: list[Span]) -> float:
    """Clocks from tile to tile of a chain, when it has settled."""
    stops = [span.stop for span in found if span.chain == 0 and span.what == "products"]
    return stops[-1] - stops[-2]


def busy(found: list[Span], products: float = PRODUCTS) -> float:
    """The share of the settled time in which the tensor cores multiply, 1.0 at best."""
    return len({span.chain for span in found}) * products / period(found)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The ideal, one chain, four in step, four in turn, and the stamps."""
    found = launched(stage, SHAPE)
    waited, handed = (of_line(f"ptx::bar_{name}", "barrier")(found) for name in ("sync", "arrive"))
    under_way = total("arrive_under_way")(found) / 32
    counted = (
        f"Counted in {whose} at {SHAPE}, once per warp: {several(int(waited), 'wait')} for a turn, "
        f"{handed:,.0f} turns handed on, {under_way:,.0f} of them while the own products ran."
    )
    frames = (
        _modelled("What two chains could do: 256 clocks of products, 256 of exponentials",
                  spans((0, 0), softmax=EXPONENTIALS, tiles=12)),
        _modelled("One chain, as stage 14 has it", spans((0,), tiles=6)),
        _modelled("Four chains that begin together and share the tensor cores",
                  spans((0, 0, 0, 0), turns=False, tiles=6)),
        _modelled("Four chains in turn", spans((0, 0, 0, 0), tiles=6), counted),
        _stamped(),
    )  # fmt: skip
    return Figure("Products and softmax in time, tiles of 64 keys, D = 64", frames, 3)


def _modelled(title: str, found: list[Span], counted: str = "") -> Frame:
    chains = 1 + max(span.chain for span in found)
    figure = paper(9.4, 1.6 + 0.42 * chains)
    axes = figure.add_axes((0.13, 0.62 / figure.get_figheight(), 0.85, 1 - 1.0 / figure.get_figheight()))
    last = dict.fromkeys(range(chains), 0.0)
    for span in sorted(found, key=lambda each: each.start):
        if span.start >= LONGEST:
            continue
        if span.start > last[span.chain] + 1:
            waits, box = (last[span.chain], span.start - last[span.chain]), (span.chain + 0.12, 0.76)
            axes.broken_barh([waits], box, fc="white", ec="#888888", hatch="////", lw=0.5)
        colour = BLUE if span.what == "products" else ORANGE
        width = min(span.stop, LONGEST) - span.start
        axes.broken_barh([(span.start, width)], (span.chain + 0.12, 0.76), fc=colour, ec=INK, lw=0.6)
        last[span.chain] = span.stop
    for span in found:
        if span.what == "products" and span.start < LONGEST:
            width = min(span.stop, LONGEST) - span.start
            axes.broken_barh([(span.start, width)], (chains + 0.3, 0.5), fc=BLUE, ec="none")
    axes.set_xlim(0, LONGEST)
    axes.set_ylim(chains + 0.9, 0)
    names = [f"warpgroup {chain}" for chain in range(chains)] if chains > 1 else ["one chain"]
    axes.set_yticks([*(chain + 0.5 for chain in range(chains)), chains + 0.55], [*names, "tensor cores"])
    axes.set_xlabel("clocks; blue: products, orange: softmax, hatched: waits")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.012, 1 - 0.27 / figure.get_figheight(), title, fontsize=10.5, fontweight="bold")
    said = (
        f"In the model a chain ends a tile every {period(found):,.0f} clocks, and the tensor cores are busy "
        f"for {busy(found):.0%} of the time."
    )
    caption = f"{title}. {said} {counted}".strip()
    first = "; ".join(
        f"chain {s.chain} {s.what} {s.start:,.0f} to {s.stop:,.0f}" for s in found if s.start < period(found)
    )
    return Frame(png(figure), caption, f"{caption} The first tiles: {first}.")


def _stamped() -> Frame:
    title, whole = "Stage 15 as measured: the turns of a warp between its stamps", sum(STAMPS.values())
    figure = paper(9.4, 3.9)
    axes = figure.add_axes((0.13, 0.36, 0.85, 0.54))
    colours = ("white", BLUE, SKY, "white", ORANGE, "white", YELLOW, GREY)
    for chain in range(4):
        for turn in range(-1, 4):
            at = whole * turn + whole / 4 * chain
            for clocks, colour in zip(STAMPS.values(), colours, strict=True):
                hatch = "////" if colour == "white" else ""
                start, stop = max(0.0, at), min(at + clocks, LONGEST)
                if start < stop:
                    box = (chain + 0.12, 0.76)
                    axes.broken_barh([(start, stop - start)], box, fc=colour, ec=INK, hatch=hatch, lw=0.5)
                at += clocks
    axes.set_xlim(0, LONGEST)
    axes.set_ylim(4, 0)
    axes.set_yticks([chain + 0.5 for chain in range(4)], [f"warpgroup {chain}" for chain in range(4)])
    axes.set_xlabel("clocks")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.012, 0.94, title, fontsize=10.5, fontweight="bold")
    legend = {
        "starts Q Kᵀ": BLUE, "starts P V": SKY, "exponentials": ORANGE, "packs P": YELLOW,
        "waits (turn, S, O)": "white", "taking the stamps": GREY,
    }  # fmt: skip
    for place, (words, colour) in enumerate(legend.items()):
        x, y = 0.03 + 0.33 * (place % 3), 0.13 - 0.075 * (place // 3)
        hatch = "////" if colour == "white" else ""
        sample = {"fc": colour, "ec": INK, "hatch": hatch, "pad": 1.5, "lw": 0.6}
        figure.text(x, y, "    ", fontsize=9, bbox=sample)
        figure.text(x + 0.035, y, words, fontsize=9)
    listed = ", ".join(f"{words} {clocks}" for words, clocks in STAMPS.items())
    caption = (
        f"{title}, {whole:,} clocks per tile, measured once on an H200: {listed}. The shift of the four "
        f"against each other is drawn even. Their products take 4 x {PRODUCTS} clocks: "
        f"{4 * PRODUCTS / whole:.0%} of that time."
    )
    return Frame(png(figure), caption, caption)
