"""The smallest change that makes a wrong answer right, found by experiment.

An answer that is near the solution differs from it in a few places. Versions of the answer in which some of
these places are as in the solution are run on the input that failed; the fewest places that make it right
are where the mistake is. What is told is the place and what part of the statement it is, never the solution.
Where an answer differs, `repair_cuda` and `repair_python` find.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from cuda_reference.files import MachineError
from flashcore_numba.course.exercise import Answer

MOST_TOLD = 3
LONGEST = 90  # characters of a quoted part
ALIKE = 0.5  # how much two statements have in common that are versions of each other
THINGS = ("barrier", "wait", "fence", "commit", "assignment", "call", "loop", "condition", "statement")
CAUSES = (
    *(
        "index",
        "argument",
        "arguments",
        "template argument",
        "value",
        "operator",
        "target",
        "type",
        "function",
    ),
    *("condition", "loop start", "loop bound", "loop step", "statement", "braces", "order", "several places"),
    *(f"{thing} left out" for thing in THINGS),
    *(f"extra {thing}" for thing in THINGS),
)
"""Every cause of a change, or of several."""
KINDS = {
    "part": ("", "With something else there, and the rest as it is"),
    "extra": ("is too much", "Without it, and with the rest as it is"),
    "early": ("comes too early", "Further down, and with the rest as it is"),
    "late": ("comes too late", "Further up, and with the rest as it is"),
    "free": ("runs without a condition", "With one, and the rest as it is"),
}
"""Of a change's kind, unless something is missing: what is wrong, and with what else the answer is right."""
Edit = tuple[int, int, str]  # characters of the region from, to, and what takes their place
Statement = TypeVar("Statement")


@dataclass(frozen=True)
class Change:
    """One place in which an answer differs from the solution.

    kind: "part" of a statement; a statement that is "missing", "extra", too "early" or "late"; "free", one
    that runs without the solution's condition. line: of the answer's module; that before what is missing,
    or the first of the region.
    cause: a few words, the same for each mistake of its kind. shown: what it is, for a sentence.
    """

    kind: str
    line: int
    cause: str
    shown: str
    edits: tuple[Edit, ...]


class Experiments:
    """Runs of other versions of an answer, up to a number of them and some time."""

    def __init__(
        self, answer: Answer, is_right: Callable[[Answer], bool], most: int, seconds: float = math.inf
    ) -> None:
        self.answer, self.is_right = answer, is_right
        self.left, self.end = most, _spent() + seconds

    @property
    def over(self) -> bool:
        """Was one asked for that was too many, or is the time over?"""
        return self.left < 0 or _spent() > self.end

    def rights(self, changes: Sequence[Change]) -> bool:
        """Do these changes make the answer right? Not where the changed one fails, or when it is over."""
        self.left -= 1
        if self.over:
            return False
        try:
            return self.is_right(changed(self.answer, changes))
        except MachineError:
            raise
        except Exception:  # halfway to the solution it need not even compile
            return False


def _spent() -> float:
    """Seconds of processor time of this process and of the compilers that it ran."""
    return sum(os.times()[:4])


def suspected(changes: Sequence[Change], suspect: int | None) -> list[Change]:
    """Of more than two changes, those to try first: up to two in the line `suspect`."""
    return [change for change in changes if change.line == suspect][:2] if len(changes) > 2 else []


def fewest(changes: list[Change], rights: Callable[[Sequence[Change]], bool]) -> list[Change]:
    """Some of the changes, which are right together: none of them can be left out.

    A. Zeller and R. Hildebrandt, Simplifying and isolating failure-inducing input, 2002.
    """
    parts = 2
    while len(changes) > 1:
        size = -(-len(changes) // parts)
        subsets = [changes[n : n + size] for n in range(0, len(changes), size)]
        rests = [[each for each in changes if each not in subset] for subset in subsets]
        smaller = next((some for some in [*subsets, *(rests if parts > 2 else [])] if rights(some)), None)
        if smaller is not None:
            parts = 2 if len(smaller) <= size else max(parts - 1, 2)
            changes = smaller
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(changes))
    return changes


def changed(answer: Answer, changes: Sequence[Change]) -> Answer:
    """The answer with some of its places as in the solution."""
    assert answer.first is not None
    text = "\n".join(answer.lines)
    edits = sorted((edit for change in changes for edit in change.edits), key=lambda edit: edit[0])
    for start, end, new in reversed(edits):  # of those at one place the last goes in first
        text = text[:start] + new + text[end:]
    every = answer.text.splitlines()
    every[answer.first - 1 : answer.last] = text.splitlines()
    return replace(answer, text="\n".join([*every, ""]), last=answer.first + len(text.splitlines()) - 1)


def aligned(
    one: Sequence[Statement], other: Sequence[Statement], alike: Callable[[Statement, Statement], float]
) -> list[tuple[int | None, int | None]]:
    """Pairs of statements that are the same, or versions of each other; None where one has no partner.

    alike: how much two have in common, 0 to 1.
    """
    score = [[alike(a, b) for b in other] for a in one]
    cost = [[0.0] * (len(other) + 1) for _ in range(len(one) + 1)]
    way = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one), -1, -1):
        for j in range(len(other), -1, -1):
            ways = []
            if i < len(one) and j < len(other) and score[i][j] >= ALIKE:
                ways.append((2 * (1 - score[i][j]) + cost[i + 1][j + 1], 0))
            if i < len(one):
                ways.append((1 + cost[i + 1][j], 1))
            if j < len(other):
                ways.append((1 + cost[i][j + 1], 2))
            cost[i][j], way[i][j] = min(ways, default=(0.0, 0))
    pairs: list[tuple[int | None, int | None]] = []
    i = j = 0
    while i < len(one) or j < len(other):
        step = way[i][j]
        pairs.append((i if step != 2 else None, j if step != 1 else None))
        i, j = i + (step != 2), j + (step != 1)
    return pairs


def cause_of(changes: Sequence[Change]) -> str:
    """One of `CAUSES` for all changes together."""
    causes = {change.cause for change in changes}
    return causes.pop() if len(causes) == 1 else "several places"


def told(answer: Answer, changes: Sequence[Change], right: str) -> str:
    """The changes as a sentence or two for the answer's author; `right` says what they lead to."""
    if len(changes) > 1:
        clauses = [_clause(answer, change) for change in changes]
        listed = "; ".join(clauses[:-1]) + f"; and {clauses[-1]}"
        return f"The mistake is in {len(changes)} places: {listed}. With all of them changed, {right}."
    (change,) = changes
    place = answer.place(change.line)
    if change.kind == "missing":
        source = answer.code(change.line)
        where = f" {_side(change)} {place}, `{source}`" if source else ""
        return f"Something is missing{where}: {change.shown}. With it, and the rest as it is, {right}."
    wrong, instead = KINDS[change.kind]
    return f"The mistake is in {place}: {f'{change.shown} {wrong}'.rstrip()}. {instead}, {right}."


def _side(change: Change) -> str:
    """On which side of its line something is missing."""
    return "after" if change.edits[0][0] else "before"


def _clause(answer: Answer, change: Change) -> str:
    place = answer.place(change.line)
    if change.kind == "missing":
        return f"{change.shown}, which is missing {_side(change)} {place}"
    wrong, _ = KINDS[change.kind]
    return f"{place}, {change.shown}" + (f", which {wrong}" if wrong else "")


def quoted(text: str) -> str:
    """A text in one line, cut where it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."
