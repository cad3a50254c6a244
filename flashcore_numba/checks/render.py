"""Check reports and kill tables for a terminal."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flashcore_numba.checks.mutation import Kill
from flashcore_numba.checks.runner import KINDS, CheckReport
from flashcore_numba.stages.files import shown

SHOWN = 5  # failures of one stage that are told in full


def render(reports: Sequence[CheckReport], console: Console) -> None:
    """Failures first, each with a message, then one line per stage, then what was made smaller."""
    for report in reports:
        _render_failures(report, console)
    backend = reports[0].backend if reports else "simulator"
    table = Table(title=f"Checks on the {'GPU' if backend == 'gpu' else 'simulator'}")
    table.add_column("stage")
    for heading in ("passed", "worst margin", "seconds"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for report in reports:
        passed = sum(result.passed for result in report.results)
        margin = f"{report.margin:.2f}" if math.isfinite(report.margin) else "-"
        verdict = "[green]ok[/green]" if report.passed else "[red]FAILED[/red]"
        table.add_row(
            report.label, f"{passed}/{len(report.results)}", margin, f"{report.seconds:.1f}", verdict
        )
    console.print(table)
    console.print(
        "Worst margin: the smallest allowed error / error over all cases that passed; below 1 would fail."
    )
    if reports:
        notes = dict.fromkeys(note for report in reports for note in report.scaled)
        if notes:
            console.print(f"Scaled for the simulator (B x H x S x D): {'; '.join(notes)}")
        console.print(f"Seed of the random cases: {reports[0].seed}")


def _render_failures(report: CheckReport, console: Console) -> None:
    failures = report.failures
    for failure in failures[:SHOWN]:
        console.print(f"[red]{escape(report.label)}[/red]: {escape(failure.name)}")
        console.print(f"  {failure.kind}: {KINDS.get(failure.kind, '')}", style="dim", highlight=False)
        console.print(f"  {failure.message}", markup=False, highlight=False)
    if len(failures) > SHOWN:
        console.print(f"  and {len(failures) - SHOWN} more failures of {escape(report.label)}")


def render_kills(kills: Sequence[Kill], console: Console) -> None:
    """The kill table: survivors and unexpected kills stand out."""
    table = Table(title="Mutants")
    for heading in ("stage", "mutant", "what was done wrong", "fate", "killed by"):
        table.add_column(heading, overflow="fold")
    for item in kills:
        if item.status == "killed":
            fate = f"[green]{item.kind}[/green]" if item.as_expected else f"[yellow]{item.kind}?[/yellow]"
        elif item.status == "survived":
            fate = "[red]survived[/red]"
        else:
            fate = f"[dim]{item.status}[/dim]"
        table.add_row(shown(item.stage), item.name, escape(item.mistake), fate, escape(item.case))
    console.print(table)
    dead = sum(item.status == "killed" for item in kills)
    hidden = sum(item.status not in ("killed", "survived") for item in kills)
    unseen = f", {hidden} not visible on this back end" if hidden else ""
    console.print(f"{dead} of {len(kills)} mutants killed{unseen}.")
