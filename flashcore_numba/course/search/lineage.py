"""The search itself: children of the best so far, one after the other, and what became of each."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcore_numba.course.search import bench

Mutate = Callable[[list[str], np.random.Generator], list[str]]
Evaluate = Callable[[bench.Candidate, np.random.Generator], str]
LAYERS = ("import", "report", "value", "lives")
"""What stopped a candidate, the cheapest first; the last was stopped by nothing."""
CHILDREN, SEED = 32, 24


@dataclass(frozen=True)
class Hunt:
    """The two functions of a search."""

    mutate: Mutate
    evaluate: Evaluate


@dataclass(frozen=True)
class Tried:
    """A child: its number, that of its parent (-1 is the start), and a key of LAYERS.

    launches: of the simulator, that its evaluation took. barriers: how many times warps came to one at 16
    rows and 32 keys; 0 where that was not counted. better: whether it became the parent of those after it.
    """

    number: int
    parent: int
    lines: tuple[str, ...]
    layer: str
    reason: str
    launches: int
    barriers: int = 0
    better: bool = False


def padded() -> list[str]:
    """Stage 04's region with a barrier in it that closes no hazard: what a search is to find."""
    lines = bench.region_lines()
    (last,) = (n for n, line in enumerate(lines) if "every warp has read the tile" in line)
    indent = lines[last][: len(lines[last]) - len(lines[last].lstrip())]
    return [*lines[: last + 1], f"{indent}cuda.syncthreads()  # once more, to be safe", *lines[last + 1 :]]


def search(
    start: list[str], mutate: Mutate, evaluate: Evaluate, children: int = CHILDREN, seed: int = SEED
) -> list[Tried]:
    """One child after the other; one that lives with fewer barriers than its parent takes the parent's place.

    The same seed gives the same children, whatever machine runs it.
    """
    tried: list[Tried] = []
    best, parent, fewest = start, -1, barriers(start)
    for number in range(children):
        lines = mutate(list(best), np.random.default_rng([seed, number]))
        candidate = bench.of_lines(lines)
        with bench.watched() as log:
            reason = evaluate(candidate, np.random.default_rng([seed, number, 1]))
        layer = layer_of(log, reason)
        count = barriers(lines) if layer == "lives" else 0
        ran = sum(each.loaded for each in log.launches)
        better = 0 < count < fewest
        tried.append(Tried(number, parent, tuple(lines), layer, reason, ran, count, better))
        if better:
            best, parent, fewest = lines, number, count
    return tried


def layer_of(log: bench.Log, reason: str) -> str:
    """What stopped a candidate whose evaluation this is: a key of LAYERS."""
    if not reason:
        return "lives"
    if any(not each.loaded for each in log.launches):
        return "import"
    return "report" if any(each.reports for each in log.launches) else "value"


def barriers(lines: list[str]) -> int:
    """How many times the warps of a block come to a barrier at 16 rows and 32 keys, one warp at a time."""
    return _barriers(tuple(lines))


@functools.cache
def _barriers(lines: tuple[str, ...]) -> int:
    x = bench.draw(np.random.default_rng(0), 1, 16, 32)
    with bench.watched() as log:
        bench.launch(bench.of_lines(list(lines)), x, np.zeros_like(x.q))
    return log.launches[0].barriers


def values_only(candidate: bench.Candidate, rng: np.random.Generator) -> str:
    """An evaluator that compares numbers on one shape and reads no report: why it refuses, or ""."""
    x = bench.draw(rng, 1, 16, 32)
    out = np.full_like(x.q, np.nan)
    bench.launch(candidate, x, out)
    return "" if bench.within(out, x) else "off by more than allowed"
