"""Choosing stages of the ladder by number, name or range."""

import re
from collections.abc import Sequence

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.stages.ladder import LADDER
from flashcore_numba.stages.stage import Stage


def find(selector: "int | str | Stage", also: str = "") -> Stage:
    """The stage with this number (5, "5", "05"), name ("online_softmax") or label ("05 online_softmax").

    A `Stage` comes back as it is, so a stage outside the ladder can be used too. Raises ArgumentError, which
    lists the ladder, and after it `also`, when there is none.
    """
    if isinstance(selector, Stage):
        return selector
    if isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        wanted = [stage for stage in LADDER if stage.number == int(selector)]
    elif isinstance(selector, str):
        text = selector.strip()
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else None
        wanted = [stage for stage in LADDER if stage.number == number or text in (stage.name, stage.label)]
    else:
        wanted = []
    if not wanted:
        raise ArgumentError(f"stage {shown(selector)} is not in the ladder: accepted are {_listed()}{also}")
    return wanted[0]


def find_in(ladder: Sequence[Stage], selector: object, operation: str, described: str) -> Stage:
    """The stage of a branch's ladder with this key or name; a `Stage` of the operation comes back as it is.

    described: the operation in messages, "the backward pass". Raises ArgumentError, which lists the ladder.
    """
    for stage in ladder:
        if selector is stage or (isinstance(selector, str) and selector in (stage.key, stage.name)):
            return stage
    own = selector.operation if isinstance(selector, Stage) else None
    if isinstance(selector, Stage) and own is not None and own.name == operation:
        return selector
    keys = ", ".join(stage.key for stage in ladder)
    raise ArgumentError(f"stage {shown(selector)} is not in the ladder of {described}: accepted are {keys}")


def select(*selectors: "int | str | Stage", also: str = "") -> list[Stage]:
    """The stages that any selector names, in the order of the ladder; no selector means the whole ladder.

    Stages that are not of the ladder come after it.
    A selector is what `find` takes, or a range of numbers such as "2-5". Raises ArgumentError; see `find`.
    """
    if not selectors:
        return list(LADDER)
    chosen: dict[str, Stage] = {}
    for selector in selectors:
        ends = re.fullmatch(r"\s*([0-9]+)\s*-\s*([0-9]+)\s*", selector) if isinstance(selector, str) else None
        if ends is None:
            stages = [find(selector, also)]
        else:
            first, last = (LADDER.index(find(end, also)) for end in ends.groups())
            if first > last:
                low, high = LADDER[last].number, LADDER[first].number
                raise ArgumentError(f"stage range {shown(selector)} runs backwards: write {low}-{high}")
            stages = list(LADDER[first : last + 1])
        chosen.update((stage.key, stage) for stage in stages)
    places = {stage.key: place for place, stage in enumerate(LADDER)}
    return sorted(chosen.values(), key=lambda stage: places.get(stage.key, len(places)))


def _listed() -> str:
    return ", ".join(stage.label for stage in LADDER)
