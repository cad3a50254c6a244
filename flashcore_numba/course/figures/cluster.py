"""Which block of a cluster sends what to which: stage 16, from the stores that the executor counted."""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from flashcore_numba.checks.mutation import Edit, Mutant, loaded
from flashcore_numba.course import launches, memory_map
from flashcore_numba.course.figures.canvas import CYCLE, INK, lettered, paper, png, several
from flashcore_numba.course.figures.cuda import launched
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage
from flashcore_numba.stages.find import find

SHAPE, VARIANT, KERNEL = "1x1x64x64", "two_blocks", "stage16_cluster_split.cu"  # one cluster
KEYS, COLUMNS, WARPGROUPS = 128, 64, 2
BOXES = [(block, warpgroup) for block in (0, 1) for warpgroup in range(WARPGROUPS)]
STATE, SHARE = "m and l", "O"


@dataclass(frozen=True)
class Message:
    """What one block of a cluster sends to another: how many stores, and their bytes in all."""

    what: str  # STATE or SHARE
    sender: int
    receiver: int
    stores: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"block {self.sender} to block {self.receiver}: {self.what}, "
            f"{several(self.stores, 'store')} of {self.bytes // max(1, self.stores)} bytes, "
            f"{self.bytes:,} bytes"
        )


def sent(stage: Stage) -> list[Message]:
    """The messages of one cluster. What goes to `share_smem` is O, everything else m and l."""
    sums: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for launch in launched(stage, SHAPE, VARIANT):
        for row in launch.lines():
            if row.space != "cluster":
                continue
            sender, receiver = (int(word) for word in row.array.split() if word.isdigit())
            total = sums[SHARE if "share_smem" in row.text else STATE, sender, receiver]
            total[0] += row.requests
            total[1] += row.bytes_requested
    return [Message(*key, *sums[key]) for key in sorted(sums)]


def messages() -> list[str]:
    """What the blocks of stage 16 send each other, a line a message."""
    return [str(message) for message in sorted(sent(find(16)), key=lambda m: m.what != STATE)]


def reports(old: str, new: str) -> list[str]:
    """What the executor says of stage 16 with `new` in the place of `old`: kind and words of each problem."""
    with loaded(Mutant(16, "edited", "", (Edit(old, new, KERNEL),))) as stage:
        found = launched(stage, SHAPE, VARIANT)
    return [f"{problem.kind}: {_named(problem.text)}" for launch in found for problem in launch.problems]


def _named(text: str) -> str:
    """A report with the parts of shared memory by name."""
    launch = launches.recorded(find(16), VARIANT, SHAPE).launches[0]
    parts = memory_map.dynamic_parts(launch.kernel, shared_bytes=launch.shared_bytes)

    def name(match: re.Match) -> str:
        part = memory_map.part_at(parts, int(match[1]))
        return match[0] if part is None else f"`{part.name}`"

    return re.sub(r"\bshared memory at byte (\d+)", name, text)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """Keys, words, sums and columns of a cluster."""
    two = sent(stage)
    frames = (_keys(), _words(two), _sums(two), _columns())
    return Figure(f"What the blocks of a cluster tell each other: {whose}", frames, 2)


def _colour(block: int, warpgroup: int) -> str:
    return CYCLE[_part(block, warpgroup)]


def _part(block: int, warpgroup: int) -> int:
    return warpgroup * 2 + block


def _cluster(height: float = 4.2) -> tuple[Any, Any]:
    """Two blocks of two warpgroups each; a warpgroup is a box of 26 x 15 units."""
    figure = paper(9.4, height)
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 56)
    for block in (0, 1):
        x = _x(block)
        axes.add_patch(_box(x - 3, 2, 32, 42, "white"))
        axes.text(x + 13, 46, f"block {block}, rows 0 to 63", ha="center", fontweight="bold")
        for warpgroup in range(WARPGROUPS):
            axes.add_patch(_box(x, _y(warpgroup), 26, 15, _colour(block, warpgroup)))
    return figure, axes


def _x(block: int) -> float:
    return 5 + 64 * block


def _y(warpgroup: int) -> float:
    return 26 - 21 * warpgroup


def _in_box(axes: Any, block: int, warpgroup: int, text: str) -> None:
    axes.text(_x(block) + 13, _y(warpgroup) + 7.5, text, ha="center", va="center", linespacing=1.35)


def _arrow(axes: Any, start: tuple[float, float], stop: tuple[float, float], text: str, at: Any) -> None:
    from matplotlib.patches import FancyArrowPatch

    arrow = FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=16, lw=1.6, color=INK)
    axes.add_patch(arrow)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
    axes.text(*at, text, ha="center", va="center", fontsize=8.8, bbox=box, linespacing=1.25)


def _within(axes: Any, text: str) -> None:
    """A double arrow between the two warpgroups of each block."""
    for block in (0, 1):
        x = _x(block) + 5
        _arrow(axes, (x, 26), (x, 20), "", (x, 23))
        _arrow(axes, (x + 2, 20), (x + 2, 26), text if not block else "", (x + 14, 23))
        if block:
            axes.text(x + 14, 23, text, ha="center", va="center", fontsize=8.8)


def _across(axes: Any, two: list[Message], what: str) -> str:
    """The arrows between the blocks, with what was counted; the same in words."""
    found = {(m.sender, m.receiver): m for m in two if m.what == what}
    said = []
    for sender, y in ((0, 34), (1, 14)):
        message = found.get((sender, 1 - sender))
        text = f"{several(message.stores, 'store')}\n{message.bytes:,} bytes" if message else "nothing"
        start, stop = (34.5, 65.5) if sender == 0 else (65.5, 34.5)
        _arrow(axes, (start, y), (stop, y), text, (50, y + 4.6))
        said.append(str(message) if message else f"block {sender} to block {1 - sender}: nothing")
    for sender, receiver in sorted(set(found) - {(0, 1), (1, 0)}):
        said.append(str(found[sender, receiver]))
    return "; ".join(said)


def _keys() -> Frame:
    figure, axes = _cluster()
    for block, warpgroup in BOXES:
        first = _part(block, warpgroup) * KEYS
        words = f"warpgroup {warpgroup}\nkeys {first} to {first + KEYS - 1}"
        _in_box(axes, block, warpgroup, words)
    for part in range(4):
        axes.add_patch(_box(5 + 22.5 * part, 50.5, 22.5, 4.5, CYCLE[part]))
        axes.text(16 + 22.5 * part, 52.7, f"tile {part}", ha="center", va="center")
    caption = (
        "512 keys are four tiles of 128, dealt across the blocks first. Each of the four parts has all 64 "
        "rows, and one turn."
    )
    alt = "Tile 0 is warpgroup 0 of block 0, tile 1 warpgroup 0 of block 1, tile 2 warpgroup 1 of block 0, "
    return Frame(png(figure), caption, f"{caption} {alt}tile 3 warpgroup 1 of block 1.")


def _words(two: list[Message]) -> Frame:
    figure, axes = _cluster()
    for block, warpgroup in BOXES:
        _in_box(axes, block, warpgroup, f"m, l of part {_part(block, warpgroup)}")
    _within(axes, "1. m, l by shared memory")
    counted = _across(axes, two, STATE)
    axes.text(50, 46, "2. m, l of the block's\ntwo parts", ha="center", va="center", fontsize=8.8)
    caption = (
        "Under the last P V: first the two warps with the same rows tell each other m and l, then each tells "
        f"the warps of the other block. Counted: {counted}."
    )
    return Frame(png(figure), caption, caption)


def _sums(two: list[Message]) -> Frame:
    figure, axes = _cluster()
    for block, warpgroup in BOXES:
        half = warpgroup * COLUMNS // 2
        words = f"sum of its block's two O,\ncolumns {half} to {half + COLUMNS // 2 - 1}"
        _in_box(axes, block, warpgroup, words)
    _within(axes, "3. half of the columns")
    counted = _across(axes, two, SHARE)
    axes.text(50, 46, "4. half of the sums", ha="center", va="center", fontsize=8.8)
    caption = (
        "When P V has ended: each warpgroup gives half of its columns, scaled, to the other one and adds up "
        f"what it keeps. Of these sums half goes to the other block. Counted: {counted}."
    )
    return Frame(png(figure), caption, caption)


def _columns() -> Frame:
    figure, axes = _cluster()
    each, said = COLUMNS // 4, []
    for block, warpgroup in BOXES:
        first = warpgroup * COLUMNS // 2 + block * each
        _in_box(axes, block, warpgroup, f"stores columns\n{first} to {first + each - 1}")
        x = 5 + 90 * first / COLUMNS
        axes.add_patch(_box(x, 50.5, 90 * each / COLUMNS, 4.5, _colour(block, warpgroup)))
        axes.text(x + 45 * each / COLUMNS, 52.7, f"{first} to {first + each - 1}", ha="center",
                  va="center")  # fmt: skip
        said.append(f"block {block}, warpgroup {warpgroup}: columns {first} to {first + each - 1}")
    caption = "In the end each part has 16 of the 64 columns, of all 64 rows: everybody stores a quarter."
    return Frame(png(figure), caption, f"{caption} {'; '.join(said)}.")


def _box(x: float, y: float, width: float, height: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor=INK, linewidth=0.8)
