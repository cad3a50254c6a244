"""What the records of searches say about each recorded problem, for `stages.tuning.recorded` to read.

A configuration replaces what the rule of its stage chooses where it took more than `WORTH` less time, at the
unfavourable end of the 95 % interval of their ratio. Both were timed in one interleaved run.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flashcore_numba.core.element import ACCEPTED, FLOAT16
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import parse_any
from flashcore_numba.core.workload import Workload
from flashcore_numba.measure.stats import ratio_interval
from flashcore_numba.measure.timing import FEWEST_ROUNDS
from flashcore_numba.records import artifact, layout
from flashcore_numba.stages.tuning import recorded
from flashcore_numba.tune import record as records
from flashcore_numba.tune.funnel import stand_in
from flashcore_numba.tune.spaces import SPACES, Config, Space, name_of

WORTH = 0.02
FOLDER = "tune"  # of the recorded measurements


def made(folder: Path | None = None) -> list[dict[str, Any]]:
    """The entries, by stage and shape, of all records in a folder; by default, of those that are kept.

    Of two records of one problem the newer counts. Raises ArgumentError, which names the record and what is
    wrong with it.
    """
    newest: dict[tuple, dict[str, Any]] = {}
    for path in sorted(_folder(folder).glob("tune-*.json")):
        entry = entry_of(path)
        key = tuple(str(entry[name]) for name in ("stage", "sm_count", "shape", "causal", "element"))
        if key not in newest or newest[key]["date"] < entry["date"]:
            newest[key] = entry
    order = list(SPACES)
    return sorted(newest.values(), key=lambda each: (order.index(each["stage"]), each["record"]))


def _folder(given: Path | None) -> Path:
    return given or artifact.recorded_dir() / FOLDER


def text(entries: Sequence[Mapping[str, Any]]) -> str:
    """What `recorded.FILE` contains."""
    return layout.text({"entries": list(entries)}, "entries")


def save(entries: Sequence[Mapping[str, Any]]) -> bool:
    """Write the entries to where the stages look; whether that changed anything. Raises OSError."""
    if recorded.FILE.is_file() and recorded.FILE.read_text() == text(entries):
        return False
    layout.save({"entries": list(entries)}, recorded.FILE, "entries")
    recorded.forget()
    return True


def entry_of(path: Path) -> dict[str, Any]:
    """What one record says. Raises ArgumentError for one that is broken, or of another space than today's."""
    record = records.load(path)
    try:
        return _entry(record, path.name)
    except ArgumentError as error:
        raise ArgumentError(f"{path.name}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"{path.name} is no whole record of flashcore tune: {error!r}") from None


def _entry(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    space, workload = _space(record), _workload(record)
    problem, sm_count = stand_in(space, workload), record.get("sm_count", records.SM_COUNT)
    if (limit := space.stage.why_not(problem)) is not None:
        raise ArgumentError(f"{space.stage.label} {limit}")
    shape, rule = workload.shape, dict(space.rule(problem, sm_count))
    entry: dict[str, Any] = {
        "stage": space.key,
        "device": record["device_name"],
        "compute_capability": record.get("compute_capability", list(records.CAPABILITY)),
        "sm_count": sm_count,
        "shape": str(shape),
        "problem": [shape.batch, shape.heads, shape.kv_heads, shape.seq, shape.head_dim, shape.value_dim],
        "causal": workload.causal,
        "element": workload.element.name,
        "rule": rule,
        "best": None,
        "taken": False,
        "record": name,
        "date": record["date"],
        "commit": record["commit"],
    }
    rounds = _rounds(record)
    elite = [_checked(space, problem, rule, record, each["config"]) for each in record["elite"]]
    if not elite:
        return entry
    best = min(elite, key=lambda config: median(rounds[name_of(config)]))
    entry |= {"best": best, "us": {"best": median(rounds[name_of(best)])}}
    of_rule = rounds.get(name_of(rule))
    if best == rule or of_rule is None:
        return entry
    interval = ratio_interval(rounds[name_of(best)], of_rule)
    entry["us"]["rule"] = median(of_rule)
    entry["less"] = {"low": 1 - interval["high"], "high": 1 - interval["low"]}
    entry["taken"] = space.looked_up and entry["less"]["low"] > WORTH
    return entry


def _space(record: Mapping[str, Any]) -> Space:
    key = record["kernel_name"]
    space = next((each for each in SPACES.values() if each.stage.key == key), None)
    if space is None:
        known = ", ".join(each.stage.key for each in SPACES.values())
        raise ArgumentError(f"it is of {key!r}, which has no space to search: those that have are {known}")
    if (had := record["tune_params_keys"]) != list(space.values):
        raise ArgumentError(
            f"it searched {', '.join(had)}, and {space.stage.label} has {', '.join(space.values)}"
        )
    return space


def _workload(record: Mapping[str, Any]) -> Workload:
    of = record["workload"]
    element = next((each for each in ACCEPTED if each.name == of["element"]), None)
    if element is None:
        raise ArgumentError(f"its element type is {of['element']!r}: accepted are float16 and bfloat16")
    shape = parse_any(of["shape"])
    if shape.shortest is not None:
        raise ArgumentError(f"{shape} is a ragged batch, whose lengths no stage knows before it launches")
    return Workload(shape, of["causal"], element)


def _rounds(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Of the long run, by configuration: the rounds that all took part in, as a slow one may leave before the
    last.
    """
    timed = list(record.get("finalists", {}).items())
    for each in record["elite"]:
        timed += [(each["config"], each["rounds_us"]), (record["shipped"], each["shipped_rounds_us"])]
    counts = [len(rounds) for _, rounds in timed]
    enough = max(2, min(FEWEST_ROUNDS, max(counts, default=0)))
    found: dict[str, list[float]] = {}
    for name, rounds in timed:
        once = found.setdefault(name, rounds)
        if len(rounds) < enough or once != rounds or not all(map(_is_time, rounds)):
            raise ArgumentError(f"the rounds of {name} are not those of one run")
    return {name: rounds[: min(counts)] for name, rounds in found.items()}


def _is_time(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _checked(space: Space, problem: Any, rule: Config, record: Mapping[str, Any], name: str) -> Config:
    """A configuration of the elite, which may only be one that could be launched today."""
    about = record["cache"].get(name)
    if about is None:
        raise ArgumentError(f"{name} of its elite is not in its cache")
    config = records.config_of(record, about)
    if name_of(config) != name:
        raise ArgumentError(f"{name} of its elite is {name_of(config)} in its cache")
    broken = space.broken(problem, config)
    if broken is None and config != rule:
        outside = [key for key, value in config.items() if value not in space.values[key]]
        broken = f"{', '.join(outside)} has no such value in the space" if outside else None
    if broken is None and not about.get("checked"):
        broken = "the CPU executor has not found it right"
    if broken is None and ("dropped" in about or "failed" in about):
        broken = about.get("dropped") or about["failed"]
    if broken is not None:
        raise ArgumentError(f"{name} of its elite may not be launched: {broken}")
    return config


def elsewhere(folder: Path | None = None) -> float | None:
    """What is best for one problem, at another of the same stage, head dimension and mask: its time over that
    of the fastest there, in the short runs; the greatest. None where no two such problems are recorded.
    """
    entries, found = made(folder), []
    for here in entries:
        timed = records.timed(records.load(_folder(folder) / here["record"]))
        ratios = {_name(here, each): each["of_shipped"] for each in timed if "of_shipped" in each}
        for other in entries:
            if other is not here and _kin(here, other) and other["best"] is not None:
                ratio = ratios.get(name_of(other["best"]))
                found += [] if ratio is None else [ratio / min(ratios.values())]
    return max(found, default=None)


def _name(entry: Mapping[str, Any], each: Mapping[str, Any]) -> str:
    return name_of({name: each[name] for name in entry["rule"]})


def _kin(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = ("stage", "sm_count", "causal", "element")
    return all(one[name] == other[name] for name in names) and one["problem"][4:] == other["problem"][4:]


def near(entries: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """In how many searches the best takes at most `WORTH` less time than the rule's, and of how many."""
    known = [each for each in entries if each["best"] == each["rule"] or "less" in each]
    fine = [each for each in known if each["best"] == each["rule"] or _share(each["us"]) <= WORTH]
    return len(fine), len(known)


def _share(us: Mapping[str, float]) -> float:
    return 1 - us["best"] / us["rule"]


def row(entry: Mapping[str, Any]) -> list[str]:
    """An entry in words: stage, problem, the rule's configuration, the best, how much less time it took,
    which of them is launched, and the record.
    """
    space = SPACES[entry["stage"]]
    causal = " causal" if entry["causal"] else ""
    element = "" if entry["element"] == FLOAT16.name else f" {entry['element']}"
    rule, best = (None if entry[name] is None else name_of(entry[name]) for name in ("rule", "best"))
    less = "-"
    if best is None:
        now = "the rule's: its search has timed none again"
    elif best == rule:
        now = "the rule's: it is the best"
    elif "less" not in entry:
        now = "the rule's: it has changed since, search again"
    else:
        least, most = (f"{100 * entry['less'][end]:.1f}" for end in ("low", "high"))
        less = f"{least} to {most} %"
        now = "the best" if entry["taken"] else "the rule's: the best is no better, or by too little"
        if not space.looked_up:
            now = "the rule's: lengths are known to the GPU alone"
    problem = f"{entry['shape']}{causal}{element}"
    return [space.stage.label, problem, str(rule), best or "-", less, now, entry["record"]]
