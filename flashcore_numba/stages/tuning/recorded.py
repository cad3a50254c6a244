"""Configurations that were measured to be faster than what a stage's own rule chooses, by problem.

`flashcore tune --table` writes `recorded.json` beside this file from the records of searches; nobody
edits it. An entry is for exactly one problem: what is fastest there can be the slower choice for a neighbour.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from flashcore_numba.core.features import OFF

FILE = Path(__file__).with_suffix(".json")
Found = tuple[tuple[int, ...], str]  # values, and the date of their record


def find(stage: int | str, problem: Any, sm_count: int) -> tuple[int, ...] | None:
    """The values of a configuration in the order of the stage's space; None where the stage's rule counts.

    stage: its number, or `backward/wgmma` where it has none. sm_count: stands for the GPU, since no GPUs of
    two compute capabilities have as many SMs. A problem with features has no entry.
    """
    found = _find(stage, problem, sm_count)
    return None if found is None else found[0]


def since(stage: int | str, problem: Any, sm_count: int) -> str | None:
    """The date of the search whose configuration `find` gives: what was measured of the stage and this
    problem before is of another. None where the rule counts.
    """
    found = _find(stage, problem, sm_count)
    return None if found is None else found[1]


def _find(stage: int | str, problem: Any, sm_count: int) -> Found | None:
    p, taken = problem, _taken(str(stage))
    if not taken or p.features is not OFF:
        return None
    by_element = taken.get((sm_count, p.causal, p.q.shape, p.k.shape, p.v.shape))
    return None if by_element is None else by_element.get(p.element.name)


def forget() -> None:
    """Read the file again when it is asked next."""
    _taken.cache_clear()


@cache
def _taken(stage: str) -> dict[tuple, dict[str, Found]]:
    """The entries of a stage that replace its rule, by what `find` asks for."""
    found: dict[tuple, dict[str, Found]] = {}
    for entry in json.loads(FILE.read_text())["entries"]:
        if str(entry["stage"]) == stage and entry["taken"]:
            batch, heads, kv_heads, seq, head_dim, value_dim = entry["problem"]
            q, k = ((batch, h, seq, head_dim) for h in (heads, kv_heads))
            key = entry["sm_count"], entry["causal"], q, k, (*k[:3], value_dim)
            found.setdefault(key, {})[entry["element"]] = tuple(entry["best"].values()), entry["date"]
    return found
