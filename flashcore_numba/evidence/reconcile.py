"""`flashcore reconcile`: what a stage moves, as a formula predicts, a simulator counts and a GPU measures."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from flashcore_numba.branches.find import find as find_stage
from flashcore_numba.core import gpu
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence import extracts, profile
from flashcore_numba.evidence.counts import count
from flashcore_numba.evidence.nsight import NsightError
from flashcore_numba.evidence.reasons import REASONS
from flashcore_numba.predict import FORMULAS, Traffic, predict
from flashcore_numba.predict.formula import SECTOR
from flashcore_numba.records.amounts import fit
from flashcore_numba.run import pool
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.progress import Progress
from flashcore_numba.run.registers import registers, stand_in_for
from flashcore_numba.stages import Stage
from flashcore_numba.stages.runs import Run, runs
from flashcore_numba.stages.tuning import recorded

MOST_APART = 0.02
LEGEND = (
    "Bytes are those of the 32-byte sectors that requests touch, one touched twice counting twice; a copy by "
    "TMA is one request, and its sectors those of its box. Waves: wavefronts of shared memory; a barrier "
    "counts for each warp."
)
APART = "Apart: relative to the largest; above 2 % there must be a reason."
# The shapes and masks that the repository keeps extracts of.
SAVED = (
    ("1x8x512x64", False),  # first: a time limit cuts the end
    ("1x1x128x64", False),
    ("1x1x128x64", True),
    ("1x2x200x64", True),
    ("1x1x128x128", False),
)
QUOTED = (("1x8x1024x64", False, (2,)), ("1x8x4096x64", False, (4, 5)))  # with stages: lessons quote these
SAVE_LIMIT = 180  # seconds on the GPU for all of them
FEW_SCORES = 2**15


def _ratio(sectors: int, requests: int) -> float:
    return sectors / requests if requests else 0.0


ATOMICS = "bytes of atomics"  # which extracts have not had from the beginning
ROWS: dict[str, Callable[[Traffic], float]] = {
    "bytes loaded": lambda t: SECTOR * t.global_load_sectors,
    "sectors per load": lambda t: _ratio(t.global_load_sectors, t.global_load_requests),
    "bytes stored": lambda t: SECTOR * t.global_store_sectors,
    "sectors per store": lambda t: _ratio(t.global_store_sectors, t.global_store_requests),
    "shared load waves": lambda t: t.shared_load_wavefronts,
    "shared store waves": lambda t: t.shared_store_wavefronts,
    "bank conflicts": lambda t: t.bank_conflicts,
    "barriers": lambda t: t.barriers,
    ATOMICS: lambda t: SECTOR * t.global_atomic_sectors,
}


@dataclass(frozen=True)
class Row:
    """One figure of one run in three columns; None in a column that there is not."""

    name: str
    predicted: float
    counted: float
    measured: float | None
    reason: str | None  # why the GPU's figure is another one; None where nothing is known, or none is needed

    @property
    def apart(self) -> float:
        """How far the columns differ, relative to the largest."""
        known = [x for x in (self.predicted, self.counted, self.measured) if x is not None]
        return (max(known) - min(known)) / max(known) if max(known) else 0.0

    @property
    def flagged(self) -> bool:
        return self.apart > MOST_APART

    @property
    def explained(self) -> bool:
        """A formula that disagrees with the count has no excuse; the GPU may have a reason."""
        formula = Row(self.name, self.predicted, self.counted, None, None)
        return self.reason is not None and not formula.flagged

    def as_dict(self) -> dict[str, Any]:
        return {
            "row": self.name,
            "predicted": self.predicted,
            "counted": self.counted,
            "measured": self.measured,
            "apart": self.apart,
            "flagged": self.flagged,
            "reason": (self.reason if self.explained else "unexplained") if self.flagged else None,
        }


@dataclass(frozen=True)
class Block:
    """One run at one shape and mask."""

    run: Run
    rows: list[Row]

    @property
    def unexplained(self) -> list[Row]:
        return [row for row in self.rows if row.flagged and not row.explained]

    def as_dict(self) -> dict[str, Any]:
        return {
            "stage": self.run.label,
            "variant": self.run.variant,
            "measured": any(row.measured is not None for row in self.rows),
            "rows": [row.as_dict() for row in self.rows],
        }


def predicted(run: Run, shape: Shape, causal: bool, sm_count: int = EXAMPLE_SM_COUNT) -> Traffic:
    """The formula's column. Nothing runs, and no array's memory is touched."""
    return predict(run.stage, run.variant, stand_in_for(run.stage, shape, causal), sm_count)


def counted(run: Run, shape: Shape, causal: bool, sm_count: int = EXAMPLE_SM_COUNT) -> Traffic:
    """The simulator's or the CPU executor's column, on the inputs that are measured too."""
    found = count(run, shape, causal, np.random.default_rng(extracts.SEED), sm_count)
    if not found.right:
        raise RuntimeError(f"{run.label} at {shape} is wrong or racy, so its counts mean nothing")
    return Traffic.of_totals(found.totals())


def block(
    run: Run, predicted: Traffic, counted: Traffic, measured: Traffic | None, without: Collection[str] = ()
) -> Block:
    """The rows of one run, each with the reason that is known for its difference; `without`: those that were
    not measured.
    """
    rows = []
    for name, of in ROWS.items():
        keys = [(run.stage.key, variant, name) for variant in (str(run.variant), "*")]
        reason = next((REASONS[key] for key in keys if key in REASONS), None)
        known = None if measured is None or name in without else of(measured)
        rows.append(Row(name, of(predicted), of(counted), known, reason))
    return Block(run, rows)


def blocks(
    chosen: Sequence[Run],
    shape: Shape,
    causal: bool,
    extract: dict[str, Any] | None,
    progress: Progress | None = None,
) -> list[Block]:
    """One block per run, counted in a process per core; `extract` gives the measured column."""
    sm_count = extract["sm_count"] if extract else EXAMPLE_SM_COUNT
    to_count = [(*_named(run, shape, causal), sm_count) for run in chosen]

    def told(done: int, total: int, label: str) -> None:
        if progress:
            progress.count(f"counting at {shape}{' causal' if causal else ''}", done, total, label)

    names = {job[:2]: run.label for job, run in zip(to_count, chosen, strict=True)}
    # Starting processes takes longer than counting a few thousand scores.
    workers = 1 if shape.batch * shape.heads * shape.seq**2 <= FEW_SCORES else None
    found = pool.run(_count_one, to_count, workers, told, lambda job: names[job[:2]])
    return [
        block(run, predicted(run, shape, causal, sm_count), Traffic(**ours), *measured(run, extract))
        for run, ours in zip(chosen, found, strict=True)
    ]


def _named(run: Run, shape: Shape, causal: bool) -> tuple[str, str | None, str, bool]:
    """A job for another process."""
    return run.stage.key, run.variant, str(shape), causal


def _compile(stage: str, variant: str | None, shape: str, causal: bool, capability: tuple[int, int]) -> None:
    """Put the kernels of a run into the compiler's cache, where the process under ncu finds them."""
    run = Run(find_stage(stage), variant)
    registers(run, [stand_in_for(run.stage, parse(shape), causal)], capability)


def _count_one(stage: str, variant: str | None, shape: str, causal: bool, sm_count: int) -> dict[str, int]:
    return vars(counted(Run(find_stage(stage), variant), parse(shape), causal, sm_count))


def measured(run: Run, extract: dict[str, Any] | None) -> tuple[Traffic | None, tuple[str, ...]]:
    """What an extract says of a run, and the rows that it says nothing of; nothing where the extract is older
    than the search whose configuration the run has now.
    """
    known = profile.find(run, extract)
    if extract is None or known is None or _of_before(run, extract):
        return None, ()
    return Traffic(**known["traffic"]), () if "global_atomic_sectors" in known["traffic"] else (ATOMICS,)


def _of_before(run: Run, extract: dict[str, Any]) -> bool:
    if run.stage.number is None:  # of stages without a number no profile is kept
        return False
    problem = stand_in_for(run.stage, parse(extract["shape"]), extract["causal"])
    since = recorded.since(run.stage.number, problem, extract["sm_count"])
    return since is not None and extract["date"] < since


def where(
    extract: dict[str, Any] | None, shape: Shape, causal: bool, shown: Sequence[Run] | None = None
) -> str:
    """Where the measured column comes from; without one, where there is one. shown: the runs that a table
    has, None is all.
    """
    labels = None if shown is None else {run.label for run in shown}
    if extract is None:
        shapes = [f"{e['shape']}{' causal' if e['causal'] else ''}" for e in extracts.recorded()]
        return f"not at {shape}{' causal' if causal else ''}, but at {', '.join(shapes) or 'no shape'}"
    if shown and not any(measured(run, extract)[0] for run in shown):
        return "none of these"
    notes: dict[str, list[str]] = {}
    for run in extract["runs"]:
        label = Run(find_stage(run["stage"]), run["variant"]).label
        if (labels is None or label in labels) and (note := profile.special(run)):
            notes.setdefault(note, []).append(label)
    return "; ".join(
        [profile.provenance(extract), *(f"{', '.join(of)} {note}" for note, of in notes.items())]
    )


def served(stages: Iterable[Stage], shape: Shape, causal: bool) -> list[Run]:
    """The runs of these stages that serve the shape."""
    return runs([stage for stage in stages if stage.why_not(stand_in_for(stage, shape, causal)) is None])


def foretold(stages: Iterable[Stage]) -> tuple[list[Stage], list[str]]:
    """The stages that a formula predicts, and a sentence on the others."""
    able = [stage for stage in stages if stage.key in FORMULAS]
    others = [stage.label for stage in stages if stage.key not in FORMULAS]
    return able, [f"{', '.join(others)}: not reconciled, no formula predicts the traffic"] if others else []


def measure(chosen: Sequence[Run], shape: Shape, causal: bool) -> dict[str, Any]:
    """A fresh extract of these runs, which is not kept. Needs a GPU and ncu. Raises NsightError."""
    found = extracts.measure([extracts.Job(shape, causal, run) for run in chosen], SAVE_LIMIT)
    return extracts.extract(shape, causal, found)


def jobs_to_save(stages: Sequence[Stage]) -> list[extracts.Job]:
    """Every run of these stages at every shape of `SAVED`, and those of `QUOTED`."""
    of_all = [(text, causal, stages) for text, causal in SAVED]
    of_some = [
        (text, causal, [stage for stage in stages if stage.number in numbers])
        for text, causal, numbers in QUOTED
    ]
    return [job for text, causal, some in of_all + of_some for job in jobs(some, parse(text), causal)]


def jobs(stages: Iterable[Stage], shape: Shape, causal: bool) -> list[extracts.Job]:
    """Each run of these stages at a shape that it serves."""
    return [extracts.Job(shape, causal, run) for run in served(stages, shape, causal)]


def save(folder: Path, progress: Progress, chosen: Sequence[extracts.Job]) -> tuple[Path | None, list[str]]:
    """Measure these runs and write the extracts of their shapes and masks into `folder`.

    Returns their file, and a sentence for each thing that failed or was left out. Needs a GPU and ncu. The
    shapes of one head dimension share a session of ncu, so that each of Numba's kernels is compiled once.
    """
    by_head_dim: dict[int, list[extracts.Job]] = {}
    # A time limit cuts the end: what stages run by themselves comes first.
    for job in sorted(chosen, key=lambda job: not job.run.is_default):
        by_head_dim.setdefault(job.shape.head_dim, []).append(job)
    _compile_all(chosen, progress)
    first, *rest = by_head_dim.values()
    # A short session comes first: it finds out which metrics this ncu knows.
    sessions = [session for session in (first[:1], first[1:], *rest) if session]
    path, failed, found = None, list[str](), list[extracts.Measured]()
    todo, deadline = sum(map(len, sessions)), time.monotonic() + SAVE_LIMIT
    for session in sessions:
        limit = max(20.0, (deadline - time.monotonic()) * len(session) / todo)
        todo -= len(session)
        before = len(found)
        progress.step(f"ncu: {len(session)} runs from {session[0].shape} on, within {limit:.0f} s")
        try:
            extracts.measure(session, limit, launched=found.append)
        except NsightError as error:
            failed.append(f"from {session[0].shape} on: {error}")
        if (of := len(found) - before) < len(session):
            failed.append(f"from {session[0].shape} on: {of} of {len(session)} runs were measured")
        for shape, causal in dict.fromkeys((job.shape, job.causal) for job in chosen):
            if here := [m for m in found if (m.job.shape, m.job.causal) == (shape, causal)]:
                here.sort(key=lambda m: (extracts.in_order(m.as_dict()), m.job.run.is_default))
                path = extracts.save(extracts.extract(shape, causal, here), folder)
    return path, failed


def _compile_all(chosen: Iterable[extracts.Job], progress: Progress) -> None:
    """Compile CUDA C in as many processes as there are cores: the one under ncu takes it from the cache."""
    progress.step("compiling the kernels in CUDA C")
    capability = gpu.compute_capability()
    in_cuda_c = [job for job in chosen if job.run.stage.language == "CUDA C"]
    pool.run(_compile, [(*_named(job.run, job.shape, job.causal), capability) for job in in_cuda_c])


def table(found: Sequence[Block], title: str, width: int) -> tuple[Table, list[str]]:
    """The columns of every run, and the notes that the last column numbers. Rows of nothing are left out."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("", no_wrap=True)
    for name in ("predicted", "counted", "measured", "apart", "note"):
        shown.add_column(name, justify="right", overflow="fold")
    notes: list[str] = []
    for each in found:
        shown.add_section()
        shown.add_row(each.run.label, style="bold")
        for row in each.rows:
            values = [row.predicted, row.counted, row.measured]
            if not any(values):
                continue
            note = ""
            if row.flagged and row.explained:
                if row.reason not in notes:
                    notes.append(str(row.reason))
                note = str(notes.index(str(row.reason)) + 1)
            elif row.flagged:
                note = "unexplained"
            style = "red" if row.flagged and not row.explained else None
            apart = f"{row.apart:.1%}" if row.apart else ""
            shown.add_row(f" {row.name}", *map(_written, values), apart, note, style=style)
    noted = any(shown.columns[-1].cells)
    fit(shown, width, *(("apart",) if noted else ("note", "apart")))
    return shown, [f"{number}. {note}" for number, note in enumerate(notes, 1)]


def _written(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
