"""Small edits of a region that nobody has to write: some break it, some must not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Operator:
    """A way to edit a region. harmless: whether the result must be as right as before."""

    name: str
    sentence: str
    harmless: bool


OPERATORS: dict[str, Operator] = {
    each.name: each
    for each in (
        Operator("change_number", "Another value for a number or constant.", False),
        Operator("move_wait", "A wait, barrier or fence one statement up or down.", False),
        Operator("flip_count", "`<0>` becomes `<1>`, or the other way round.", False),
        Operator("weaken_barrier", "`__syncthreads()` becomes `__syncwarp()`.", False),
        Operator("delete_wait", "A wait, barrier or fence is left out.", False),
        Operator("duplicate_wait", "A wait, barrier or fence is there twice.", False),
        Operator("swap_statements", "Two neighbouring statements in the other order.", False),
        Operator("toggle_unroll", "`#pragma unroll` goes, or comes before a loop.", True),
        Operator("rename_local", "A local variable has another name.", True),
        Operator("swap_factors", "`a * 2` becomes `2 * a`.", True),
        Operator("prefix_increment", "`i++` becomes `++i`.", True),
        Operator("add_braces", "A block around a statement.", True),
        Operator("hoist_bound", "The bound of a loop is computed before it.", True),
    )
}
"""By name. What is not meant to be harmless may still be: `evaluate` says."""


@dataclass(frozen=True)
class Proposal:
    """text: the region with the edit. operator: a key of `OPERATORS`. sentence: what became of which line."""

    text: str
    operator: str
    sentence: str
    harmless: bool = False


def proposals(text: str, rng: np.random.Generator) -> Iterator[Proposal]:
    """All edits of a region's lines, CUDA C or Python, each once, in an order that `rng` draws."""
    raise NotImplementedError
    yield
