"""The roofline of a GPU in units of time: how long each of its units needs for each run, and which limits.

What a run asks of the units follows from the problem and from the predicted traffic; what they can do are the
`Ceilings` of the GPU. Times of the runs are recorded or measured, and never computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table

from cuda_reference.source import Source
from flashcore_numba.calls import refuse
from flashcore_numba.checks.forward import operation
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.core.shapes import Shape, parse
from flashcore_numba.core.workload import PAGE
from flashcore_numba.core.wrapping import Idle
from flashcore_numba.evidence import extracts, profile
from flashcore_numba.predict import FORMULAS, predict
from flashcore_numba.predict.formula import SECTOR
from flashcore_numba.predict.limits import DATA_SHEETS, Ceilings, DataSheet, ceilings_of, units_us
from flashcore_numba.predict.occupancy import Occupancy, of_kernel
from flashcore_numba.records import artifact as artifacts
from flashcore_numba.records.amounts import percent, provenance, short_us
from flashcore_numba.run.progress import Progress
from flashcore_numba.run.registers import like, registers, stand_in_for, why_not
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import Run, runs

UNITS = {
    "fp32": "CUDA cores",
    "tensor": "tensor cores",
    "exp": "exponentials",
    "l1": "L1 and shared memory",
    "l2": "L2",
    "dram": "device memory",
    "launch": "launch",
}
SHORT = UNITS | {"exp": "exp", "l1": "L1, shared", "dram": "DRAM"}
WAVEFRONT = 128  # bytes
UNITS_WIDTH = 125  # columns of a terminal that show each unit's time
# Nsight Compute speaks of latency where no unit reaches 60 % of its peak. Here only what a run needs is
# counted, neither the masked part of a tile nor an instruction that computes an address: so less.
LATENCY = 0.4
WGMMA = (9, 0)  # stages for older GPUs reach the tensor cores through mma.sync, a lower ceiling
WGMMA_FROM = min(stage.place for stage in LADDER if stage.compute_capability >= WGMMA)
SPLIT = {
    "wmma_qk": {"tensor": 0.5, "fp32": 0.5},  # Q.K^T on tensor cores, P.V on CUDA cores
    "pages": {"fp32": 1.0},  # which norms, rotates and writes rows, and has no products
}
"""What does the multiply-adds of a stage, by its name, where not all of them are in its kernels' one unit."""


@dataclass(frozen=True)
class Row:
    """One run of a ladder. stage: its number, None off the spine. units_us: the time that each of `UNITS`
    needs, as far as it is known. mma_sync: whether it would reach tensor cores through mma.sync.

    l2_measured: whether the L2's bytes were measured; predicted ones are an upper bound, because the L1 and
    neighbouring SMs share some of them, and never the limiter. gpu_us: the run's own time, or None. flops: of
    the visible pairs. dram_bytes, l1_bytes, l2_bytes: what the units' times follow from; of the L1 without
    the operands that wgmma reads there; 0 where no formula predicts them. occupancy: blocks per SM, their
    share of its warps and what allows no more, one item a kernel; or None.
    """

    label: str
    stage: int | None
    variant: str | None
    default: bool
    units_us: dict[str, float]
    l2_measured: bool
    gpu_us: float | None
    flops: float
    dram_bytes: int
    l1_bytes: int
    l2_bytes: int
    mma_sync: bool = False
    occupancy: list[Occupancy] | None = None

    @property
    def busiest(self) -> str | None:
        """The unit that needs most time."""
        known = {unit: us for unit, us in self.units_us.items() if unit != "l2" or self.l2_measured}
        return max(known, key=lambda unit: known[unit]) if known else None

    @property
    def share(self) -> float | None:
        """The busiest unit's part of the measured time."""
        if self.gpu_us is None or self.busiest is None:
            return None
        return self.units_us[self.busiest] / self.gpu_us

    @property
    def limiter(self) -> str | None:
        """The busiest unit; "latency" where a measured time shows that even that one mostly waits."""
        return "latency" if self.share is not None and self.share < LATENCY else self.busiest

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"limiter": self.limiter, "busiest": self.busiest, "share": self.share}


class _Launches(Idle):
    """An executor that runs nothing and counts the launches.

    wgmma: whether a file of a kernel launched speaks of wgmma, as those that use it do.
    """

    count = 0
    wgmma = False

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.count += 1
        self.wgmma |= isinstance(kernel, Source) and "wgmma" in kernel.text()


def _row(
    run: Run, problem: Any, executor: _Launches, ceilings: Ceilings, gpu_us: float | None, l2: int | None
) -> Row:
    variant = run.stage.fitting(problem.head_dim, run.variant, executor.shared_limit)
    run.stage.run(problem, executor, run.variant, np.empty, optional=False)
    l1_bytes, l2_bytes = 0, l2 or 0
    if run.stage.key in FORMULAS:
        traffic = predict(run.stage, variant, problem, executor.sm_count)
        sectors = traffic.global_load_sectors + traffic.global_store_sectors
        wavefronts = traffic.shared_load_wavefronts + traffic.shared_store_wavefronts
        # An asynchronous copy passes through the L1 once, and is among the wavefronts.
        l1_bytes = (sectors - traffic.async_sectors) * SECTOR + wavefronts * WAVEFRONT
        l2_bytes = (sectors + traffic.global_atomic_sectors) * SECTOR if l2 is None else l2
    multiplies = SPLIT.get(run.stage.name, {run.unit: 1.0})
    mma_sync = not executor.wgmma
    if mma_sync and ceilings.mma_sync_tflops:
        ceilings = replace(ceilings, tensor_tflops=ceilings.mma_sync_tflops)
    return Row(
        label=run.label,
        stage=run.stage.number,
        variant=run.variant,
        default=run.is_default,
        units_us=units_us(problem, multiplies, l1_bytes, l2_bytes, executor.count, ceilings),
        l2_measured=l2 is not None,
        gpu_us=gpu_us,
        flops=problem.flops,
        dram_bytes=problem.min_bytes,
        l1_bytes=l1_bytes,
        l2_bytes=l2_bytes,
        mma_sync=mma_sync,
    )


def _rows(
    chosen: Sequence[Run],
    shape: Shape,
    causal: bool,
    ceilings: Ceilings,
    sm_count: int,
    times: Mapping[str, float],
    gpu: str,
    capability: tuple[int, int],
) -> tuple[list[Row], list[str]]:
    """One row for each run that the GPU and the shape allow, and why the others not. times: by label."""
    extract = extracts.find(shape, causal, [e for e in extracts.recorded() if e["gpu"] == gpu])
    room = shared_limit(capability)
    found, refused = [], []
    for run in chosen:
        if lacks := run.stage.why_not_on(capability):
            refused.append(f"{run.label}: {lacks}")
            continue
        problem = stand_in_for(run.stage, shape, causal)
        try:
            refuse(run.stage, problem)
        except UnsupportedError as error:
            refused.append(f"{run.label}: {error}")
            continue
        if lacks := run.stage.why_not_in(room, shape.head_dim, run.variant):
            refused.append(f"{run.label}: {lacks}")
            continue
        kernels = (profile.find(run, extract) or {"kernels": []})["kernels"]
        l2 = [kernel["l2_bytes"] for kernel in kernels]
        bytes_read = sum(l2) if l2 and None not in l2 else None
        executor = _Launches(sm_count, room)
        found.append(_row(run, problem, executor, ceilings, times.get(run.label), bytes_read))
    return found, refused


def rows(artifact: Mapping[str, Any], shape: Mapping[str, Any]) -> list[Row]:
    """The rows of the stages that an artifact timed at one of its shapes."""
    times = {e["label"]: e["gpu_us"]["p50"] for e in shape["entries"] if e["kind"] == "stage"}
    chosen = [run for run in runs(LADDER) if run.label in times]
    gpu = artifact["gpu"]
    at = parse(shape["shape"]), shape["causal"]
    capability = tuple(gpu["compute_capability"])
    return _rows(chosen, *at, ceilings_of(artifact), gpu["sm_count"], times, gpu["name"], capability)[0]


@dataclass(frozen=True)
class Roofline:
    """What `flashcore roofline` shows. operation: what the runs compute, by name. about: where the times are
    from, or why there are none. refused: why runs are not among the rows. record: the artifact.
    """

    operation: str
    gpu: str
    shape: Shape
    causal: bool
    ceilings: Ceilings
    about: str
    rows: list[Row]
    refused: list[str]
    record: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "gpu": self.gpu,
            "shape": str(self.shape),
            "causal": self.causal,
            "ceilings": asdict(self.ceilings),
            "about": self.about,
            "latency_below": LATENCY,
            "rows": [row.as_dict() for row in self.rows],
            "refused": self.refused,
        }

    @property
    def _title(self) -> str:
        return artifacts.shape_title({"shape": str(self.shape), "causal": self.causal}, self.operation)

    def table(self, width: int) -> Table:
        """The units' times of every run, its limiter and that unit's share of the time."""
        table = Table(
            title=f"{self._title}: what each unit of {self.gpu} needs",
            caption=self._caption(),
            title_justify="left",
            caption_justify="left",
        )
        table.add_column("", no_wrap=True)
        units = [unit for unit in UNITS if any(unit in row.units_us for row in self.rows)]
        for name in ["GPU p50", *(SHORT[unit] for unit in units if width >= UNITS_WIDTH)]:
            table.add_column(name, justify="right")
        table.add_column("limiter", no_wrap=True)
        table.add_column("its share", justify="right", no_wrap=True)
        occupied = any(row.occupancy for row in self.rows)
        if occupied:
            table.add_column("blocks per SM")
        for row in self.rows:
            cells = [short_us(row.gpu_us)]
            if width >= UNITS_WIDTH:
                cells += [_unit(row, unit) for unit in units]
            limiter = SHORT.get(row.limiter or "", row.limiter or "-")
            if row.gpu_us is None:
                cells += [f"at best {limiter}", "not measured"]
            else:
                cells += [limiter, percent(row.share)]
            table.add_row(row.label, *cells, *([_blocks(row)] if occupied else []))
        return table

    def _caption(self) -> str:
        sentences = [
            f"Microseconds. {self.about} Units: {self.ceilings.source}.",
            "DRAM: inputs and outputs once, which a warm L2 may save.",
        ]
        tensor = [row for row in self.rows if "tensor" in row.units_us]
        slower = [row for row in tensor if row.mma_sync]
        if self.ceilings.mma_sync_tflops and slower:
            which = f" before stage {WGMMA_FROM}"
            if len(slower) == len(tensor):
                which = ""
            elif self.operation != artifacts.FORWARD:
                faster = {_stage(row) for row in tensor if not row.mma_sync}
                named = [_stage(row) if _stage(row) not in faster else row.label for row in slower]
                which = f" of {', '.join(dict.fromkeys(named))}"
            sentences.append(f"Tensor cores{which}: as fast as mma.sync drives them.")
        if any(row.gpu_us for row in self.rows):
            sentences.append(
                "Share: what the limiter needs at its ceiling, over the GPU time. Latency: no unit reaches "
                f"{LATENCY:.0%}, so that waiting takes most of the time."
            )
        if any("l2" in row.units_us and not row.l2_measured for row in self.rows):
            sentences.append("≤: by the sectors asked for, some of which never get to the L2; no limiter.")
        if any(row.occupancy for row in self.rows):
            sentences.append(
                "Blocks per SM: of each kernel, with its share of the warps and what allows no more."
            )
        return " ".join(sentences)


def _stage(row: Row) -> str:
    return row.label.split()[0]


def _unit(row: Row, unit: str) -> str:
    bound = "≤ " if unit == "l2" and not row.l2_measured else ""
    return bound + short_us(row.units_us[unit]) if unit in row.units_us else "-"


def _blocks(row: Row) -> str:
    return "; ".join(map(str, row.occupancy or []))


def budget(row: Row) -> str:
    """The units' parts of a run's time in one line: `12 mma_sync: 7.30 us: L1 and shared memory 31%, ...`."""
    if row.gpu_us is None:
        return f"{row.label}: not measured"
    ordered = sorted(row.units_us.items(), key=lambda item: -item[1])
    parts = ", ".join(
        f"{UNITS[unit]} {'≤ ' if unit == 'l2' and not row.l2_measured else ''}{percent(us / row.gpu_us)}"
        for unit, us in ordered
    )
    return f"{row.label}: {short_us(row.gpu_us)} us: {parts}"


def source(name: str | None, here: str | None = None) -> str | DataSheet:
    """The GPU to show: a recorded one's name, or a data sheet.

    name: part of a name, small or large letters, or None: `here`, the GPU of this machine, else the newest
    recorded one. Raises ArgumentError.
    """
    records = artifacts.recorded()
    recorded = list(dict.fromkeys(record["gpu"]["name"] for _, record in records))
    if name is None:
        if here is None and not recorded:
            raise ArgumentError("--gpu: nothing is recorded, so a name is needed: " + _names(recorded))
        return here or recorded[0]
    known: list[str | DataSheet] = [*([here] if here else []), *recorded, *DATA_SHEETS]
    for each in known:
        words = (each if isinstance(each, str) else each.name).lower().split()
        if name.split() and all(word in words for word in name.lower().split()):
            return each
    raise ArgumentError(f"--gpu {name!r}: known are {_names(recorded)}")


def _names(recorded: Sequence[str]) -> str:
    return ", ".join([*recorded, *(sheet.name for sheet in DATA_SHEETS)])


def is_recorded(gpu: str, chosen: Sequence[Run], shape: Shape, causal: bool) -> bool:
    """Whether an artifact of this GPU has a time of one of the runs at this shape."""
    labels, of = {run.label for run in chosen}, operation(chosen[0].stage).name
    return any(labels & _times(record, shape, causal).keys() for record in records(of, gpu))


def of_record(
    gpu: str,
    chosen: Sequence[Run],
    shape: Shape,
    causal: bool,
    record: dict[str, Any] | None = None,
) -> Roofline:
    """Of a GPU with artifacts. record: the one to take; by default the recorded one that timed most of the
    runs at the shape, among equals one of the whole ladder, then one with ceilings, then the newest.
    """
    labels, of = {run.label for run in chosen}, operation(chosen[0].stage).name
    if record is None:
        # Of the forward pass too: where nothing else was measured it has the ceilings.
        names = dict.fromkeys((of, artifacts.FORWARD))
        own = [found for name in names for found in records(name, gpu)]
        record = max(
            own,
            key=lambda found: (
                len(labels & _times(found, shape, causal).keys()),
                found["label"] is None,
                found["ceilings"] is not None,
            ),
        )
    times = _times(record, shape, causal)
    timed = labels & times.keys()
    mask = " --causal" if causal else ""
    option = "" if of == artifacts.FORWARD else f" --operation {of}"
    slow = _throttled(record, shape, causal) & timed
    about = (
        f"GPU p50: of a launch in a CUDA graph, {provenance(record)}."
        + (f" Throttled, unlike the units: {_all_or(slow, timed)}." if slow else "")
        if timed
        else f"No times are recorded: on a GPU, flashcore compare{option} --shape {shape}{mask} measures "
        "them."
    )
    ceilings = ceilings_of(record)
    capability = tuple(record["gpu"]["compute_capability"])
    found, refused = _rows(chosen, shape, causal, ceilings, record["gpu"]["sm_count"], times, gpu, capability)
    return Roofline(of, gpu, shape, causal, ceilings, about, found, refused, record)


def records(operation: str, gpu: str | None = None) -> list[dict[str, Any]]:
    """The recorded runs of an operation, on one GPU where it is named: those that tables and pictures are of,
    then all with all their workloads.
    """
    whole = artifacts.recorded_whole()
    every = [pair for pair in whole if artifacts.operation_of(pair[1]) == operation]
    found = [record for _, record in [*artifacts.in_type(whole, operation=operation), *every]]
    return [record for record in found if gpu in (None, record["gpu"]["name"])]


def measured_at(record: dict[str, Any], shape: Shape, causal: bool) -> dict[str, Any] | None:
    """The results in float16 without features, and of a cache with pages of the usual size, or None. Lengths
    of a ragged batch are the shape's.
    """
    wanted = artifacts.shape_key({"shape": str(shape), "causal": causal})
    for each in record["shapes"]:
        features = {name: value for name, value in each.get("features", {}).items() if name != "lengths"}
        if features.get("page") == PAGE:
            del features["page"]
        if artifacts.shape_key(each | {"features": features}) == wanted:
            return each
    return None


def _times(record: dict[str, Any], shape: Shape, causal: bool) -> dict[str, float]:
    """Microseconds by label."""
    found = measured_at(record, shape, causal)
    return {e["label"]: e["gpu_us"]["p50"] for e in found["entries"]} if found else {}


def _throttled(record: dict[str, Any], shape: Shape, causal: bool) -> set[str]:
    """Labels of the entries whose clocks were held back."""
    found = measured_at(record, shape, causal)
    return {e["label"] for e in found["entries"] if e["throttled"]} if found else set()


def _all_or(some: set[str], every: set[str]) -> str:
    return "all of them" if some == every else ", ".join(sorted(some))


def of_data_sheet(
    sheet: DataSheet, chosen: Sequence[Run], shape: Shape, causal: bool, progress: Progress | None = None
) -> Roofline:
    """Of a GPU without a run of the ladder: what its data sheet allows, and how many blocks an SM holds."""
    ceilings = sheet.ceilings()
    capability = sheet.compute_capability
    found, refused = _rows(chosen, shape, causal, ceilings, sheet.sm_count, {}, sheet.name, capability)
    by_label = {run.label: run for run in chosen}
    for k, row in enumerate(found):
        run = by_label[row.label]
        if why_not(run.stage):
            continue
        if progress:
            progress.step(f"compiling {row.label}")
        problem = stand_in_for(run.stage, shape, causal)
        kernels = registers(run, like(run.stage, problem), capability, sheet.sm_count)
        held = [of_kernel(capability, kernel) for kernel in kernels or []]
        found[k] = replace(row, occupancy=[each for each in held if each] or None)
    of, about = operation(chosen[0].stage).name, "No run of the ladder is recorded for this GPU."
    return Roofline(of, sheet.name, shape, causal, ceilings, about, found, refused)
