"""`flashcore profile`: the dozen figures of Nsight Compute that say what holds an attention kernel back."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from flashcore_numba.calls import refuse as refuse_problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence import extracts, nsight
from flashcore_numba.records.amounts import amount, short_us
from flashcore_numba.run import registers
from flashcore_numba.stages.runs import Run

FOLDER = Path("profiles")
LIMIT = 150  # seconds for a stage's launches, each of them replayed about fifty times
EVERYTHING = ("--set", "full", "--import-source", "yes")

STALLS = {
    "barrier": "at a barrier, for the block's other warps",
    "branch_resolving": "for the target of a branch",
    "dispatch_stall": "at the dispatcher",
    "drain": "for its last stores before it ends",
    "imc_miss": "for a constant that is not in the cache",
    "lg_throttle": "for the queue of global and local accesses",
    "long_scoreboard": "for data from global memory",
    "math_pipe_throttle": "for a busy arithmetic unit",
    "membar": "at a memory fence",
    "mio_throttle": "for the queue of shared memory and exponentials",
    "misc": "for other reasons",
    "no_instructions": "for the next instruction to be fetched",
    "not_selected": "ready, while another warp issued",
    "short_scoreboard": "for data from shared memory or an exponential",
    "sleeping": "asleep",
    "tex_throttle": "for the texture queue",
    "wait": "the fixed cycles between two dependent instructions",
    "warpgroup_arrive": "for its warpgroup's other warps",
}


def _percent(value: float) -> str:
    return f"{value:.1f} %"


MEANINGS: dict[str, tuple[str, Callable[[float], str], str]] = {
    "duration_us": (
        "duration",
        lambda x: f"{short_us(x)} us",
        "under the profiler, caches flushed: longer than timed",
    ),
    "tensor_pct": (
        "tensor pipe",
        _percent,
        "of the instructions that it could start; one is HFMA2, with which compilers load constants",
    ),
    "tensor_busy_pct": (
        "tensor pipe busy",
        _percent,
        "with matrix products, of the cycles in which an SM has work",
    ),
    "xu_pct": ("MUFU (XU) pipe", _percent, "of the instructions that the exponential unit could start"),
    "issue_pct": ("issue slots busy", _percent, "of the launch's cycles in which a scheduler issues"),
    "instructions": ("instructions", amount, "issued to warps, each once for its 32 lanes"),
    "l2_pct": ("L2 throughput", _percent, "of the L2 cache's peak"),
    "dram_pct": ("DRAM throughput", _percent, "of the memory's peak"),
    "l2_bytes": ("L2 bytes", amount, "between the SMs and the L2 cache"),
    "dram_read_bytes": ("DRAM bytes read", amount, "the caches are flushed before the launch"),
    "dram_written_bytes": ("DRAM bytes written", amount, "what the L2 cache had to give away by the end"),
    "occupancy_pct": ("achieved occupancy", _percent, "of the warps that an SM can hold were there"),
    "registers": ("registers", lambda x: f"{x:.0f}", "per thread; an SM has 65536, which limit its warps"),
    "bank_conflicts": ("bank conflicts", amount, "shared wavefronts beyond the fewest possible"),
    "barriers": ("barriers", amount, "arrivals of a warp at a block's barrier"),
}
"""Figure: its name, how it is written, and what it means."""


def refuse(run: Run, shape: Shape, causal: bool) -> None:
    """Raise UnsupportedError where the stage does not serve the shape."""
    refuse_problem(run.stage, registers.stand_in_for(run.stage, shape, causal))


def profile(run: Run, shape: Shape, causal: bool, folder: Path) -> tuple[Any, ...]:
    """Launch a run once under ncu with all its sections, and once under nsys where that is installed.

    Returns what was measured, an `extracts.Measured`, and the files of the reports. Raises NsightError.
    """
    report = folder / f"{_stem(run, shape, causal)}.ncu-rep"
    found = extracts.measure([extracts.Job(shape, causal, run)], LIMIT, report, EVERYTHING)
    if not found:
        raise nsight.NsightError(f"{run.label} was not launched within {LIMIT} s")
    timeline = _timeline(run, shape, causal, folder)
    return (found[0], report) if timeline is None else (found[0], report, timeline)


def _timeline(run: Run, shape: Shape, causal: bool, folder: Path) -> Path | None:
    tool = nsight.find_tool("nsys")
    if tool is None:
        return None
    report = folder / f"{_stem(run, shape, causal)}.nsys-rep"
    with tempfile.TemporaryDirectory() as scratch:
        options = ["profile", "--trace=cuda", "--force-overwrite=true", f"--output={report}"]
        launch = extracts.command(Path(scratch, "record.json"), LIMIT, [extracts.Job(shape, causal, run)])
        _, status = nsight.run_limited([tool, *options, *launch], LIMIT)
    return report if status == 0 and report.exists() else None


def _stem(run: Run, shape: Shape, causal: bool) -> str:
    return f"{re.sub('[ /]', '-', run.label)}-{shape}{'-causal' if causal else ''}"


def find(run: Run, extract: dict[str, Any] | None) -> dict[str, Any] | None:
    """What an extract holds of a run, see `Measured.as_dict`; None where that was not measured."""
    at = (extracts.name_of(run.stage), run.variant)
    return next((r for r in (extract or {"runs": []})["runs"] if (r["stage"], r["variant"]) == at), None)


def which(run: Run) -> list[str]:
    """The shapes at which a run was measured: `1x8x512x64 causal`."""
    return [
        f"{extract['shape']}{' causal' if extract['causal'] else ''}"
        for extract in extracts.recorded()
        if find(run, extract)
    ]


def provenance(extract: dict[str, Any]) -> str:
    """`NVIDIA H200, 2026-01-31, commit 0123456789, ncu 2025.3.1.0`."""
    dirty = " with uncommitted changes" if extract["dirty"] else ""
    commit = f"commit {extract['commit'][:10]}{dirty}"
    return f"{extract['gpu']}, {extract['date'][:10]}, {commit}, ncu {extract['ncu']}"


def special(run: dict[str, Any]) -> str | None:
    """What is not as in the rest of its extract: a run measured earlier, or one that another stands for.

    Where two runs launch the same kernel on the same grid with the same arguments, one measurement serves.
    """
    if run.get("same_launch_as"):
        return f"launches what the variant {run['same_launch_as']} launches, which was measured"
    if run.get("commit"):
        return f"measured on {run['date'][:10]}, commit {run['commit'][:10]}"
    return None


def rows(measured: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value, meaning) of each figure of one run; of several launches the values are in order."""
    kernels = measured["kernels"]
    found = []
    for figure, (name, write, meaning) in MEANINGS.items():
        if figure in measured["traffic"]:  # summed over the launches
            values = [measured["traffic"][figure]]
        else:
            values = [kernel[figure] for kernel in kernels]
        text = ", ".join("not measured" if value is None else write(value) for value in values)
        found.append((name, text, meaning))
    for kernel in kernels:
        of = f" of {kernel['name']}" if len(kernels) > 1 else ""
        for rank, (reason, share) in enumerate(kernel["stalls"].items(), 1):
            found.append(
                (f"stall {rank}{of}", f"{reason} {share:.0%}", f"warps waited {STALLS.get(reason, '')}")
            )
    return found


def table(run: Run, measured: dict[str, Any], extract: dict[str, Any]) -> Table:
    """The figures of one run with their meanings; the title names shape, GPU, date and commit."""
    causal = ", causal" if extract["causal"] else ""
    title = f"{run.label} at {extract['shape']}{causal}: {provenance(extract)}"
    if note := special(measured):
        title += f"; {note}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("", no_wrap=True)
    shown.add_column("measured", justify="right")
    shown.add_column("meaning")
    for row in rows(measured):
        shown.add_row(*row)
    return shown
