"""Tables in Markdown of what the checks were held against, for `docs/trust.md` and `docs/edits.md`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashcore_numba.checks import Kill
from flashcore_numba.checks.campaign import table
from flashcore_numba.records import artifact, environment, layout

NUMBA = "Numba's simulator"  # a key of the record, as are the following
LEFT_OUT = "not run: "
NO_FAULT = ("reported", "harmless", "another kernel")
MUTATIONS = {"mutations-python": "00 to 06, Python", "mutations-cuda": "07 to 16, CUDA C"}
PLANTED = {"index": "an index shifted", "barrier": "a barrier removed", "syncwarp": "a syncwarp removed"}


def _when(record: Mapping[str, Any]) -> str:
    return f"{record['date'][:10]}, commit {record['commit'][:7]}, seeds from {record['first_seed']}"


def fuzz(folder: Path | None = None) -> str | None:
    """How many random kernels agree with whom; None without a record."""
    cpu, gpu = artifact.other("trust/fuzz", folder), artifact.other("trust/fuzz-h200", folder)
    if cpu is None or gpu is None:
        return None
    own, theirs = cpu["simulator"], cpu[NUMBA]
    compared = {verdict: n for verdict, n in theirs.items() if not verdict.startswith(LEFT_OUT)}
    rows = {
        "an H200": (gpu["simulator"]["equal"], gpu["ran on the GPU"]),
        "one greenlet per thread, in four orders": (own["equal"], sum(own.values())),
        "Numba's CUDA simulator": (compared["equal"], sum(compared.values())),
    }
    lines = ["| the simulator against | kernels | equal | different |", "|---|--:|--:|--:|"]
    lines += [f"| {who} | {n:,} | {equal:,} | {n - equal:,} |" for who, (equal, n) in rows.items()]
    why = [
        f"{n:,}, because {verdict.removeprefix(LEFT_OUT)}"
        for verdict, n in sorted(theirs.items())
        if verdict.startswith(LEFT_OUT)
    ]
    return "\n".join(lines) + (
        f"\n\nOn the H200: {_when(gpu)}; {gpu['refused or broken there']} more did not compile or run there. "
        f"The others: {_when(cpu)}. Left out with Numba's simulator: {'; '.join(why)}."
    )


def planted(folder: Path | None = None) -> str | None:
    """What became of random kernels with one fault planted; None without a record."""
    record = artifact.other("trust/fuzz", folder)
    if record is None:
        return None
    lines = ["| planted | " + " | ".join(NO_FAULT) + " | silent |", "|---|" + "--:|" * (len(NO_FAULT) + 1)]
    for kind, what in PLANTED.items():
        counts = record[f"mutants, {kind}"]
        known = [counts.get(verdict, 0) for verdict in NO_FAULT]
        cells = [f"{n:,}" for n in (*known, sum(counts.values()) - sum(known))]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def edits(folder: Path | None = None) -> str | None:
    """Random edits of the stages, by stage and conclusion; None without a record."""
    record = artifact.other("trust/edits", folder)
    if record is None:
        return None
    controls = record["controls"]
    right = sum(item.get("gpu") == item.get("executor") == "right" for item in controls)
    seen = Counter(edit["gpu"]["verdict"] for edit in record["edits"] if edit["conclusion"] == "reported")
    shown = ", ".join(f"{verdict} {n}" for verdict, n in seen.most_common())
    return table(record) + (
        f"\n\nSeed {record['seed']}. Of {len(controls)} stages without an edit, {right} were right in both "
        f"places. What the GPU made of the reported edits: {shown}."
    )


def every_edit(folder: Path | None = None) -> str | None:
    """A line per random edit; None without a record."""
    record = artifact.other("trust/edits", folder)
    if record is None:
        return None
    columns = ("place", "kind", "before", "after", "executor", "H200", "conclusion")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for edit in record["edits"]:
        said, reason = edit["executor"], edit.get("reason")
        cells = (
            f"{edit['file']}:{edit['line']}",
            edit["kind"],
            _code(edit["before"]),
            _code(edit["after"]),
            f"{said['verdict']} ({said['kind']})" if said.get("kind") else said["verdict"],
            edit["gpu"]["verdict"],
            f"{edit['conclusion']}: {reason}" if reason else edit["conclusion"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _code(text: str) -> str:
    return "`" + text.replace("`", "'").replace("|", "\\|") + "`" if text else ""


def mistakes(folder: Path | None = None) -> str | None:
    """Mistakes that were planted in stages, and how many were caught; None without a record."""
    record = artifact.other("trust/mutants", folder)
    if record is None:
        return None
    lines = ["| planted | how many | caught | by what |", "|---|--:|--:|---|"]
    for what, counts in record["planted"].items():
        caught = counts["caught by"]
        kinds = ", ".join(f"{kind} {n}" for kind, n in caught.items())
        lines.append(f"| {what} | {counts['number']} | {sum(caught.values())} | {kinds} |")
    return "\n".join(lines) + f"\n\n{record['date'][:10]}, commit {record['commit'][:7]}."


def save_mutants(written: Sequence[Kill], deleted: Sequence[Kill], folder: Path | None = None) -> Path:
    """Write the record of `mistakes`: of wrong versions of the stages, and of statements left out.

    Returns its path.
    """
    planted = {"wrong versions of the stages": written, "statements that order memory, left out": deleted}
    counts = {
        what: {
            "number": len(kills),
            "caught by": dict(Counter(kill.kind for kill in kills if kill.status == "killed").most_common()),
            "survived": [kill.label for kill in kills if kill.status != "killed"],
        }
        for what, kills in planted.items()
    }
    path = (folder or artifact.recorded_dir()) / "trust/mutants.json"
    path.parent.mkdir(exist_ok=True)
    record = {"date": environment.today(), "commit": environment.commit()[0], "planted": counts}
    layout.save(record, path, "planted")
    return path


def mutations(folder: Path | None = None) -> str | None:
    """What sampled mutations of solutions were told, a row per language; None without a record."""
    lines = [
        "| lessons | mutations | passed | replies | at the changed line | cause certain | sentences read "
        "| false | of them still | misleading |",
        "|---|" + "--:|" * 9,
    ]
    notes = []
    for name, lessons in MUTATIONS.items():
        record = artifact.other(f"trust/{name}", folder)
        if record is None:
            continue
        drawn = record["mutations"]
        failed = [reply for reply in drawn if reply["status"] != "passed"]
        counts = (
            len(drawn),
            len(drawn) - len(failed),
            len(failed),
            sum(reply["place"] == "there" for reply in failed),
            sum(bool(reply["cause"]) for reply in failed),
            sum(each["sentences"] for each in record["draws"]),
            sum(len(reply["false"]) for reply in drawn),
            sum(len(reply["still_false"]) for reply in drawn),
            sum(len(reply["misleading"]) for reply in drawn),
        )
        lines.append(f"| {lessons} | {' | '.join(f'{n:,}' for n in counts)} |")
        false = Counter[int]()
        for reply in drawn:
            false[reply["seed"]] += len(reply["false"])
        draws = [
            f"{each['count']} on {each['date'][:10]}, commit {each['commit'][:7]}, seed {each['seed']}, "
            f"{false[each['seed']]} false of {each['sentences']:,}"
            for each in record["draws"]
        ]
        notes.append(f"{lessons}: {'; '.join(draws)}.")
    return "\n".join([*lines, "", " ".join(notes)]) if notes else None


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "fuzz": fuzz,
    "planted": planted,
    "edits": edits,
    "every-edit": every_edit,
    "mistakes": mistakes,
    "mutations": mutations,
}
"""What `<!-- table:NAME -->` may name in a page, beside the limits."""
