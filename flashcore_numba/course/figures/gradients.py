"""Of the backward pass by rows: who computes a pair, who adds to a gradient, what moves, and what differs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.shapes import parse
from flashcore_numba.course.evidence import COUNTED, MISSION
from flashcore_numba.course.figures.canvas import (
    BLUE,
    CYCLE,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    lettered,
    paper,
    png,
)
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.course.figures.recording import HEAD_DIM, ROWS, record, requests
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.count import SECTOR
from flashcore_numba.stages import Stage

BY_ROWS, ADDING, TILES = "rows", "atomics", "tiles"  # variants of the stage
HALF, FLOAT = FLOAT16.dtype.itemsize, 4  # bytes
GRADIENTS = {
    "dq": "dQ",
    "dq_sum": "dQ",
    "dk": "dK",
    "dv": "dV",
}  # array of a kernel -> what is added up in it
COLOURS = {"q": CYCLE[0], "dout": CYCLE[1], "k": CYCLE[2], "v": CYCLE[3], "dq_sum": CYCLE[5]}
ORDERS = ("lockstep", "reverse")
SHIFTED = (16, 96, 32.0)  # rows, keys, and what all components of the keys have in common
SEED = 7


@dataclass(frozen=True, eq=False)
class Pass:
    """What block 0 of one launch does. pairs [rows, keys]: the warp that computes the pair, -1 for none.
    written: gradient -> {row of it: the warps that write or add there}.
    """

    pairs: np.ndarray
    written: Mapping[str, Mapping[int, set[int]]]
    products: int

    @property
    def by_rows(self) -> bool:
        """Whether a warp owns a query row, and not a key."""
        return len({int(warp) for warp in self.pairs[0]}) == 1 and bool((self.pairs[-1] < 0).all())


def passes(stage: Stage, variant: str) -> list[Pass]:
    """The launches of a variant that compute pairs, as the simulator has recorded them."""
    found = []
    for launch in record(stage, variant=variant).launches:
        touched: dict[tuple[str, bool], dict[int, set[int]]] = {}
        for event in launch.events:
            if event.space != "global":
                continue
            for warp, elements in zip(*requests(event), strict=True):
                rows = set(map(int, elements[elements >= 0] * max(1, event.width) // HEAD_DIM))
                of = touched.setdefault((event.array, event.op == "load"), {})
                of.setdefault(int(warp), set()).update(rows)
        if ("q", True) not in touched:
            continue
        pairs = np.full((ROWS, ROWS), -1)
        for warp, rows in touched["q", True].items():
            pairs[np.ix_(sorted(rows), sorted(touched["k", True][warp]))] = warp
        written: dict[str, dict[int, set[int]]] = {}
        for (array, loaded), by_warp in touched.items():
            if loaded or array not in GRADIENTS:
                continue
            of = written.setdefault(GRADIENTS[array], {})
            for warp, rows in by_warp.items():
                for row in rows:
                    of.setdefault(row, set()).add(warp)
        found.append(Pass(pairs, written, 2 + len(written)))  # S and dP, and one for each gradient
    return found


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The two passes of the variant by rows, the one of that with atomics, and the bytes of a head."""
    two, (one,) = passes(stage, BY_ROWS), passes(stage, ADDING)
    figure = paper(9.4, 5.9)
    seven, five = sum(each.products for each in two), one.products
    figure.text(
        0.012, 0.955, f"variant {BY_ROWS}: two passes, {seven} products", fontsize=10.5, fontweight="bold"
    )
    figure.text(0.672, 0.955, f"variant {ADDING}: {five} products", fontsize=10.5, fontweight="bold")
    told = []
    for n, (each, x) in enumerate(zip([*two, one], (0.012, 0.342, 0.672), strict=True)):
        told.append(_panel(figure, each, x))
        if n == 1:
            figure.add_artist(_line(x + 0.315))
    kept = _bytes(figure)
    caption = (
        "Above: the pairs of a query row and a key that block 0 computes, and where it writes, one head of "
        f"{ROWS} x {ROWS}; a colour is a warp. Below: what a head has in memory at {MISSION}, and what it "
        "would have if the forward pass kept P."
    )
    alt = (
        f"Variant {BY_ROWS}, {seven} products: {told[0]} {told[1]} Variant {ADDING}, {five} products: "
        f"{told[2]} {kept}"
    )
    return Figure(f"Who adds: {whose}", (Frame(png(figure), caption, alt),))


def _line(x: float) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([x, x], [0.36, 0.985], color="#AAAAAA", lw=0.8)


def _panel(figure: Any, each: Pass, x: float) -> str:
    """The pairs as a square, dQ to its left and dK, dV below it; what they say in words."""
    axes = figure.add_axes((x + 0.048, 0.475, 0.235, 0.375))
    axes.imshow(_painted(each.pairs), extent=(0, ROWS, ROWS, 0), aspect="auto", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(ROWS / 2, 1.2 * ROWS / 2, "S, P, dP, dS", ha="center", fontsize=10, color="#777777")
    axes.text(ROWS / 2, -3, "keys", ha="center", fontsize=9)
    own, other = ("query row", "key") if each.by_rows else ("key", "query row")
    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.4}
    if each.by_rows:
        axes.annotate("", (ROWS - 4, 9), (4, 9), arrowprops=arrow)
        axes.text(6, 14, f"each warp over all {other}s", fontsize=8.5)
    else:
        axes.annotate("", (9, ROWS - 4), (9, 4), arrowprops=arrow)
        axes.text(12, 9, f"each warp over all {other}s", fontsize=8.5)
    names = list(each.written)
    figure.text(x, 0.905, f"A warp owns a {own}: {', '.join(names)}", fontsize=9.5)
    words = [f"A warp owns a {own} and walks over all {ROWS} {other}s."]
    for name, where, sideways in (("dQ", (x + 0.018, 0.475, 0.02, 0.375), False),
                                  ("dK, dV", (x + 0.048, 0.415, 0.235, 0.035), True)):  # fmt: skip
        strip = figure.add_axes(where)
        rows = each.written.get(name.split(",")[0], {})
        _strip(strip, rows, sideways)
        if sideways:
            figure.text(x + 0.043, 0.432, name, fontsize=9, ha="right", va="center")
        else:
            strip.set_title(name, fontsize=9, pad=3)
        if rows:
            most = max(len(warps) for warps in rows.values())
            words.append(f"Of {name} block 0 writes {len(rows)} rows, each by {most} of its warps.")
    shared = [name for name, rows in each.written.items() if any(len(warps) > 1 for warps in rows.values())]
    note = f"{' and '.join(shared)}: every warp of every block adds to every row" if shared else (
        f"{' and '.join(names)}: one warp adds to a row, in registers")  # fmt: skip
    figure.text(x, 0.375, note, fontsize=8.8, color=VERMILION if shared else INK)
    return " ".join(words)


def _strip(axes: Any, rows: Mapping[int, set[int]], sideways: bool) -> None:
    """One gradient: the rows that block 0 writes in the colour of their warp, hatched where several do."""
    axes.set_xlim(0, ROWS if sideways else 1)
    axes.set_ylim(*((1, 0) if sideways else (ROWS, 0)))
    alone = {row: next(iter(warps)) for row, warps in rows.items() if len(warps) == 1}
    for row, warp in alone.items():
        span, across = (row, 1), (0, 1)
        x, y = (span, across) if sideways else (across, span)
        axes.broken_barh([x], y, fc=CYCLE[warp], ec="none")
    if len(alone) < len(rows):
        size = (ROWS, 1) if sideways else (1, ROWS)
        axes.broken_barh([(0, size[0])], (0, size[1]), fc="#FBD3B8", ec=VERMILION, hatch="xxxx", lw=0)
    axes.set_xticks([])
    axes.set_yticks([])


def _painted(pairs: np.ndarray) -> np.ndarray:
    palette = [GREY, *CYCLE[: pairs.max() + 1]]
    rgb = np.array([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in palette])
    return rgb[pairs + 1]


def _bytes(figure: Any) -> str:
    """Bars of the bytes of a head at the mission shape."""
    shape = parse(MISSION)
    rows, dim = shape.seq, shape.head_dim
    bars = {
        "Q, K, V, O, dO, each": (rows * dim * HALF, BLUE, ""),
        "LSE; D": (rows * FLOAT, BLUE, ""),
        "P in float16, if it were kept": (rows * rows * HALF, "white", "////"),
    }
    axes = figure.add_axes((0.245, 0.055, 0.62, 0.235))
    most = max(size for size, _, _ in bars.values())
    for n, (size, colour, hatch) in enumerate(bars.values()):
        axes.broken_barh(
            [(0, size)], (n + 0.15, 0.7), fc=colour, ec=ORANGE if hatch else INK, hatch=hatch, lw=0.7
        )
        axes.text(size + 0.01 * most, n + 0.5, f"{size:,}", va="center", fontsize=9)
    axes.set_yticks([n + 0.5 for n in range(len(bars))], list(bars))
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_xlim(0, 1.02 * most)
    axes.set_ylim(len(bars), 0)
    axes.spines[:].set_visible(False)
    figure.text(0.012, 0.305, f"Bytes of a head at {MISSION}", fontsize=10, fontweight="bold")
    return "Bytes of a head: " + ", ".join(f"{name} {size:,}" for name, (size, _, _) in bars.items()) + "."


@lettered
def draw_traffic(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The bytes that each variant's requests touch in global memory, by array."""
    found = {variant: _moved(stage, variant) for variant in (BY_ROWS, ADDING, TILES)}
    figure = paper(9.4, 3.3)
    axes = figure.add_axes((0.085, 0.17, 0.895, 0.71))
    most = max(sum(each.values()) for each in found.values())
    for n, each in enumerate(found.values()):
        left = 0
        for array, size in each.most_common():
            colour, hatch = COLOURS.get(array, "#BBBBBB"), "xxxx" if array == "dq_sum" else ""
            axes.broken_barh([(left, size)], (n + 0.14, 0.72), fc=colour, ec=INK, hatch=hatch, lw=0.6)
            if size > 0.0075 * len(array) * most:  # the name fits
                box = {"fc": "white", "ec": "none", "pad": 1}
                axes.text(left + size / 2, n + 0.5, array, ha="center", va="center", fontsize=8, bbox=box)
            left += size
        axes.text(left + 0.008 * most, n + 0.5, f"{left / 1e6:.2f} MB", va="center", fontsize=9)
    axes.set_yticks([n + 0.5 for n in range(len(found))], list(found))
    axes.tick_params(length=0)
    axes.set_xlim(0, 1.1 * most)
    axes.set_ylim(len(found), 0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:.0f}")
    axes.set_xlabel(f"MB that the 32-byte sectors of all requests have, {COUNTED}")
    for side in ("right", "top", "left"):
        axes.spines[side].set_visible(False)
    sums = {variant: sum(each.values()) for variant, each in found.items()}
    atomics = found[ADDING]["dq_sum"] / sums[ADDING]
    caption = (
        f"{', '.join(f'{variant} {size / 1e6:.2f} MB' for variant, size in sums.items())}. Of what {ADDING} "
        f"moves, {atomics:.0%} is its sums of dQ, of whose sectors each request uses half."
    )
    alt = " ".join(
        f"{variant}: {', '.join(f'{array} {size:,} bytes' for array, size in each.most_common())}."
        for variant, each in found.items()
    )
    return Figure(f"What the variants move: {whose}", (Frame(png(figure), caption, f"{caption} {alt}"),))


def _moved(stage: Stage, variant: str) -> Counter[str]:
    moved: Counter[str] = Counter()
    for launch in launched(stage, COUNTED, variant):
        for row in launch.lines():
            if row.space == "global":
                moved[_short(row.array)] += SECTOR * row.sectors
    return moved


def _short(array: str) -> str:
    """The name of an array; of several that one line serves, `tiles of q/k/v/dout`."""
    return f"tiles of {array}" if "/" in array else array


@lettered
def draw_orders(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The elements of dQ whose bits depend on the order in which warps run, by variant."""
    problem = shifted_keys()
    found = {variant: differences(stage, variant, problem) for variant in (BY_ROWS, ADDING)}
    figure = paper(9.4, 3.9)
    told = []
    for n, (variant, each) in enumerate(found.items()):
        axes = figure.add_axes((0.06 + 0.49 * n, 0.13, 0.435, 0.78))
        size = (0, each.shape[1], each.shape[0], 0)
        axes.imshow(each != 0, cmap=_two_colours(), vmin=0, vmax=1, aspect="auto", extent=size)
        axes.set_xlabel("component of dQ")
        axes.set_ylabel("query row", labelpad=1)
        axes.tick_params(length=2)
        count = int((each != 0).sum())
        text = f"{variant}: {count:,} of {each.size:,} elements differ"
        axes.set_title(text, loc="left")
        told.append(
            text + f" by at most {int(np.abs(each).max())} in the last place of float16" * (count > 0)
        )
    rows, keys, common = SHIFTED
    caption = (
        f"{'; '.join(told)}. The same input twice, {rows} rows and {keys} keys with {common:g} added to all "
        "their components; the simulator runs the warps in two orders."
    )
    return Figure(f"dQ in two runs: {whose}", (Frame(png(figure), caption, caption),))


def _two_colours() -> Any:
    from matplotlib.colors import ListedColormap

    return ListedColormap(["white", VERMILION])


def shifted_keys() -> Any:
    """Inputs whose keys have much in common, so that dQ is a small sum of large terms."""
    rows, keys, common = SHIFTED
    rng = np.random.default_rng(SEED)
    forward = normal(rng, 1, 1, rows, keys, HEAD_DIM)
    return backward_inputs(forward.but(k=FLOAT16.round(forward.k + common)), rng)


def differences(stage: Stage, variant: str, inputs: Any, orders: Sequence[str] = ORDERS) -> np.ndarray:
    """How many steps of float16 dQ of two runs is apart, [rows, D]: the warps run in two orders."""
    bits = []
    for order in orders:
        outputs = stage.run(
            inputs.problem(inputs.arrays), Simulator(order=order, ops=False, races=False), variant
        )
        dq = outputs["dq"][0, 0].view(np.int16).astype(int)
        bits.append(np.where(dq < 0, -32768 - dq, dq))  # so that neighbours differ by 1
    return bits[1] - bits[0]
