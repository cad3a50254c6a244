"""The record of a search: every candidate with its parent, what proposed it and what the judge said of it."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.spec import Key
from flashcore_numba.records import environment, layout

FILE = "evolution.json"
SAME = ("lesson", "proposer", "seed", "islands", "start")
"""What a search that goes on has in common with its record."""


@dataclass(frozen=True)
class Candidate:
    """A proposal and its verdict.

    number: 0 is the start, the others count proposals. parent: the candidate that was changed, None for the
    start. island: where it was proposed. idea: the island's, a name of `ideas.IDEAS`. operator: what made it;
    says: in a sentence. region: its lines, "" where the reply had none that could be used. layer: what
    rejected it, "" when valid. line: of the region, counted from 1. basis: what fitness is made of, in words.
    seed: of the judge's random inputs.
    """

    number: int
    parent: int | None
    island: int
    idea: str
    operator: str
    says: str
    region: str
    valid: bool
    layer: str = ""
    message: str = ""
    line: int | None = None
    advice: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)
    cubin: Mapping[str, Any] | None = None
    fitness: float = 0.0
    basis: str = ""
    reply: str = ""
    seconds: float = 0.0
    times: Mapping[str, Any] | None = None
    seed: int | None = None


@dataclass
class Record:
    """A search: what was asked for, and its candidates in the order in which they were judged."""

    lesson: Key
    proposer: str
    seed: int
    islands: int
    start: str
    date: str
    commit: str
    dirty: bool | None
    packages: Mapping[str, str]
    candidates: list[Candidate] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def new(lesson: Key, proposer: str, seed: int, islands: int, start: str) -> Record:
    """A record without candidates. start: the lines of the region from which the search begins."""
    commit, dirty = environment.commit()
    packages = environment.packages()
    return Record(lesson, proposer, seed, islands, start, environment.today(), commit, dirty, packages)


def load(folder: Path) -> Record:
    """The record in a folder. Raises ArgumentError where there is none, or one that is not whole."""
    path = folder / FILE
    try:
        data = json.loads(path.read_text())
        record = Record(**data | {"candidates": [Candidate(**each) for each in data["candidates"]]})
    except OSError as error:
        raise ArgumentError(f"{str(path)!r}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        record = None
    if record is None or not _is_whole(record):
        raise ArgumentError(f"{str(path)!r} is no record that flashcore evolve wrote")
    return record


def _is_whole(record: Record) -> bool:
    """Whether all members are of their types, and every candidate but a valid start has one before it for its
    parent.
    """
    if not record.candidates or not all(_has_types(each) for each in (record, *record.candidates)):
        return False
    start, *others = record.candidates
    known = [(start.number, start.parent, start.valid) == (0, None, True)]
    known += [
        each.number == n and each.parent is not None and 0 <= each.parent < n
        for n, each in enumerate(others, 1)
    ]
    return all(known)


def _has_types(made: object) -> bool:
    hints = get_type_hints(type(made))
    return all(_is_of(hints[name], value) for name, value in vars(made).items())


def _is_of(hint: Any, value: Any) -> bool:
    """Whether a value of JSON is of an annotated type: a whole number may be a float, a bool is no number."""
    kinds = [get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else [hint])]
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else tuple(kinds))


def resumed(folder: Path, fresh: Record) -> Record:
    """The record in the folder to be gone on with, or `fresh`. Raises ArgumentError for another search."""
    if not (folder / FILE).exists():
        return fresh
    record = load(folder)
    for name in SAME:
        kept, asked = getattr(record, name), getattr(fresh, name)
        if kept != asked:
            shown = "" if name == "start" else f" is {kept!r}, this one's {asked!r}"
            raise ArgumentError(
                f"{str(folder)!r} holds another search: its {name}{shown or ' is another'}; "
                "choose another folder"
            )
    return record


def save(folder: Path | None, record: Record) -> None:
    """Write it whole, in place of what was there; nothing without a folder."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        layout.save(record.as_dict(), folder / FILE, "candidates")


def elite(candidates: Sequence[Candidate], wanted: int) -> list[Candidate]:
    """The best of the valid ones, each region once, the earlier of two that are equally fit first."""
    seen: dict[str, Candidate] = {}
    for each in sorted((c for c in candidates if c.valid), key=lambda c: (-c.fitness, c.number)):
        seen.setdefault(each.region, each)
    return list(seen.values())[:wanted]


def tree(candidates: Sequence[Candidate]) -> Iterator[tuple[int, Candidate]]:
    """Every candidate below its parent, with its depth, children in the order in which they were judged."""
    children: dict[int | None, list[Candidate]] = {}
    for each in candidates:
        children.setdefault(each.parent, []).append(each)

    def below(parent: int | None, depth: int) -> Iterator[tuple[int, Candidate]]:
        for each in children.get(parent, []):
            yield depth, each
            yield from below(each.number, depth + 1)

    return below(None, 0)


def by_operator(candidates: Sequence[Candidate]) -> list[tuple[str, int, int, int, str]]:
    """For each operator: how many it proposed, how many were valid, how many were fitter than their parent,
    and the layers that rejected the others, with counts. The most used one first.
    """
    fitness = {each.number: each.fitness for each in candidates}
    rows = []
    proposed = Counter(each.operator for each in candidates if each.parent is not None)
    for operator, number in proposed.most_common():
        own = [each for each in candidates if each.operator == operator and each.parent is not None]
        valid = [each for each in own if each.valid]
        better = sum(each.fitness > fitness.get(each.parent or 0, 0.0) for each in valid)
        layers = Counter(each.layer for each in own if not each.valid)
        killed = ", ".join(f"{layer} {count}" for layer, count in layers.most_common())
        rows.append((operator, number, len(valid), better, killed))
    return rows
