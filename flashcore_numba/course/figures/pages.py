"""Keys in pages: where a table says that they are, which slots a kernel reads, and how blocks share long and
short requests.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.branches.decode.decode_even import Division
from flashcore_numba.branches.decode.decode_split import PART_ELEMENTS, TILES
from flashcore_numba.branches.decode.inputs import DecodeInputs, paged
from flashcore_numba.branches.decode.split_parts import part_tiles
from flashcore_numba.course.figures.canvas import (
    CYCLE,
    GREEN,
    GREY,
    INK,
    VERMILION,
    lettered,
    paper,
    png,
    several,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import Stage

LENGTHS, PAGE, HEAD_DIM, SEED = (40, 3, 21), 16, 64, 3
SMS, WARPS_OF, D = 32, "many", 128  # of the model: SMs with a block each, and a tile of decode/split
RAGGED = (3000, 1000, 100000, 5000, 2000, 10000, 1000, 4000)  # keys of the requests
CLUSTER = 8
Done = list[list[tuple[int, int]]]  # by SM: (request, tiles of keys) one after the other


def example() -> DecodeInputs:
    """Three requests on pages of 16 in random order, with poison in every slot that holds no key.

    Past a request's last page the table names a page of nobody: a kernel that reads it goes on.
    """
    x = paged(np.random.default_rng(SEED), LENGTHS, 1, 1, 1, HEAD_DIM, PAGE, spare_columns=1)
    table = x.block_table.copy()
    (free, *_) = np.flatnonzero((holders(x) < 0).all(axis=1))
    for row, length in enumerate(LENGTHS):
        table[row, -(-length // PAGE) :] = free
    return x.but(block_table=table)


def holders(x: DecodeInputs) -> np.ndarray:
    """The request whose key each slot of the pool holds, -1 for none, [pages, page]."""
    held = np.full(x.k_pool.shape[:2], -1)
    for request, length in enumerate(x.lengths.tolist()):
        keys = np.arange(length)
        held[x.block_table[request, keys // x.page], keys % x.page] = request
    return held


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The block table of three requests, and the pool that it points into."""
    x = example()
    held = holders(x)
    figure = paper(9.4, 4.6)
    figure.text(0.012, 0.95, "The block table", fontsize=10.5, fontweight="bold")
    axes = figure.add_axes((0.13, 0.08, 0.16, 0.74))
    told = []
    for row, length in enumerate(x.lengths.tolist()):
        used = -(-length // x.page)
        for column in range(x.block_table.shape[1]):
            counts = column < used
            style = {"fc": CYCLE[row]} if counts else {"fc": "white", "hatch": "////"}
            axes.broken_barh(
                [(column, 1)], (row + 0.2, 0.6), ec=INK if counts else "#BBBBBB", lw=0.6, **style
            )
            if counts:
                page = str(int(x.block_table[row, column]))
                axes.text(column + 0.5, row + 0.52, page, ha="center", va="center")
        pages = ", ".join(map(str, x.block_table[row, :used].tolist()))
        told.append(f"request {row}, {several(length, 'key')}: pages {pages}")
    axes.set_xlim(0, x.block_table.shape[1])
    axes.set_ylim(len(x.lengths), 0)
    labels = [f"request {row}\n{length} keys" for row, length in enumerate(x.lengths.tolist())]
    axes.set_yticks([row + 0.5 for row in range(len(labels))], labels)
    axes.set_xticks([])
    figure.text(0.36, 0.95, f"The pool: pages of {x.page} slots", fontsize=10.5, fontweight="bold")
    colours = np.array([CYCLE[n] for n in range(len(LENGTHS))] + [GREY])
    _pool(figure, x, colours[held])
    for each in (axes,):
        each.tick_params(length=0)
        each.spines[["top", "right", "bottom", "left"]].set_visible(False)
    free = int((held < 0).sum())
    caption = (
        f"Key j of a request is slot j % {x.page} of page table[j // {x.page}]. Grey: {free} slots that hold "
        "no key, here NaN, infinities or the largest numbers. Hatched: entries that nobody may read."
    )
    return Figure("Where the keys are", (Frame(png(figure), caption, f"{caption} {'; '.join(told)}."),))


def _pool(figure: Any, x: DecodeInputs, colours: np.ndarray) -> None:
    axes = figure.add_axes((0.43, 0.08, 0.56, 0.80))
    pages, page = colours.shape
    for number in range(pages):
        for slot in range(page):
            at = (slot + 0.05, number + 0.1)
            axes.broken_barh([(at[0], 0.9)], (at[1], 0.8), fc=colours[number, slot], ec=INK, lw=0.4)
    axes.set_xlim(0, page)
    axes.set_ylim(pages, 0)
    axes.set_yticks([n + 0.5 for n in range(pages)], [f"page {n}" for n in range(pages)])
    axes.set_xticks([n + 0.5 for n in range(0, page, 5)], [f"slot {n}" for n in range(0, page, 5)])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)


def touched(stage: Stage, x: DecodeInputs, array: str) -> np.ndarray:
    """The slots of a pool that the stage's kernels read, [pages, page]."""
    executor = Simulator(record=True, races=False, ops=False)
    stage.run(x.problem(x.arrays), executor, None)
    found = np.zeros(x.k_pool.shape[:2], bool)
    of_slot = x.k_pool.shape[2] * x.k_pool.shape[3]
    for launch in executor.launches:
        for event in launch.events:
            if event.space == "global" and event.op == "load" and event.array == array:
                slots = np.unique(event.element[event.active] // of_slot)
                found.reshape(-1)[slots] = True
    return found


@lettered
def draw_read(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The slots of K and of V that a kernel reads, those that it should, and those that hold no key."""
    x = example()
    held = holders(x)
    frames = []
    for array, name in (("k_pool", "K"), ("v_pool", "V")):
        read = touched(stage, x, array)
        figure = paper(9.4, 4.4)
        figure.text(0.012, 0.945, f"{name}: slots that are read", fontsize=10.5, fontweight="bold")
        colours = np.full(held.shape, "#FFFFFF", dtype="U7")
        colours[held >= 0] = GREY
        colours[read & (held >= 0)] = GREEN
        colours[read & (held < 0)] = VERMILION
        _pool(figure, x, colours)
        counts = (read & (held >= 0)).sum(), (~read & (held >= 0)).sum(), (read & (held < 0)).sum()
        for row, (colour, text) in enumerate(
            (
                (GREEN, f"{counts[0]} keys that are read"),
                (GREY, f"{counts[1]} keys that are not"),
                (VERMILION, f"{counts[2]} slots without a key\nthat are read"),
            )
        ):
            box = figure.add_axes((0.02, 0.72 - 0.17 * row, 0.03, 0.07))
            box.set_facecolor(colour)
            box.set_xticks([])
            box.set_yticks([])
            figure.text(0.07, 0.755 - 0.17 * row, text, va="center")
        caption = (
            f"{name}: {counts[0]} of {int((held >= 0).sum())} keys are read, and {counts[2]} of "
            f"{int((held < 0).sum())} slots that hold no key. White: such slots, not read."
        )
        frames.append(Frame(png(figure), caption, caption))
    return Figure(f"What is read of the pools: {whose}", tuple(frames))


def whole(lengths: Sequence[int]) -> Done:
    """A block per request, on the SM that is free first."""
    return _first_free([(n, [_tiles(keys)]) for n, keys in enumerate(lengths)], 1)


def in_clusters(lengths: Sequence[int]) -> Done:
    """Every request in as many parts as a cluster has blocks, which begin and end together."""
    every = [(n, [-(-_tiles(keys) // CLUSTER)] * CLUSTER) for n, keys in enumerate(lengths)]
    return _first_free(every, CLUSTER)


def in_turn(lengths: Sequence[int]) -> Done:
    """Parts as `decode/split` divides them: block x takes the parts x, x + SMS, ... of all requests."""
    tile, at_least = TILES[D][WARPS_OF], max(1, SMS // len(lengths))
    longest = PART_ELEMENTS[WARPS_OF] // (16 * D)
    parts = []
    for n, keys in enumerate(lengths):
        left = _tiles(keys)
        size = part_tiles(left, tile.warps, longest, at_least)
        while left > 0:
            parts.append((n, min(size, left)))
            left -= size
    return [parts[sm::SMS] for sm in range(SMS)]


def in_stretches(lengths: Sequence[int]) -> Done:
    """Stretches of all keys as `decode/even` divides them, a block on each SM."""
    warps, tiles = TILES[D]["few"].warps, list(map(_tiles, lengths))
    steps = [max(1, -(-own // warps)) for own in tiles]
    done: Done = [[] for _ in range(SMS)]
    for n, parts in enumerate(Division.of(steps, SMS).parts(steps)):
        for sm, first, last in parts:
            done[sm].append((n, min(last * warps, tiles[n]) - first * warps))
    return done


def _tiles(keys: int) -> int:
    return -(-keys // 16)


def _first_free(requests: list[tuple[int, list[int]]], side_by_side: int) -> Done:
    done: Done = [[] for _ in range(SMS)]
    groups = [range(sm, sm + side_by_side) for sm in range(0, SMS, side_by_side)]
    for n, parts in requests:
        group = min(groups, key=lambda each: sum(tiles for _, tiles in done[each[0]]))
        for sm, tiles in zip(group, parts, strict=True):
            done[sm].append((n, tiles))
    return done


def end(done: Done) -> int:
    """When the last SM is done, in tiles."""
    return max(sum(tiles for _, tiles in some) for some in done)


@lettered
def draw_balance(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Four ways to share requests of different lengths among the SMs, in a model."""
    ways = (
        ("a block per request", whole(RAGGED)),
        (f"{CLUSTER} parts of every request, a cluster", in_clusters(RAGGED)),
        ("parts by the request's own length, in turn", in_turn(RAGGED)),
        ("equal stretches of all keys", in_stretches(RAGGED)),
    )
    alone = end(ways[0][1])
    shared = max(end(done) for _, done in ways[1:])
    longest = (alone, *[shared] * (len(ways) - 1))
    frames = tuple(_balance(*way, most) for way, most in zip(ways, longest, strict=True))
    return Figure(f"{len(RAGGED)} requests of {min(RAGGED)} to {max(RAGGED):,} keys on {SMS} SMs: a model",
                  frames, 3)  # fmt: skip


def _balance(name: str, done: Done, longest: int) -> Frame:
    figure = paper(9.4, 5.6)
    axes = figure.add_axes((0.09, 0.12, 0.89, 0.78))
    figure.text(0.012, 0.945, name.capitalize(), fontsize=10.5, fontweight="bold")
    for sm, some in enumerate(done):
        at = 0
        for n, tiles in some:
            axes.broken_barh([(at, tiles)], (sm + 0.08, 0.84), fc=CYCLE[n % len(CYCLE)], ec=INK, lw=0.5)
            if tiles > longest / 40:
                axes.text(at + tiles / 2, sm + 0.54, str(n), ha="center", va="center", fontsize=8)
            at += tiles
    axes.set_xlim(0, longest)
    axes.set_ylim(SMS, 0)
    axes.set_yticks([sm + 0.5 for sm in range(SMS)], [f"SM {sm}" if sm % 4 == 0 else "" for sm in range(SMS)])
    axes.set_xlabel("time in tiles of 16 keys, all else left out; the number is the request")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    last, total = end(done), sum(tiles for some in done for _, tiles in some)
    caption = (
        f"{name.capitalize()}. The last SM is done after {last:,} tiles; with all SMs busy it would be "
        f"{-(-total // SMS):,}. The axis ends at {longest:,}."
    )
    listed = "; ".join(f"SM {sm} {sum(t for _, t in some):,}" for sm, some in enumerate(done))
    return Frame(png(figure), caption, f"{caption} Tiles by SM: {listed}.")
