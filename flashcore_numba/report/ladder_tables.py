"""The ladder in Markdown: the result in a sentence, 16 stages and four peers, all that was timed, and which
features the stages serve.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashcore_numba.core.features import ALL, ARGUMENTS
from flashcore_numba.records import artifact, launched
from flashcore_numba.records.amounts import compiled, percent, provenance, short_us, times
from flashcore_numba.report.pictures.records import MISSION, PEERS, defaults, peers
from flashcore_numba.report.tables import limits_line
from flashcore_numba.stages import LADDER

Recorded = tuple[dict[str, Any], dict[str, Any]]  # an artifact and its mission shape


def result(folder: Path | None = None) -> str | None:
    """The fastest stage without overlapping launches beside the fastest two of `PEERS`, and what they add;
    None without a record of the mission shape.

    folder: of the recorded runs; the package's own by default.
    """
    if (found := _newest(folder)) is None:
        return None
    record, shape = found
    us = {entry["label"]: entry["gpu_us"]["p50"] for entry in _right(defaults(shape))}
    best = min(us, key=lambda label: us[label])
    others = sorted((entry["gpu_us"]["p50"], PEERS[entry["label"]]) for entry in _right(_peers(shape)))
    batch, heads, rows, dim = shape["shape"].split("x")
    text = (
        f"**The result.** On an {record['gpu']['name']}, attention over {heads} heads of {rows} x {dim} "
        f"(batch {batch}, fp16) takes **{short_us(us[best])} µs** in stage {best.partition(' ')[0]}"
    )
    if others:
        beside = " and ".join(f"{name.partition(',')[0]} {short_us(each)} µs" for each, name in others[:2])
        text += f"; in the same run {beside}"
    text += ". Every launch of a stage waits until the one before it has ended."
    if other := launched.overlapped(shape):
        text += (
            f" Launches that overlap bring stage {other['stage']} to {short_us(other['gpu_us']['p50'])} µs, "
            "and no comparison with a library uses that time."
        )
    return text


def ladder(folder: Path | None = None) -> str | None:
    """A row per stage and per peer of `PEERS`; None without a record of the mission shape."""
    if (found := _newest(folder)) is None:
        return None
    record, shape = found
    ideas = {stage.number: stage.idea for stage in LADDER}
    lines = [
        "| | the idea | GPU time, µs | times faster than 01 | of the limit |",
        "|---|---|--:|--:|--:|",
        *(_row(e["label"], ideas.get(e["stage"], ""), *_speed(e)) for e in defaults(shape)),
        *(_row(f"*{e['label']}*", PEERS[e["label"]], *_speed(e)) for e in _peers(shape)),
    ]
    return "\n".join(lines) + (
        f"\n\n{provenance(record)}: B x H x S x D = {shape['shape']} in fp16, medians of {record['rounds']} "
        "rounds in which all entries take turns. GPU time is that of one launch in a CUDA graph, where every "
        "launch of a stage waits for the one before; data comes from a warm L2. The limit is what the unit "
        "that multiplies (CUDA cores for the Numba stages), the exponentials and memory allow: "
        f"{limits_line(shape)}."
    )


def errors(folder: Path | None = None) -> str | None:
    """How wrong the outputs of stages and peers are, beside their bounds; None without a record."""
    if (found := _newest(folder)) is None:
        return None
    _, shape = found
    parts = []
    for name, entries in (("of a stage", defaults(shape)), ("of a peer", peers(shape))):
        known = [e["error"] for e in _right(entries) if e["error"]["max"] and e["error"]["margin"]]
        if known:
            low, high = (pick(error["max"] for error in known) for pick in (min, max))
            most = percent(1 / min(error["margin"] for error in known))
            parts.append(f"{name} {low:.1e} to {high:.1e}, at most {most} of its bound")
    return f"At {shape['shape']} the largest error is: {'; '.join(parts)}." if parts else None


def all_entries(folder: Path | None = None) -> str | None:
    """A row per entry of the mission shape: stages, variants and peers; None without such a record."""
    if (found := _newest(folder)) is None:
        return None
    _, shape = found
    stages = {stage.number: stage for stage in LADDER}
    lines = [
        "| | what it is | GPU time, µs | caller, µs | times faster than 01 | of the limit | max error "
        "| registers, spilled B, local B |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for entry in shape["entries"]:
        what, label, of_compiler = "another library, on the same arrays", f"*{entry['label']}*", "-"
        if entry["kind"] == "stage":
            stage = stages.get(entry["stage"])
            idea = stage.idea if stage else ""
            what = idea if entry["default"] or not stage else stage.variants.get(entry["variant"], "")
            label, of_compiler = entry["label"], ", ".join(compiled(entry["resources"]))
        error = f"{entry['error']['max']:.1e}" if entry["error"]["right"] else "wrong"
        us, faster, share = _speed(entry)
        caller = short_us((entry["caller_us"] or {}).get("p50"))
        lines.append(_row(label, what, us, caller, faster, share, error, of_compiler))
    return "\n".join(lines)


def features() -> str:
    """Which stages serve what models add and what parts need, from the stages themselves."""
    head = ["| feature | stages |", "|---|---|"]
    rows = [
        f"| `{ARGUMENTS.get(name, name)}` | "
        f"{', '.join(f'{stage.number:02d}' for stage in LADDER if name in stage.features)} |"
        for name in ALL
    ]
    return "\n".join([*head, *dict.fromkeys(rows)])  # an argument of two arrays is one row


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "ladder": ladder,
    "all-entries": all_entries,
    "features": lambda folder: features(),
}
TEXTS: dict[str, Callable[[Path | None], str | None]] = {"result": result, "errors": errors}


def _newest(folder: Path | None) -> Recorded | None:
    """The newest recorded run that has stages at the mission shape."""
    for _, record in artifact.recorded(folder):
        shape = artifact.find_shape(record, MISSION)
        if shape and defaults(shape):
            return record, shape
    return None


def _peers(shape: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in peers(shape) if entry["label"] in PEERS]


def _right(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry["error"]["right"]]


def _speed(entry: dict[str, Any]) -> tuple[str, str, str]:
    """GPU time, times faster than stage 01, share of the limit; a wrong output has no speed."""
    if not entry["error"]["right"]:
        return "wrong", "-", "-"
    faster = times(entry["speed_up"]["stage_01"]).removesuffix("x")
    return short_us(entry["gpu_us"]["p50"]), faster, percent(entry["share_of_limit"])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
