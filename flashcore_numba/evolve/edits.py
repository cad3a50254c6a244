"""Small edits of a region that nobody has to write."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Proposal:
    """text: the region with the edit."""

    text: str
    operator: str
    sentence: str
    harmless: bool = False


def proposals(text: str, rng: np.random.Generator) -> Iterator[Proposal]:
    """All edits of the region, in random order."""
    found = [*_each_line(text)]
    for i in rng.permutation(len(found)):
        yield found[i]


def _each_line(text: str) -> Iterator[Proposal]:
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        number = i + 1
        if "wait" in line and i + 1 < len(lines):
            moved = [*lines[:i], lines[i + 1], line, *lines[i + 2 :]]
            yield Proposal("".join(moved), "move_wait", f"The wait of line {number} comes one line later.")
        if "__syncthreads()" in line:
            changed = line.replace("__syncthreads()", "__syncwarp()")
            yield Proposal(
                "".join([*lines[:i], changed, *lines[i + 1 :]]),
                "weaken_barrier",
                f"The barrier of line {number} is only the warp's.",
            )
        if "__syncthreads()" in line or "wait" in line:
            yield Proposal(
                "".join([*lines[:i], line, line, *lines[i + 1 :]]),
                "duplicate_wait",
                f"Line {number} is there twice.",
                True,
            )
        for match in re.finditer(r"<(\d)>", line):
            other = f"<{1 - min(1, int(match[1]))}>"
            changed = line[: match.start()] + other + line[match.end() :]
            yield Proposal(
                "".join([*lines[:i], changed, *lines[i + 1 :]]),
                "flip_count",
                f"{match[0]} of line {number} becomes {other}.",
            )
