"""Two warpgroups of the backward pass in time: dQ multiplied in its own tile, or one tile late."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flashcore_numba.course.figures.canvas import BLUE, INK, ORANGE, SKY, YELLOW, lettered, paper, png
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage

# A tile of 64 keys and 128 queries, D = 64, in clocks of an SM: a product at 4096 FLOP per clock, its
# exponentials at 16 per clock, and dS, four instructions per element, at 128 lanes per clock.
PRODUCT, EXPONENTIALS, DS, ADDS = 256, 512, 256, 64
GROUPS, SHOWN = 2, 5600  # warpgroups that multiply, clocks of a frame
Step = tuple[str, str, float]  # what: work, issue, wait, meet; its name; its clocks


@dataclass(frozen=True)
class Span:
    """What a warpgroup (as group 2 the tensor cores) does from `start` to `stop`: a name, and its tile."""

    ""

    group: int
    what: str
    tile: int
    start: float
    stop: float


def program(late: bool, tiles: int) -> Iterator[tuple[int, Step]]:
    """What a warpgroup does, with the tile that each step is about. S of tile 0 is there at the start."""
    for tile in range(tiles):
        yield tile, ("work", "exp", EXPONENTIALS)
        if late and tile > 0:
            yield tile - 1, ("wait", "dQ", 0)
            yield tile - 1, ("work", "add", ADDS)
        yield tile, ("issue", "dP", PRODUCT)
        yield tile, ("wait", "dP", 0)
        yield tile, ("work", "dS", DS)
        if not late:
            yield tile, ("meet", "dS", 0)
        for name in ("dV", "dK"):
            yield tile, ("issue", name, PRODUCT)
        yield tile + 1, ("issue", "S", PRODUCT)
        yield tile, ("wait", "dK", 0)
        if late:
            yield tile, ("other", "dS", 0)
        yield tile, ("issue", "dQ", PRODUCT)
        yield tile + 1, ("wait", "S", 0)
        if not late:
            yield tile, ("wait", "dQ", 0)
            yield tile, ("work", "add", ADDS)


def spans(late: bool, tiles: int = 8) -> list[Span]:
    """Two warpgroups that begin together. They share the SM's ordinary lanes evenly; the tensor cores take
    products in the order in which they are issued.
    """
    programs = [list(program(late, tiles)) for _ in range(GROUPS)]
    at, left, begun = [0] * GROUPS, [0.0] * GROUPS, [0.0] * GROUPS
    queue: list[tuple[int, str, int, float]] = []
    done, stored, found = {(g, "S", 0) for g in range(GROUPS)}, set(), []
    now, busy_until = 0.0, 0.0

    def step(g: int) -> tuple[int, Step] | None:
        return programs[g][at[g]] if at[g] < len(programs[g]) else None

    def ready(g: int) -> bool:
        """Does the warpgroup pass its step without time going by?"""
        if (current := step(g)) is None:
            return False
        tile, (what, name, _) = current
        other = step(1 - g)
        if what == "meet":
            return (1 - g, tile) in stored or (other is not None and other[1][0] == "meet")
        if what == "wait":
            return (g, name, tile) in done
        return what == "issue" or (what == "other" and (1 - g, tile) in stored)

    while any(step(g) for g in range(GROUPS)):
        moved = False
        for g in range(GROUPS):
            while ready(g):
                tile, (what, name, clocks) = programs[g][at[g]]
                if what == "issue":
                    queue.append((g, name, tile, clocks))
                elif what == "meet":
                    stored.add((g, tile))
                at[g], moved = at[g] + 1, True
        while queue and busy_until <= now:
            g, name, tile, clocks = queue.pop(0)
            busy_until = now + clocks
            found.append(Span(GROUPS, name, tile, now, busy_until))
            found.append(Span(GROUPS + 1 + g, name, tile, now, busy_until))
        working = [g for g in range(GROUPS) if (s := step(g)) is not None and s[1][0] == "work"]
        for g in working:
            if left[g] == 0:
                left[g], begun[g] = programs[g][at[g]][1][2], now
        ends = [now + left[g] * len(working) for g in working]
        ends += [busy_until] if busy_until > now else []
        if not ends:
            if moved:
                continue
            break
        step_to = min(ends)
        for g in working:
            left[g] -= (step_to - now) / len(working)
        now = step_to
        for g in working:
            if left[g] < 1e-6:
                tile, (_, name, _) = programs[g][at[g]]
                found.append(Span(g, name, tile, begun[g], now))
                stored |= {(g, tile)} if name == "dS" and late else set()
                left[g], at[g] = 0.0, at[g] + 1
        done |= {(s.group - GROUPS - 1, s.what, s.tile) for s in found if s.group > GROUPS and s.stop <= now}
    return found


def period(found: list[Span]) -> float:
    """Clocks from tile to tile of a warpgroup, when it has settled."""
    stops = [s.stop for s in found if s.group == 0 and s.what == "dS"]
    return (stops[-1] - stops[-4]) / 3


def busy(found: list[Span]) -> float:
    """The share of the settled time in which the tensor cores multiply."""
    return GROUPS * 5 * PRODUCT / period(found)


@lettered
def draw(lesson: Any, stage: Stage, whose: str) -> Figure:
    """The two orders of the same work."""
    frames = (
        _frame("dQ in its own tile: both warpgroups meet before it", spans(False)),
        _frame("dQ one tile late", spans(True)),
    )
    return Figure("Two warpgroups in time, tiles of 64 keys and 128 queries each, D = 64", frames, 1)


def _frame(title: str, found: list[Span]) -> Frame:
    figure = paper(9.4, 3.6)
    axes = figure.add_axes((0.13, 0.15, 0.85, 0.7))
    figure.text(0.012, 0.925, title, fontsize=10.5, fontweight="bold")
    colours = {"exp": ORANGE, "dS": YELLOW, "add": "#009E73"}
    for span in found:
        if span.start >= SHOWN or span.group > GROUPS:
            continue
        width = min(span.stop, SHOWN) - span.start
        colour = colours.get(span.what, SKY if span.tile % 2 else BLUE)
        axes.broken_barh([(span.start, width)], (span.group + 0.12, 0.76), fc=colour, ec=INK, lw=0.6)
        if width > 150:
            ink = "white" if colour == BLUE else "black"
            text = f"{span.what}\n{span.tile}"
            axes.text(span.start + width / 2, span.group + 0.5, text, ha="center", va="center", color=ink,
                      fontsize=7.5, linespacing=1.0)  # fmt: skip
    axes.set_xlim(0, SHOWN)
    axes.set_ylim(GROUPS + 1, 0)
    axes.set_yticks([g + 0.5 for g in range(GROUPS + 1)], ["warpgroup 1", "warpgroup 2", "tensor cores"])
    axes.set_xlabel("clocks; the number is the tile; green: dQ is added; blank: waits")
    axes.tick_params(length=0)
    axes.spines[["top", "right"]].set_visible(False)
    caption = (
        f"{title}. In the model both warpgroups end a tile every {period(found):,.0f} clocks, and the tensor "
        f"cores are busy for {busy(found):.0%} of the time."
    )
    listed = "; ".join(
        f"warpgroup {s.group + 1} {s.what} {s.tile} from {s.start:,.0f} to {s.stop:,.0f}"
        for s in sorted(found, key=lambda each: each.start)
        if s.group < GROUPS and s.start < SHOWN / 2
    )
    return Frame(png(figure), caption, f"{caption} {listed}.")
