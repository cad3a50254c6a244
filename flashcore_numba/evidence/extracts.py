"""Runs of the ladder under Nsight Compute, and the extracts of such measurements that the repository keeps.

python -m flashcore_numba.evidence.extracts RECORD SECONDS JOBS   what runs under ncu: see `child`
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.evidence.nsight import (
    BY_INSTRUCTION,
    METRICS,
    Kernel,
    NsightError,
    Record,
    collect,
    version,
)
from flashcore_numba.predict import Traffic
from flashcore_numba.predict.formula import SECTOR
from flashcore_numba.records import environment, layout
from flashcore_numba.records.artifact import recorded_dir
from flashcore_numba.stages.runs import Run
from flashcore_numba.stages.stage import Stage

SEED = 2026  # of the inputs: a run is measured and counted on the same numbers
EXTRACTS = "nsight-*.json"
GRACE = 60  # seconds that ncu gets to write its report after the child's time is up


@dataclass(frozen=True)
class Job:
    """One run of the ladder to launch once."""

    shape: Shape
    causal: bool
    run: Run


@dataclass(frozen=True)
class Measured:
    """One run of the ladder: its launches, and the error of its output against float64."""

    job: Job
    kernels: list[Kernel]
    error: dict[str, Any]

    @property
    def traffic(self) -> Traffic:
        return sum((kernel.traffic for kernel in self.kernels if kernel.traffic), Traffic())

    def as_dict(self) -> dict[str, Any]:
        """The extract that the repository records."""
        return {
            "stage": name_of(self.job.run.stage),
            "variant": self.job.run.variant,
            "error": {name: self.error[name] for name in ("max", "right")},
            "traffic": {name: n for name, n in asdict(self.traffic).items() if name != "async_sectors"},
            "kernels": [_profile(kernel) for kernel in self.kernels],
        }


def name_of(stage: Stage) -> int | str:
    """What an extract calls a stage: its number, or its key off the spine."""
    return stage.key if stage.number is None else stage.number


def in_order(run: Mapping[str, Any]) -> tuple[bool, int, str]:
    """By which the runs of an extract are sorted: the spine, then the branches."""
    name = run["stage"]
    return (True, 0, name) if isinstance(name, str) else (False, name, "")


def _profile(kernel: Kernel) -> dict[str, Any]:
    of = kernel.figures

    def rounded(name: str, digits: int = 2) -> float | None:
        return None if name not in of else round(of[name], digits)

    top = sorted(kernel.stalls.items(), key=lambda item: -item[1])[:3]
    return {
        "name": kernel.name,
        "duration_us": round(of["duration_ns"] / 1e3, 3) if "duration_ns" in of else None,
        **{name: rounded(name) for name in METRICS if name.endswith("_pct")},
        "registers": int(of["registers"]) if "registers" in of else None,
        "instructions": int(of["instructions"]) if "instructions" in of else None,
        "l2_bytes": int(of["l2_sectors"] * SECTOR) if "l2_sectors" in of else None,
        "dram_read_bytes": int(of["dram_read"]) if "dram_read" in of else None,
        "dram_written_bytes": int(of["dram_written"]) if "dram_written" in of else None,
        "stalls": {reason: round(share, 4) for reason, share in top},
    }


def child(path: Path, seconds: float, jobs: Sequence[Job]) -> None:
    """Launch every job once, in order, and judge its output; begin none after so many seconds, because ncu
    writes a report only when this process ends by itself. Needs a GPU.
    """
    import cupy

    from flashcore_numba.checks.forward import operation
    from flashcore_numba.checks.truth import truth
    from flashcore_numba.run.executor import Gpu

    class Noting(Gpu):
        def __init__(self) -> None:
            super().__init__()
            self.kernels: list[str] = []

        def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
            super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
            self.kernels.append(kernel.py_func.__name__ if hasattr(kernel, "py_func") else kernel.entry)

    begun, record, last = time.monotonic(), Record(path), None
    for job in jobs:
        if time.monotonic() - begun > seconds:
            break
        of = operation(job.run.stage)
        if (of, job.shape, job.causal) != last:
            last = of, job.shape, job.causal
            host = of.draw(job.shape, job.causal, np.random.default_rng(SEED))
            problem = host.problem({name: cupy.asarray(x) for name, x in host.arrays.items()})
            right = truth(of, host, np.random.default_rng(SEED))
        executor = Noting()
        # Not cupy.full: filling is a kernel too.
        outputs = job.run.stage.allocate(
            problem, lambda shape, dtype: cupy.asarray(np.full(shape, np.nan, dtype)), optional=False
        )
        try:
            job.run.stage.launch(problem, executor=executor, variant=job.run.variant, **outputs)
            judged = right.judge([{name: cupy.asnumpy(each) for name, each in outputs.items()}])
        except Exception as error:  # whatever it is: the other runs can still be measured
            record.add(executor.kernels, failed=f"{type(error).__name__}: {error}")
        else:
            record.add(executor.kernels, error=judged)


def _pack(jobs: Iterable[Job]) -> str:
    return json.dumps([[str(j.shape), j.causal, j.run.stage.key, j.run.variant] for j in jobs])


def _unpack(text: str) -> list[Job]:
    from flashcore_numba.branches.find import find

    return [
        Job(parse(shape), causal, Run(find(stage), variant))
        for shape, causal, stage, variant in json.loads(text)
    ]


def measure(
    jobs: Sequence[Job],
    limit: float,
    report: Path | None = None,
    sections: Sequence[str] = BY_INSTRUCTION,
    launched: Callable[[Measured], None] = lambda measured: None,
) -> list[Measured]:
    """Every job under ncu, in one session of at most `limit` seconds: those that there was time for.

    `launched` is told each of them. Raises NsightError when something went wrong, at the end.
    """
    found, wrong = [], dict[str, list[str]]()
    with tempfile.TemporaryDirectory() as scratch:
        record = Path(scratch, "record.json")
        launches = collect(command(record, limit, jobs), record, limit + GRACE, (), sections, report)
        try:
            for job, (step, kernels) in zip(jobs, launches, strict=False):
                counted = all(kernel.traffic is not None for kernel in kernels)
                reason = step.get("failed") or (None if counted else "ncu counted nothing by instruction")
                if reason is not None:
                    wrong.setdefault(reason, []).append(f"{job.run.label} at {job.shape}")
                    continue
                found.append(Measured(job, kernels, step["error"]))
                launched(found[-1])
        except NsightError as error:
            wrong.setdefault(str(error), [])
    if wrong:
        told = (": ".join([", ".join(runs), reason] if runs else [reason]) for reason, runs in wrong.items())
        raise NsightError("; ".join(told))
    return found


def command(record: Path, seconds: float, jobs: Iterable[Job]) -> list[str]:
    """The child that launches these jobs; see `child`."""
    return [sys.executable, "-m", __name__, str(record), str(seconds), _pack(jobs)]


def extract(shape: Shape, causal: bool, runs: Sequence[Measured]) -> dict[str, Any]:
    """What the repository records of one shape and mask: where it was measured, and every run.

    Needs a GPU.
    """
    gpu = environment.gpu()
    commit, dirty = environment.commit()
    return {
        "shape": str(shape),
        "causal": causal,
        "date": environment.today(),
        "commit": commit,
        "dirty": dirty,
        "gpu": gpu["name"],
        "sm_count": gpu["sm_count"],
        "driver": gpu["driver"],
        "ncu": version(),
        "seed": SEED,
        "runs": [run.as_dict() for run in runs],
    }


def save(fresh: dict[str, Any], folder: Path) -> Path:
    """Put an extract into the file of its GPU, in the place of a former one of its shape and mask, whose runs
    that were not measured again stay, with their own date and commit.
    """
    name = re.sub("[^a-z0-9]+", "-", fresh["gpu"].lower().replace("nvidia", "")).strip("-")
    path = folder / EXTRACTS.replace("*", name)
    extracts, at = [e for e in recorded(folder) if e["gpu"] == fresh["gpu"]], _place(fresh)
    former: dict[str, Any] = next((e for e in extracts if _place(e) == at), {"runs": []})
    again = {(run["stage"], run["variant"]) for run in fresh["runs"]}
    kept = [
        {"date": former["date"], "commit": former["commit"], **run}
        for run in former["runs"]
        if (run["stage"], run["variant"]) not in again
    ]
    runs = sorted([*kept, *fresh["runs"]], key=in_order)
    extracts = [e for e in extracts if _place(e) != at] + [{**fresh, "runs": runs}]
    folder.mkdir(parents=True, exist_ok=True)
    layout.save({"extracts": extracts}, path, "runs")
    return path


def _place(extract: dict[str, Any]) -> tuple[str, bool]:
    return extract["shape"], extract["causal"]


def recorded(folder: Path | None = None) -> list[dict[str, Any]]:
    """What was measured before: one extract a shape and mask, see `extract`. Raises ArgumentError when a
    file is damaged.
    """
    found = []
    for path in sorted((folder or recorded_dir()).glob(EXTRACTS)):
        try:
            found += json.loads(path.read_text())["extracts"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ArgumentError(f"{path}: is not a file of measured extracts ({error})") from None
    return found


def find(shape: Shape, causal: bool, among: Iterable[dict[str, Any]] | None = None) -> dict[str, Any] | None:
    """The extract of a shape and mask, or None where it was not measured."""
    known = recorded() if among is None else among
    return next((e for e in known if (e["shape"], e["causal"]) == (str(shape), causal)), None)


if __name__ == "__main__":
    child(Path(sys.argv[1]), float(sys.argv[2]), _unpack(sys.argv[3]))
