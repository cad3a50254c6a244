"""The tables of `stages.tuning.dispatch`, made from the recorded runs: the fewest rules that choose well.

At every recorded problem the stage that a rule puts first is within `SLACK` of the fastest one. Of the tables
that do this with the fewest rules, the one whose rules divide the recorded problems most evenly is taken.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from cuda_reference.files import write
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse
from flashcore_numba.records import artifact
from flashcore_numba.stages.tuning import dispatch
from flashcore_numba.stages.tuning.dispatch import Rule

SLACK = 1.03  # times of the same launch in two recorded runs differ by up to about this
TABLES = {"TABLE": artifact.FORWARD, "BACKWARD": "backward"}  # and the operation whose records make it
BEGIN, END = "{}: tuple[Rule, ...] = (\n", ")\n"
Key = int | str
FEATURES = ("causal", "head_dim", "rows", "keys")


class Point(NamedTuple):
    """One recorded problem: `times` are pairs of a stage's number, or of its name where it has none, and its
    GPU time in microseconds.
    """

    capability: tuple[int, int]
    shape: str
    causal: bool
    head_dim: int
    rows: int
    keys: int
    times: tuple[tuple[Key, float], ...]

    def slower(self, stage: Key) -> float:
        """How many times the fastest stage's time this one takes; infinite where it was not timed."""
        times = dict(self.times)
        return times.get(stage, math.inf) / min(times.values())


def points(records: Sequence[tuple[Path, dict[str, Any]]]) -> list[Point]:
    """The recorded problems with the default run of each stage that was right.

    Of several records of one problem those count whose fastest stage is within `SLACK` of the fastest of all,
    because kernels get faster; of them the newest, and of one date those with the most stages: one that timed
    a few stages says nothing about the others. Neither does one between problems of fewer and of more rows
    that know more, where it lacks a stage that is the fastest of one of those.
    """
    found: dict[tuple, list[tuple[str, Point]]] = {}
    for _, record in records:
        gpu = record["gpu"]
        major, minor = gpu["compute_capability"]
        for each in record["shapes"]:
            shape = parse(each["shape"])
            times = tuple(
                (_key(entry), entry["gpu_us"]["p50"])
                for entry in each["entries"]
                if entry["kind"] == "stage" and entry["default"] and entry["error"]["right"]
            )
            rows = shape.batch * shape.heads * shape.seq
            point = Point(
                (major, minor), each["shape"], each["causal"], shape.head_dim, rows, shape.seq, times
            )
            if times:
                key = gpu["name"], each["shape"], each["causal"]
                found.setdefault(key, []).append((record["date"], point))
    kept = [point for same in found.values() for point in _counting(same)]
    return [point for point in kept if not _outdone(point, kept)]


def _counting(same: Sequence[tuple[str, Point]]) -> list[Point]:
    """Of the records of one problem, with their dates, those that count."""
    fastest = min(us for _, point in same for _, us in point.times)
    fast = [(date, p) for date, p in same if min(us for _, us in p.times) <= SLACK * fastest]
    newest = [p for date, p in fast if date == max(other for other, _ in fast)]
    return [p for p in newest if len(p.times) == max(len(other.times) for other in newest)]


def _key(entry: dict[str, Any]) -> Key:
    """What tells a stage from the others of its ladder: its number, or its name where it has none."""
    number: int | None = entry["stage"]
    return entry["label"].rpartition("/")[2] if number is None else number


def _outdone(point: Point, found: Sequence[Point]) -> bool:
    kin = [
        other
        for other in found
        if other[:1] + other[2:4] == point[:1] + point[2:4] and len(other.times) > len(point.times)
    ]
    between = kin and min(other.rows for other in kin) <= point.rows <= max(other.rows for other in kin)
    fastest = {min(other.times, key=lambda timed: timed[1])[0] for other in kin}
    return bool(between) and not fastest <= dict(point.times).keys()


def rules(found: Sequence[Point]) -> tuple[Rule, ...]:
    """The fewest rules under which every point's stage is within `SLACK` of its fastest.

    Raises ArgumentError when records of one problem contradict each other.
    """
    table: list[Rule] = []
    for capability in sorted({point.capability for point in found}):
        mine = tuple(point for point in found if point.capability == capability)
        for limits, leaf in _divide(mine):
            bounds = {"causal": None, "head_dim": None, "rows": None, "keys": None} | dict(limits)
            table.append(Rule(capability, **bounds, stages=_ranking(leaf, mine)))
    return tuple(table)


def written(tables: Mapping[str, Sequence[Rule]]) -> str:
    """The source of `flashcore_numba/stages/tuning/dispatch.py` with these tables, by name, in it."""
    text = Path(dispatch.__file__).read_text()
    for name, table in tables.items():
        begin = BEGIN.format(name)
        before, rest = text.split("\n" + begin)
        _, after = rest.split(END, 1) if rest.startswith(END) else rest.split("\n" + END, 1)
        lines = "".join(f"    Rule({', '.join(map(repr, rule))}),\n" for rule in table).replace("'", '"')
        text = f"{before}\n{begin}{lines}{END}{after}"
    return text


def made() -> dict[str, tuple[Rule, ...]]:
    """The tables that follow from the recorded runs, by name. Raises ArgumentError as `rules` does."""
    return {name: rules(points(artifact.recorded(operation=operation))) for name, operation in TABLES.items()}


def save() -> tuple[dict[str, tuple[Rule, ...]], Path]:
    """Write the tables that follow from the recorded runs into the source of `stages.tuning.dispatch`.

    Returns the tables by name and the file. Raises ArgumentError when there is no recorded run of an
    operation, or as `rules` does.
    """
    tables = made()
    for name, table in tables.items():
        if not table:
            raise ArgumentError(
                f"{artifact.recorded_dir()}: holds no recorded time of a stage of the {TABLES[name]} pass"
            )
    path = Path(dispatch.__file__)
    write(path, written(tables))
    return tables, path


@cache
def _divide(found: tuple[Point, ...]) -> tuple[tuple[tuple[tuple[str, Any], ...], tuple[Point, ...]], ...]:
    """The fewest parts of `found` that one stage each serves well: (limits, points), to be tried in turn."""
    if _best(found) is not None:
        return (((), found),)
    options = []
    for feature, limit, other, low, high in _cuts(found):
        # The parts of `low` come first and cover it, so those of `high` need no limit from below.
        parts = [(((feature, limit), *limits), leaf) for limits, leaf in _divide(low)]
        upper = ((feature, other),) if other is not None else ()
        parts += [((*upper, *limits), leaf) for limits, leaf in _divide(high)]
        options.append((len(parts), -min(len(low), len(high)), tuple(parts)))
    if not options:
        shapes = ", ".join(sorted({point.shape for point in found}))
        raise ArgumentError(
            f"the recorded runs of {shapes} contradict each other: no stage is within {SLACK - 1:.0%} of the "
            "fastest in all of them; keep those that count"
        )
    return min(options, key=lambda option: option[:2])[2]


def _cuts(found: tuple[Point, ...]) -> Iterator[tuple[str, Any, Any, tuple[Point, ...], tuple[Point, ...]]]:
    """Ways of cutting in two: the feature, its limit in the lower part and in the upper one, both parts.

    Lengths are cut half-way, on a logarithmic scale, between two that were recorded.
    """
    for feature in FEATURES:
        values = sorted({getattr(point, feature) for point in found})
        for below, above in pairwise(values):
            low = tuple(point for point in found if getattr(point, feature) <= below)
            high = tuple(point for point in found if getattr(point, feature) > below)
            if feature in ("rows", "keys"):
                yield feature, math.isqrt(below * above), None, low, high
            else:
                yield feature, below, above, low, high


def _slower(stage: Key, found: Sequence[Point]) -> float:
    """How many times the fastest stage's time a stage takes, geometric mean over where it was timed."""
    ratios = [ratio for point in found if math.isfinite(ratio := point.slower(stage))]
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.inf


def _best(found: Sequence[Point]) -> Key | None:
    """The fastest stage of those within `SLACK` of the fastest at every point, or None."""
    able = [stage for stage, _ in found[0].times if all(point.slower(stage) <= SLACK for point in found)]
    return min(able, key=lambda stage: _slower(stage, found), default=None)


def _ranking(leaf: Sequence[Point], every: Sequence[Point]) -> tuple[Key, ...]:
    """All timed stages: the best of `leaf`, then by their times there, or elsewhere when not timed there."""
    best = _best(leaf)
    stages = {stage for point in every for stage, _ in point.times}
    return tuple(sorted(stages, key=lambda s: (s != best, _slower(s, leaf), _slower(s, every), s)))
