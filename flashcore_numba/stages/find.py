"""Choosing stages of the ladder by number, name or range."""

import re

import numpy as np

from cuda_reference.shown import shown

from ..problem import ArgumentError
from .stage import Stage

__all__ = ["find", "select"]


def find(selector: "int | str | Stage") -> Stage:
    """The stage with this number (5, "5", "05"), name ("online_softmax") or label ("05 online_softmax").

    A `Stage` comes back as it is, so a stage outside the ladder can be used too. Raises ArgumentError, which
    lists the ladder, when there is none.
    """
    if isinstance(selector, Stage):
        return selector
    ladder = _ladder()
    if isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        wanted = [stage for stage in ladder if stage.number == int(selector)]
    elif isinstance(selector, str):
        text = selector.strip()
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else None
        wanted = [stage for stage in ladder if stage.number == number or text in (stage.name, stage.label)]
    else:
        wanted = []
    if not wanted:
        raise ArgumentError(f"stage {shown(selector)} is not in the ladder: accepted are {_listed(ladder)}")
    return wanted[0]


def select(*selectors: "int | str | Stage") -> list[Stage]:
    """The stages that any selector names, in the order of the ladder; no selector means all of them.

    A selector is what `find` takes, or a range of numbers such as "2-5". Raises ArgumentError.
    """
    if not selectors:
        return list(_ladder())
    chosen: dict[int, Stage] = {}
    for selector in selectors:
        ends = re.fullmatch(r"\s*([0-9]+)\s*-\s*([0-9]+)\s*", selector) if isinstance(selector, str) else None
        if ends is None:
            stages = [find(selector)]
        else:
            first, last = find(ends[1]).number, find(ends[2]).number
            if first > last:
                raise ArgumentError(f"stage range {shown(selector)} runs backwards: write {last}-{first}")
            stages = [stage for stage in _ladder() if first <= stage.number <= last]
        chosen.update((stage.number, stage) for stage in stages)
    return [chosen[number] for number in sorted(chosen)]


def _ladder() -> tuple[Stage, ...]:
    from . import LADDER  # here, because the package imports this module before its list is complete

    return LADDER


def _listed(ladder: tuple[Stage, ...]) -> str:
    return ", ".join(stage.label for stage in ladder)
