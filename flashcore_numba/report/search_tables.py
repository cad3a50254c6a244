"""Tables in Markdown for `docs/search.md`: what the evaluator refuses and lets live, what searches found."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashcore_numba.evolve.cheats import IMPOSSIBLE
from flashcore_numba.evolve.evaluate import LAYERS
from flashcore_numba.evolve.trust import LIVES
from flashcore_numba.records import artifact
from flashcore_numba.tune import table

KINDS = {
    "cheats": "cheats, each by the layer that it was written for",
    "mutants": "known mistakes that are edits of a region",
    "harmless": "edits that change nothing",
}


def layers(folder: Path | None = None) -> str:
    """What a candidate goes through."""
    lines = ["| layer | what looks |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {what} |" for name, what in LAYERS.items())])


def cheats(folder: Path | None = None) -> str | None:
    """Which layer refused which cheat; None without a record."""
    record = artifact.other("trust/evolve-cheats", folder)
    if record is None:
        return None
    lines = ["| cheat | what it does | lesson | refused by |", "|---|---|---|---|"]
    for fate in record["fates"]:
        by = fate["layer"] or "**nothing**"
        lines.append(f"| {fate['name'].replace('_', ' ')} | {fate['says']} | {fate['lesson']} | {by} |")
    return "\n".join(lines) + f"\n\n{_when(record)}."


def impossible(folder: Path | None = None) -> str:
    """Hacks for which there is no place, and why."""
    lines = ["| hack | why there is no place for it |", "|---|---|"]
    return "\n".join([*lines, *(f"| {hack} | {why} |" for hack, why in IMPOSSIBLE.items())])


def rates(folder: Path | None = None) -> str | None:
    """How many candidates were refused, by what, and how many lived; None without a record."""
    records = {
        kind: record
        for kind in KINDS
        if (record := artifact.other(f"trust/evolve-{kind}", folder)) is not None
    }
    if not records:
        return None
    lines = ["| candidates | judged | refused | by | lived |", "|---|--:|--:|---|--:|"]
    for kind, record in records.items():
        fates = record["fates"]
        by = Counter(fate["layer"] for fate in fates if fate["layer"] is not None)
        told = ", ".join(f"{name} {by[name]}" for name in LAYERS if by[name])
        lived = len(fates) - by.total()
        lines.append(f"| {KINDS[kind]} | {len(fates)} | {by.total()} | {told} | {lived} |")
    notes = [f"{KINDS[kind].split(',')[0].capitalize()}: {_when(each)}" for kind, each in records.items()]
    wrong = [
        f"{fate['name']} of lesson {fate['lesson']}: {_became(fate)}"
        for record in records.values()
        for fate in record["fates"]
        if not _as_wanted(fate)
    ]
    others = f" Not as they should be: {'; '.join(wrong)}." if wrong else " All of them as they should be."
    return "\n".join(lines) + f"\n\n{'. '.join(notes)}.{others}"


def tuned(folder: Path | None = None) -> str | None:
    """What searches of configurations found, beside what the stages' rules say; None without a record."""
    kept = None if folder is None else folder / table.FOLDER
    entries = table.made(kept)
    if not entries:
        return None
    lines = [
        "| stage | problem | the rule's | the best | less time | launched | record |",
        "|---|---|---|---|--:|---|---|",
    ]
    for entry in entries:
        *cells, record = table.row(entry)
        path = f"../flashcore_numba/records/data/{table.FOLDER}/{record}"
        lines.append(f"| {' | '.join(cells)} | [{entry['date'][:10]}]({path}) |")
    near, known = table.near(entries)
    notes = [f"In {near} of {known} searches the best takes at most {table.WORTH:.0%} less than the rule's."]
    if (worst := table.elsewhere(kept)) is not None:
        notes.append(
            f"What is best for one of these problems takes up to {worst - 1:.0%} more time on another of the "
            "same stage, head dimension and mask than that problem's own best."
        )
    return "\n".join([*lines, "", *notes])


def _as_wanted(fate: Mapping[str, Any]) -> bool:
    return fate["layer"] == fate["wanted"] or (fate["wanted"] == "" and fate["layer"] is not None)


def _became(fate: Mapping[str, Any]) -> str:
    why = LIVES.get((fate["lesson"], fate["name"]))
    lived = f"lived, since {why}" if why else "lived"
    return lived if fate["layer"] is None else f"refused by {fate['layer']}"


def _when(record: Mapping[str, Any]) -> str:
    seconds: Sequence[float] = sorted(fate["seconds"] for fate in record["fates"])
    middle = seconds[len(seconds) // 2]
    return f"{record['date'][:10]}, commit {record['commit'][:7]}, half of them in {middle:.0f} s or less"


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "layers": layers,
    "cheats": cheats,
    "impossible": impossible,
    "search-rates": rates,
    "tuned": tuned,
}
