"""`flashcore compare` without a GPU: every stage checked and counted for real, recorded times beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from flashcore_numba.checks import CheckReport, check
from flashcore_numba.checks.forward import operation
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence import roofline
from flashcore_numba.evidence.counts import Counted, count_all
from flashcore_numba.records import artifact
from flashcore_numba.run.executor import simulated
from flashcore_numba.run.progress import Progress
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import runs


@dataclass(frozen=True)
class Rehearsal:
    """reports: of the checks. counted: one per run. recorded: (artifact, shape with the chosen entries).
    not_run: sentences about stages that this machine cannot check.
    """

    reports: list[CheckReport]
    counted: list[Counted]
    recorded: list[tuple[dict[str, Any], dict[str, Any]]]
    not_recorded: list[str]
    not_run: list[str]

    @property
    def right(self) -> bool:
        return all(report.passed for report in self.reports) and all(
            counted.right for counted in self.counted
        )

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a counted run, for `tables.counted_table`."""
        by_run = {(report.key, report.variant): report for report in self.reports}
        found = []
        for counted in self.counted:
            report = by_run[counted.run.stage.key, counted.run.variant]
            passed = len(report.results) - len(report.failures)
            row = {
                "label": counted.run.label,
                "checks": f"{passed}/{len(report.results)}",
                "moved": counted.moved(),
            }
            found.append(row | {"right": report.passed and counted.right})
        return found

    def explain(self, console: Console) -> None:
        """Print what failed, if anything did."""
        for report in self.reports:
            for failure in report.failures:
                console.print(
                    f"{report.label}: {failure.name}: {failure.message}", markup=False, soft_wrap=True
                )
        for counted in self.counted:
            for problem in counted.problems:
                console.print(f"{counted.run.label}: {problem}", markup=False, soft_wrap=True)
            if not counted.error["right"]:
                console.print(f"{counted.run.label}: {counted.error['reason']}", markup=False, soft_wrap=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "right": self.right,
            "checks": [report.as_dict() for report in self.reports],
            "counted": [counted.as_dict() for counted in self.counted],
            "recorded": [{**record, "shapes": [shape]} for record, shape in self.recorded],
            "not_recorded": self.not_recorded,
            "not_run": self.not_run,
        }


def rehearse(
    stages: Sequence[Stage], shapes: Sequence[tuple[Shape, bool]], count_shape: Shape, progress: Progress
) -> Rehearsal:
    """Check `stages`, count each run at `count_shape`, and find the records of each (shape, causal).

    The mask is on while counting where it is on for every shape.
    """
    able, not_run = simulated(stages)
    of, labels = operation(stages[0]).name, {run.label for run in runs(stages)}
    records = [_find(of, shape, causal, labels) for shape, causal in shapes]
    what = "checking on the simulator"
    reports = []
    if able:  # no stage would mean all
        reports = check(
            able,
            backend="simulator",
            progress=lambda done, total, label: progress.count(what, done, total, label),
        )
    counted = count_all(runs(able), count_shape, progress, causal=all(causal for _, causal in shapes))
    option = "" if of == artifact.FORWARD else f" --operation {of}"
    missing = [
        f"No times are recorded for {shape}{', causal' if causal else ''}. On a GPU they are measured by "
        f"`flashcore compare{option} --shape {shape}{' --causal' if causal else ''}`."
        for (shape, causal), record in zip(shapes, records, strict=True)
        if record is None
    ]
    return Rehearsal(reports, counted, [record for record in records if record], missing, not_run)


def _find(
    operation: str, shape: Shape, causal: bool, labels: set[str]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first record of those that timed most of the labelled runs at a shape, with these and all peers."""
    every = [(record, roofline.measured_at(record, shape, causal)) for record in roofline.records(operation)]
    known = [(record, found) for record, found in every if found]
    if not known:
        return None
    record, found = max(known, key=lambda pair: sum(e["label"] in labels for e in pair[1]["entries"]))
    entries = [e for e in found["entries"] if e["kind"] == "peer" or e["label"] in labels]
    absent = {label: why for label, why in found["absent"].items() if label in labels or label[:1].isalpha()}
    return record, found | {"entries": entries, "absent": absent}
