"""The picture of the house: a floor above the other, a card per room, and its imports as arrows down."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from cuda_reference.extras import explained
from flashcore_numba.report.pictures.rooms import Room, arrows
from flashcore_numba.report.pictures.style import DESCRIPTION, THEMES, WIDTH, Theme, save, written

DRIFT = 0.1  # of a room's lines: a picture that is off by less still shows the house

SQUARE_INCHES = 0.42 / 1000  # of a line of code
ASPECT = 3.4  # width over height of the block that stands for a room's lines
HEADER, PADDING = 0.27, 0.09  # inches: of a card's name, around its block
BETWEEN, STRAIGHT = 0.6, 0.16  # inches: from floor to floor, and of an arrow's end
LEFT, RIGHT, ROOF = 0.45, 9.9, 0.5  # inches: the walls, and how far the roof rises above the attic's cards
LETTER = 0.085  # inches of one at the size of a room's name, on average and generously


def files(folder: Path) -> list[Path]:
    """Where `draw` puts the pictures, light and dark."""
    return [folder / f"house{theme.suffix}.svg" for theme in THEMES]


def stale(house: Sequence[Room], folder: Path) -> list[str]:
    """A sentence for each picture in `folder` that is missing or shows another house.

    Rooms and imports must be the same; lines may be off by `DRIFT`. Of no rooms there is no picture.
    """
    found = []
    for path in files(folder) if house else []:
        if not path.is_file():
            found.append(f"{path}: the picture is missing")
        elif wrong := _difference(_shown(path), house):
            found.append(f"{path}: {wrong}")
    return found


@explained()
def draw(house: Sequence[Room], folder: Path) -> list[Path]:
    """Write house.svg and house-dark.svg; the same house and library versions give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {DESCRIPTION: json.dumps([asdict(room) for room in house])}
    for theme, path in zip(THEMES, files(folder), strict=True):
        save(path, lambda theme: _painted(house, theme), theme, told)
    return files(folder)


def _shown(path: Path) -> list[Room]:
    """The house that a picture shows; none for a foreign file."""
    try:
        return [Room(**room) for room in json.loads(written(path).get(DESCRIPTION, ""))]
    except (ValueError, TypeError):
        return []


def _difference(shown: Sequence[Room], house: Sequence[Room]) -> str | None:
    def plan(rooms: Sequence[Room]) -> dict[str, tuple[int, tuple[str, ...]]]:
        return {room.name: (room.floor, tuple(room.imports)) for room in rooms}

    before, now = plan(shown), plan(house)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            return (
                f"the picture shows another {name}: floor and imports {before.get(name)}, now {now.get(name)}"
            )
    for old, new in zip(shown, house, strict=True):
        if abs(old.lines - new.lines) > DRIFT * new.lines:
            return f"the picture shows {old.lines} lines of {new.name}, now {new.lines}"
    return None


class _Place(NamedTuple):
    """Of a room's card, or of an arrow on its way past a floor (no room), in inches; `top` is the floor's."""

    room: Room | None
    left: float
    bottom: float
    width: float
    height: float
    top: float

    @property
    def middle(self) -> float:
        return self.left + self.width / 2


def _size(room: Room | None) -> tuple[float, float]:
    if room is None:
        return 0.1, 0.0
    width, height = _block(room)
    header = LETTER * (len(room.name) + len(_thousands(room)) + 3)
    return max(width, header) + 2 * PADDING, height + HEADER + PADDING


def _thousands(room: Room) -> str:
    return f"{room.lines / 1000:.1f}k"


def _block(room: Room) -> tuple[float, float]:
    area = room.lines * SQUARE_INCHES
    return math.sqrt(area * ASPECT), math.sqrt(area / ASPECT)


def _levels(house: Sequence[Room]) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """The names on each floor from left to right, and the parts of the arrows from floor to floor.

    An arrow that passes floors has a name on each, `run>simulator>2`. The order is the one with the fewest
    crossings that sweeps up and down find, each choosing among all orders of one floor.
    """
    floor = {room.name: room.floor for room in house}
    levels: list[list[str]] = [[] for _ in range(max(floor.values()) + 1)]
    for name, level in floor.items():
        levels[level].append(name)
    steps = []
    for upper, lower in arrows(house):
        way = [upper, *(f"{upper}>{lower}>{k}" for k in range(floor[upper] - 1, floor[lower], -1)), lower]
        for name, level in zip(way[1:-1], range(floor[upper] - 1, floor[lower], -1), strict=True):
            levels[level].append(name)
        steps += list(itertools.pairwise(way))

    def cost() -> tuple[int, float]:
        at = {name: (k + 0.5) / len(names) for names in levels for k, name in enumerate(names)}
        level = {name: k for k, names in enumerate(levels) for name in names}
        crossings = sum(
            (at[a] - at[c]) * (at[b] - at[d]) < 0
            for (a, b), (c, d) in itertools.combinations(steps, 2)
            if level[a] == level[c]
        )
        return crossings, round(sum(abs(at[a] - at[b]) for a, b in steps), 6)

    for k in [*range(len(levels)), *reversed(range(len(levels)))] * 2:
        tried = []
        for order in itertools.permutations(sorted(levels[k])):
            levels[k] = list(order)
            tried.append((cost(), order))
        levels[k] = list(min(tried)[1])
    return levels, steps


def _places(house: Sequence[Room], levels: Sequence[Sequence[str]]) -> dict[str, _Place]:
    """Each floor's cards, spread over the width, on one line."""
    by_name = {room.name: room for room in house}
    found, bottom = {}, PADDING
    for names in levels:
        sizes = [_size(by_name.get(name)) for name in names]
        top = bottom + max(height for _, height in sizes)
        gap = (RIGHT - LEFT - sum(width for width, _ in sizes)) / (len(names) + 1)
        left = LEFT + gap
        for name, (width, height) in zip(names, sizes, strict=True):
            found[name] = _Place(by_name.get(name), left, bottom, width, height, top)
            left += width + gap
        bottom = top + BETWEEN
    return found


def _painted(house: Sequence[Room], theme: Theme) -> Any:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    levels, steps = _levels(house)
    places = _places(house, levels)
    attic = places[levels[-1][0]]
    height = attic.top + ROOF + PADDING
    figure = FigureCanvasSVG(Figure(figsize=(WIDTH, height))).figure
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, height))
    axes.axis("off")
    lines: Any = {"color": theme.grid, "linewidth": 1.5, "zorder": 0, "solid_capstyle": "round"}
    for level, names in enumerate(levels):
        ground = places[names[0]].bottom
        axes.plot((LEFT, RIGHT), (ground, ground), **lines)
        axes.text(LEFT - 0.12, ground, str(level), color=theme.muted, fontsize=9, ha="right")
    for wall in (LEFT, RIGHT):
        roof = (LEFT + RIGHT) / 2, attic.top + ROOF
        axes.plot((wall, wall, roof[0]), (PADDING, attic.bottom, roof[1]), **lines)
    _paint_arrows(axes, places, steps, theme)
    for place in places.values():
        if place.room:
            _paint_room(axes, place, place.room, theme)
    return figure


def _paint_room(axes: Any, place: _Place, room: Room, theme: Theme) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    corner = "round,pad=0,rounding_size=0.06"
    card = (place.left, place.bottom), place.width, place.height
    axes.add_patch(
        FancyBboxPatch(*card, boxstyle=corner, facecolor=theme.background, edgecolor=theme.muted, zorder=2)
    )
    top = place.bottom + place.height - HEADER / 2
    axes.text(place.left + PADDING, top, room.name, va="center", fontsize=10.5, fontweight="bold", zorder=3)
    axes.text(
        place.left + place.width - PADDING,
        top,
        _thousands(room),
        va="center",
        ha="right",
        fontsize=9,
        color=theme.muted,
        zorder=3,
    )
    width, height = _block(room)
    left = place.left + PADDING
    for part, lines in sorted(room.parts.items(), key=lambda item: (-item[1], item[0])):
        share = width * lines / room.lines
        axes.add_patch(
            Rectangle(
                (left, place.bottom + PADDING),
                share,
                height,
                facecolor=theme.card,
                edgecolor=theme.background,
                linewidth=1,
                zorder=3,
            )
        )
        needs = 0.075 * len(part) + 0.06
        if part and max(share, height) > needs and min(share, height) > 0.14:
            axes.text(
                left + share / 2,
                place.bottom + PADDING + height / 2,
                part,
                ha="center",
                va="center",
                rotation=0 if share > needs else 90,
                fontsize=8.5,
                zorder=4,
            )
        left += share


def _paint_arrows(
    axes: Any, places: Mapping[str, _Place], steps: Sequence[tuple[str, str]], theme: Theme
) -> None:
    """From the lower edge of a card to the upper edge of the next; ends on one edge stand side by side."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Way

    def ends(mine: int) -> dict[tuple[str, str], float]:
        found = {}
        for name, place in places.items():
            here = sorted((s for s in steps if s[mine] == name), key=lambda s: places[s[1 - mine]].middle)
            for k, step in enumerate(here):
                found[step] = place.left + place.width * (k + 1) / (len(here) + 1)
        return found

    starts, targets = ends(0), ends(1)
    for step in steps:
        upper, lower = places[step[0]], places[step[1]]
        # It has turned down before it comes to the floor, so that it passes beside higher cards.
        a, b = (starts[step], upper.bottom), (targets[step], lower.top + STRAIGHT)
        end = lower.bottom + lower.height
        middle = (a[1] + b[1]) / 2
        points = [a, (a[0], middle), (b[0], middle), b, (b[0], end if lower.room else lower.bottom)]
        axes.add_patch(
            FancyArrowPatch(
                path=Way(points, [Way.MOVETO, *[Way.CURVE4] * 3, Way.LINETO]),
                arrowstyle="-|>,head_length=5,head_width=2.5" if lower.room else "-",
                color=theme.muted,
                linewidth=1.1,
                shrinkA=0,
                shrinkB=0,
                zorder=1,
            )
        )
