"""The figures of the lessons, each drawn from what a kernel did on the simulator or on a GPU."""

from collections.abc import Callable
from typing import Any

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.figures import (
    banks,
    budget,
    cluster,
    cuda,
    eight_bits,
    fragments,
    fusing,
    gradients,
    in_flight,
    keys,
    late,
    ledger,
    overlap,
    ownership,
    pages,
    parts,
    ranks,
    roofline,
    round_trip,
    schedules,
    search,
    sectors,
    softmax,
    steps,
    strides,
    swizzle,
    tiles,
    timeline,
    transposed,
    turned,
    turns,
    twin,
    wmma,
)
from flashcore_numba.course.figures.figure import Figure, Frame
from flashcore_numba.stages import Stage
from flashcore_numba.stages.warm_up_transpose import TRANSPOSE

__all__ = ["FIGURES", "Figure", "Frame", "draw", "whose"]

FIGURES: dict[str, Callable[[Any, Stage, str], Figure]] = {
    "ownership": ownership.draw,
    "sectors": sectors.draw,
    "banks": banks.draw,
    "tiles": tiles.draw,
    "timeline": timeline.draw,
    "softmax": softmax.draw,
    "roofline": roofline.draw,
    "fragments": fragments.draw,
    "swizzle": swizzle.draw,
    "parts": parts.draw,
    "schedules": schedules.draw,
    "twin": twin.draw,
    "wmma": wmma.draw,
    "round_trip": round_trip.draw,
    "wavefronts": cuda.draw_wavefronts,
    "barriers": cuda.draw_barriers,
    "memory": cuda.draw_memory,
    "strides": strides.draw,
    "in_flight": in_flight.draw,
    "steps": steps.draw,
    "ledger": ledger.draw,
    "overlap": overlap.draw,
    "cluster": cluster.draw,
    "budget": budget.draw,
    "turned": turned.draw,
    "columns": turned.draw_own,
    "gradients": gradients.draw,
    "traffic": gradients.draw_traffic,
    "orders": gradients.draw_orders,
    "owners": transposed.draw_owners,
    "transposed": transposed.draw,
    "late": late.draw,
    "turns": turns.draw,
    "keys": keys.draw,
    "arrivals": keys.draw_arrivals,
    "pages": pages.draw,
    "read": pages.draw_read,
    "balance": pages.draw_balance,
    "rounding": eight_bits.draw,
    "outliers": eight_bits.draw_outliers,
    "levels": eight_bits.draw_levels,
    "row_of_heads": fusing.draw,
    "timed": fusing.draw_timed,
    "funnel": search.draw_funnel,
    "kills": search.draw_kills,
    "lineages": search.draw_lineages,
    "in_order": ranks.draw_in_order,
    "shares": ranks.draw_shares,
    "side_by_side": ranks.draw_side_by_side,
    "moved": ranks.draw_moved,
    "needed": ranks.draw_needed,
}
"""Name -> function of the lesson, the stage and the words that say whose kernel it is."""


def whose(stage: Stage) -> str:
    """The words for a stage's own kernel: `stage 05`, `stage backward/recompute`."""
    if stage.operation is TRANSPOSE:
        return "the warm-up"
    return f"stage {stage.key if stage.number is None else f'{stage.number:02d}'}"


def draw(lesson: Any, name: str, stage: Stage, whose: str) -> Figure:
    """The figure `name` of the kernel that `stage` launches.

    lesson: its `number` sets what comes first. whose: "your kernel" or "stage 05", part of the title. Raises
    ArgumentError for an unknown name, and what the simulator raises for a kernel that it cannot run (of a
    roofline also for one with problems: its traffic says nothing).
    """
    if name not in FIGURES:
        raise ArgumentError(f"name: there is no figure {name!r}; accepted are {', '.join(FIGURES)}")
    return FIGURES[name](lesson, stage, whose)
