"""What the lesson says about searching, by running it: one search twice, and the ten cheats."""

import functools
from collections import Counter

import numpy as np

from flashcore_numba.course.search import bench, hunt
from flashcore_numba.course.search.cheats import CHEATS, candidate
from flashcore_numba.course.search.lineage import LAYERS, Tried, barriers, padded, search, values_only

(RACE,) = (cheat for cheat in CHEATS if cheat.name == "race")


@functools.cache
def by_everything() -> tuple[Tried, ...]:
    """The search with the lesson's own operator and evaluator."""
    return tuple(search(padded(), hunt.mutate, hunt.evaluate))


@functools.cache
def by_numbers() -> tuple[Tried, ...]:
    """The same search with an evaluator that compares numbers on one shape and does nothing else."""
    return tuple(search(padded(), hunt.mutate, values_only))


@functools.cache
def wrong(lines: tuple[str, ...]) -> bool:
    """Would the lesson's own evaluator refuse these lines?"""
    return bool(hunt.evaluate(bench.of_lines(list(lines)), np.random.default_rng(0)))


def fewest(tried: tuple[Tried, ...]) -> int:
    """The barriers of the best kernel that a search found."""
    return min((each.barriers for each in tried if each.better), default=barriers(padded()))


@functools.cache
def figures() -> dict[str, int]:
    """Every number by its name.

    children; import, report, value, lives: what became of them; launches of all their evaluations; late:
    children that a later launch than their first one stopped. start: barriers of the kernel that the searches
    begin with; everything, numbers: of the best that each found. accepted: children that live by their
    numbers; accepted_wrong: how many of them are not right. cheats_alive: of the ten, by their numbers on one
    shape; cheats_unseen: those of which no report shows anything there either. lines: of the region that a
    search changes. race_wrong: of 10 runs of the race, those whose numbers are wrong.
    """
    whole, numbers = by_everything(), by_numbers()
    layers = Counter(each.layer for each in whole)
    accepted = [each for each in numbers if each.layer == "lives"]
    rng = np.random.default_rng(0)
    at_ease = [_launched(candidate(each), rng) for each in CHEATS if each.edits]
    return {
        "children": len(whole),
        **{layer: layers[layer] for layer in LAYERS},
        "launches": sum(each.launches for each in whole),
        "start": barriers(padded()),
        "everything": fewest(whole),
        "numbers": fewest(numbers),
        "accepted": len(accepted),
        "accepted_wrong": sum(wrong(each.lines) for each in accepted),
        "cheats_alive": sum(not off for _, off in at_ease),
        "late": sum(each.layer != "lives" and each.launches > 1 for each in whole),
        "cheats_unseen": sum(not any(each) for each in at_ease),
        "lines": len(padded()),
        "race_wrong": sum(_launched(candidate(RACE), rng, 70)[1] for _ in range(10)),
    }


def _launched(of: bench.Candidate, rng: np.random.Generator, keys: int = 32) -> tuple[bool, bool]:
    """Of a launch on one head and 16 rows: is anything reported, and is a number wrong?"""
    x = bench.draw(rng, 1, 16, keys)
    out = np.full_like(x.q, np.nan)
    return bool(bench.launch(of, x, out)), not bench.within(out, x)
