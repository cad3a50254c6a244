"""Who owns which keys of a request that asks with one token, and who merges what the blocks have found."""

from dataclasses import dataclass
from typing import Any

from flashcore_numba.course.figures.canvas import CYCLE, GREY, INK, ORANGE, lettered, paper, png, several
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

KV_HEADS, GROUP, PARTS = 8, 8, 16  # K/V heads, query heads that share one, parts of the keys
DRAWN, WARPS, TILE, TILES = 4, 4, 16, 8  # parts that are drawn, warps of a block, keys of a tile, its tiles
SMS, COLUMNS = 132, 22
WORK = (6.0, 7.5, 5.0, 8.0)  # a part's time in the model: blocks do not run equally fast
MERGE, LAUNCH, PASS = 1.5, 2.0, 0.5  # the merge, from a launch to the next, and a message between blocks
Span = tuple[int, float, float, str]  # a row, from, to, what: part, merge, waits, launch


def blocks_of(requests: int, kv_heads: int, parts: int) -> int:
    """Blocks, where each has all rows of a K/V head and one part of the keys."""
    return requests * kv_heads * parts


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The keys of a request by owner, and how many SMs have a block."""
    return Figure("Who owns which keys", (_owners(), _filled()))


def _owners() -> Frame:
    figure = paper(9.4, 4.5)
    axes = figure.add_axes((0.11, 0.50, 0.87, 0.40))
    figure.text(0.012, 0.945, "A block has one K/V head and one part of the keys", fontsize=10.5,
                fontweight="bold")  # fmt: skip
    for head in range(DRAWN):
        for part in range(DRAWN):
            colour = CYCLE[(part + head * 3) % len(CYCLE)]
            axes.broken_barh([(part, 1)], (head + 0.06, 0.88), fc=colour, ec=INK, lw=0.6)
            text = f"block ({part}, {head})"
            box = {"fc": "white", "ec": "none", "pad": 1, "alpha": 0.8}
            axes.text(part + 0.5, head + 0.52, text, ha="center", va="center", fontsize=8.5, bbox=box)
    axes.set_xlim(0, DRAWN)
    axes.set_ylim(DRAWN, 0)
    axes.set_yticks([h + 0.5 for h in range(DRAWN)], [f"K/V head {h}" for h in range(DRAWN)])
    axes.set_xticks(range(DRAWN + 1), [f"{TILE * TILES * n}" for n in range(DRAWN + 1)])
    axes.set_xlabel("key")
    inner = figure.add_axes((0.11, 0.13, 0.87, 0.16))
    figure.text(0.012, 0.335, f"In a block: rows of {GROUP} query heads, and tiles of {TILE} keys in turn",
                fontsize=10.5, fontweight="bold")  # fmt: skip
    for tile in range(TILES):
        inner.broken_barh([(tile, 1)], (0.05, 0.9), fc=CYCLE[tile % WARPS], ec=INK, lw=0.6)
        inner.text(tile + 0.5, 0.5, f"warp {tile % WARPS}", ha="center", va="center", fontsize=8.5)
    inner.set_xlim(0, TILES)
    inner.set_ylim(1, 0)
    inner.set_yticks([0.5], [f"{GROUP} rows"])
    inner.set_xticks(range(TILES + 1), [f"{TILE * n}" for n in range(TILES + 1)])
    inner.set_xlabel("key of the part")
    for each in (axes, inner):
        each.tick_params(length=0)
        each.spines[["top", "right"]].set_visible(False)
    caption = (
        f"Above: {DRAWN} of the K/V heads, and a request's keys in {DRAWN} parts. Below: one block. Its "
        f"warps take tiles of {TILE} keys in turn, each for all {GROUP} rows, and wait for no other warp."
    )
    dealt = ", ".join(f"tile {tile} warp {tile % WARPS}" for tile in range(TILES))
    return Frame(png(figure), caption, f"{caption} {dealt}.")


def _filled() -> Frame:
    figure = paper(9.4, 3.9)
    said = []
    for n, (parts, title) in enumerate(((1, "all keys in one part"), (PARTS, f"{PARTS} parts"))):
        axes = figure.add_axes((0.02 + 0.5 * n, 0.04, 0.46, 0.76))
        blocks = min(SMS, blocks_of(1, KV_HEADS, parts))
        text = f"{title}: {blocks} of {SMS} SMs have a block"
        figure.text(0.02 + 0.5 * n, 0.91, text, fontsize=10.5, fontweight="bold")
        for sm in range(SMS):
            colour = ORANGE if sm < blocks else GREY
            at = (sm % COLUMNS + 0.08, sm // COLUMNS + 0.08)
            axes.broken_barh([(at[0], 0.84)], (at[1], 0.84), fc=colour, ec=INK, lw=0.4)
        axes.set_xlim(0, COLUMNS)
        axes.set_ylim(SMS // COLUMNS, 0)
        axes.axis("off")
        said.append(text)
    caption = (
        f"One request, one token, {KV_HEADS * GROUP} query heads on {KV_HEADS} K/V heads, and the SMs of an "
        f"H200: a box is an SM. Of {KV_HEADS * GROUP} rows {GROUP} share a block, because they read the "
        "same keys."
    )
    return Frame(png(figure), caption, f"{caption} {said[0]}; {said[1]}.")


@dataclass(frozen=True)
class Way:
    """A way to merge: its name, what is done when, and one sentence."""

    name: str
    spans: tuple[Span, ...]
    sentence: str

    @property
    def end(self) -> float:
        return max(stop for _, _, stop, _ in self.spans)


def ways() -> tuple[Way, ...]:
    """The three ways, in the model: all blocks begin together, and end when WORK says."""
    parts = tuple((n, 0.0, time, "part") for n, time in enumerate(WORK))
    last, end = max(range(len(WORK)), key=WORK.__getitem__), max(WORK)
    merged = (len(WORK), end + LAUNCH, end + LAUNCH + MERGE, "merge")
    share = MERGE / len(WORK)
    waits = tuple((n, time, end + PASS, "waits") for n, time in enumerate(WORK) if time < end)
    own = tuple((n, end + PASS, end + PASS + share, "merge") for n in range(len(WORK)))
    return (
        Way(
            "two launches",
            (*parts, (len(WORK), end, end + LAUNCH, "launch"), merged),
            "A second kernel merges. It begins when all blocks of the first one have ended.",
        ),
        Way(
            "one launch, the last block merges",
            (*parts, (last, end + PASS, end + PASS + MERGE, "merge")),
            f"Blocks {', '.join(str(n) for n in range(len(WORK)) if n != last)} end as soon as their part is "
            f"stored, and wait for nobody. Block {last} comes last, and finds all parts.",
        ),
        Way(
            "a cluster, every block merges a share",
            (*parts, *waits, *own),
            "All blocks run at once and send each other their parts. Each merges its share of the columns, "
            "and none may end before the messages to it have come.",
        ),
    )


@lettered
def draw_arrivals(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Three ways to merge in a model, a frame each."""
    every = ways()
    end = max(way.end for way in every)
    return Figure("Who merges the parts of a request: a model", tuple(_way(way, end) for way in every), 1)


def _way(way: Way, end: float) -> Frame:
    figure = paper(9.4, 3.2)
    axes = figure.add_axes((0.13, 0.16, 0.85, 0.68))
    figure.text(0.012, 0.915, way.name.capitalize(), fontsize=10.5, fontweight="bold")
    look = {
        "part": {"fc": CYCLE[0], "ec": INK},
        "merge": {"fc": ORANGE, "ec": INK},
        "waits": {"fc": "white", "ec": "#BBBBBB", "hatch": "////"},
        "launch": {"fc": "white", "ec": "#BBBBBB", "hatch": "////"},
    }
    named = {"part": "its part of the keys", "launch": "launch"}
    for row, start, stop, what in way.spans:
        axes.broken_barh([(start, stop - start)], (row + 0.12, 0.76), lw=0.6, **look[what])
        if stop - start >= 1.4:
            text = named.get(what, what)
            box = {"fc": "white", "ec": "none", "pad": 1, "alpha": 0.85}
            axes.text((start + stop) / 2, row + 0.52, text, ha="center", va="center", fontsize=8.5, bbox=box)
    rows = max(row for row, *_ in way.spans) + 1
    axes.set_xlim(0, end)
    axes.set_ylim(rows, 0)
    labels = [f"block {n}" if n < len(WORK) else "second kernel" for n in range(rows)]
    axes.set_yticks([n + 0.5 for n in range(rows)], labels)
    axes.set_xticks([])
    axes.set_xlabel("time in a model, not measured; hatched: nothing to do")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    waiting = [row for row, _, _, what in way.spans if what == "waits"]
    more = f" {several(len(waiting), 'block')} wait." if waiting else ""
    return Frame(png(figure), f"{way.name.capitalize()}. {way.sentence}", f"{way.name}: {way.sentence}{more}")
