"""Nsight Compute: runs its `ncu` over a process of ours, and reads what the GPU counted, launch by launch.

Global requests and the sectors of loads are the L1 cache's own counters, an asynchronous copy being a load
there as in `traffic.Traffic`; sectors that TMA moves have counters of their own. The rest is summed over the
instructions of the machine code: copies by TMA; sectors of stores, which the cache's counter gives with an
error of several percent for a short kernel; shared wavefronts, to tell a store from an asynchronous copy;
bank conflicts, to tell them from waiting; barriers.
"""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashcore_numba.predict import Traffic
from flashcore_numba.predict.formula import LANES

STALLS = "smsp__pcsamp_warps_issue_stalled_"
METRICS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum",),
    "tensor_pct": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",),
    # Which one there is depends on the architecture; the first leaves out HFMA2, which shares the pipe.
    "tensor_busy_pct": (
        "sm__pipe_tensor_op_hmma_type_hmma_hgmma_qgmma_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "xu_pct": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",),
    "issue_pct": ("sm__issue_active.avg.pct_of_peak_sustained_elapsed",),
    "l2_pct": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_pct": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "registers": ("launch__registers_per_thread",),
    "l2_sectors": ("lts__t_sectors_srcunit_tex.sum",),
    "dram_read": ("dram__bytes_read.sum",),
    "dram_written": ("dram__bytes_write.sum",),
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "tma_load_sectors": ("l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",),
    "tma_store_sectors": ("l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",),
    "instructions": ("inst_executed",),
}
"""What is read of every launch: a name, and the metrics of ncu that give it, the first that there is."""

BY_INSTRUCTION = ("--section", "SourceCounters", "--import-source", "no")
UNITS = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "us": 1e3, "ms": 1e6, "s": 1e9, "usecond": 1e3}


class NsightError(RuntimeError):
    """ncu is not there, ended badly, or told something else than was launched: one sentence."""


@dataclass(frozen=True)
class Kernel:
    """One launch. `figures` are those of `METRICS`, without what ncu did not give; `stalls` the share of
    the warps' samples by reason; `traffic` is None where nothing was counted by instruction.
    """

    name: str
    figures: dict[str, float]
    stalls: dict[str, float] = field(default_factory=dict)
    traffic: Traffic | None = None
    row: dict[str, float] = field(default_factory=dict, repr=False)  # every number of the raw page


class Record:
    """The child's side of `collect`: a file that says after every step what has been launched so far."""

    def __init__(self, path: Path):
        self.path, self.steps = path, list[dict[str, Any]]()

    def add(self, kernels: list[str], **more: Any) -> None:
        self.steps.append({"kernels": kernels, **more})
        self.path.write_text(json.dumps(self.steps))


# Running ncu


def find_tool(name: str) -> str | None:
    """The path of `ncu` or `nsys`; None when it is not installed."""
    places = (
        f"usr/local/cuda*/bin/{name}",
        f"opt/nvidia/nsight-*/*/{name}",
        f"opt/nvidia/nsight-*/*/bin/{name}",
    )
    found = shutil.which(name)
    newest = (path for place in places for path in sorted(Path("/").glob(place), reverse=True))
    return found or next(map(str, newest), None)


def why_not() -> str | None:
    """Why nothing can be profiled here, in one sentence; None when it can."""
    from flashcore_numba.core import gpu

    if (reason := gpu.why_not()) is not None:
        return reason
    return None if find_tool("ncu") else "ncu (Nsight Compute, of the CUDA toolkit) is not installed"


def version() -> str:
    """ncu's: `2025.3.1.0`, or "unknown"."""
    tool = find_tool("ncu")
    said = run_limited([tool, "--version"], 20)[0] if tool else ""
    found = re.search(r"[Vv]ersion ([\d.]+\d)", said)
    return found[1] if found else "unknown"


def run_limited(command: Sequence[str], limit: float) -> tuple[str, int | None]:
    """Output and exit status; status None when the limit ended the process and its children."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=max(1, limit))[0], process.returncode
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


def collect(
    command: Sequence[str],
    record: Path,
    limit: float,
    metrics: Iterable[str] = (),
    sections: Sequence[str] = BY_INSTRUCTION,
    report: Path | None = None,
) -> Iterator[tuple[dict[str, Any], list[Kernel]]]:
    """Run a command of ours under ncu: for each step that it wrote into `record` (see `Record`) the step
    and its launches. The report stays where `report` says. Raises NsightError.

    A metric that this ncu does not know is left out. `limit` is in seconds, for ncu and all its reading.
    """
    ncu, deadline = find_tool("ncu"), time.monotonic() + limit
    if ncu is None:
        raise NsightError("ncu (Nsight Compute) is not installed")
    asked = list(metrics) or [name for names in METRICS.values() for name in names]
    with tempfile.TemporaryDirectory() as scratch:
        file = report or Path(scratch, "report.ncu-rep")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # or a former report would pass for this one
        for _ in range(2):
            # The clocks stay as they are: what the GPU does by itself is what is timed elsewhere too.
            options = ["--clock-control", "none", "--target-processes", "all", *sections]
            known = ",".join(name for name in asked if name not in _UNKNOWN)
            options += ["--metrics", known, "--force-overwrite", "--export", str(file)]
            said, status = run_limited([ncu, *options, *command], deadline - time.monotonic())
            unknown = _unknown(said, asked) - _UNKNOWN
            if file.exists() or not unknown:
                break
            _UNKNOWN.update(unknown)
        if not file.exists():
            raise NsightError(_complaint(said, status))
        raw = read_raw(_page(ncu, file, "raw", deadline))
        tables = read_source(_page(ncu, file, "source", deadline)) if sections else []
    steps = json.loads(record.read_text()) if record.exists() else []
    yield from match(steps, raw, tables)
    if status != 0:
        raise NsightError(_complaint(said, status))


def _page(ncu: str, report: Path, page: str, deadline: float) -> str:
    command = [ncu, "--import", str(report), "--page", page, "--csv", "--print-units", "base"]
    text, status = run_limited(command, deadline - time.monotonic())
    if status != 0:
        raise NsightError(_complaint(text, status))
    return text


_UNKNOWN: set[str] = set()  # metrics that this machine's ncu refused


def _unknown(said: str, asked: Iterable[str]) -> set[str]:
    lines = [
        line for line in said.splitlines() if re.search("(?i)(failed to find|unknown|invalid) metric", line)
    ]
    names = set(re.findall(r"\w+", " ".join(lines)))
    return {name for name in asked if name.partition(".")[0] in names}


def _complaint(said: str, status: int | None) -> str:
    if "ERR_NVGPUCTRPERM" in said:
        return (
            "the driver lets only the administrator read the GPU's counters (ERR_NVGPUCTRPERM): run as root, "
            "or load the driver's module with NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line for line in lines if not line.startswith("==")]  # the rest is ncu's
    told = [*(line for line in lines if line.startswith("==ERROR==")), *ours[-2:]] or ["nothing"]
    ended = "was stopped at its time limit" if status is None else f"ended with status {status}"
    return f"ncu {ended}, saying: {' / '.join(told)[:600]}"


# Reading ncu's pages


def read_raw(text: str) -> list[dict[str, Any]]:
    """`--page raw --csv`: a dictionary a launch, in order. Numbers are in bytes, nanoseconds, percent or
    counts; under "Kernel Name" the name. Raises NsightError.
    """
    rows = list(csv.reader(_from(text, '"ID"')))
    if len(rows) < 2:
        raise NsightError("ncu's report holds no launch")
    names, units = rows[0], rows[1]
    found = []
    for row in rows[2:]:
        if not row or not row[0].isdigit():
            continue
        launch: dict[str, Any] = {"Kernel Name": row[names.index("Kernel Name")]}
        for name, unit, cell in zip(names, units, row, strict=False):
            if (value := number(cell)) is not None:
                launch[name] = value * UNITS.get(unit, 1)
        found.append(launch)
    return found


EXECUTED, WAVES, IDEAL = "Instructions Executed", "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal"
SECTORS = "L2 Theoretical Sectors Global"
THREADS = "Predicated-On Thread Instructions Executed"
ATOMICS = ("REDG", "RED.", "ATOMG", "ATOM.")  # on global memory
COLUMNS = ("Source", EXECUTED, THREADS, WAVES, IDEAL, SECTORS)


@dataclass(frozen=True)
class Table:
    """One launch of the source page: kernel, and for each instruction the `COLUMNS`."""

    kernel: str
    lines: list[dict[str, str]]

    def total(self, column: str, *opcodes: str) -> int:
        """The sum of a column over instructions whose opcode begins with one of these; over all, if none."""
        return sum(
            int(number(line.get(column)) or 0)
            for line in self.lines
            if not opcodes or opcode(line["Source"]).startswith(opcodes)
        )

    def whole_warps(self, *opcodes: str) -> int:
        """Executions by all 32 lanes: `EXECUTED` counts a warp too whose predicate is off in every lane."""
        return self.total(THREADS, *opcodes) // LANES


def read_source(text: str) -> list[Table]:
    """`--page source --csv`: a table a launch, in order; ncu may print one twice."""
    tables: list[Table] = []
    columns: list[str] = []
    for row in csv.reader(_from(text, '"Kernel Name"')):
        if row and row[0] == "Kernel Name":
            tables.append(Table(row[1], []))
        elif row and row[0] == "Address":
            columns = row
        elif row and row[0].startswith("0x"):
            cells = zip(columns, row, strict=False)
            tables[-1].lines.append({name: cell for name, cell in cells if name in COLUMNS})
    return tables


def opcode(source: str) -> str:
    """`LDS.128` of `@!P0 LDS.128 R4, [R2]`."""
    words = source.split()
    return words[1] if words[0].startswith("@") and len(words) > 1 else words[0]


def number(cell: str | None) -> float | None:
    """The number in a cell of a table; None where there is none."""
    text = (cell or "").replace(",", "")
    try:
        return float(text)
    except ValueError:
        return None


def _from(text: str, first: str) -> list[str]:
    """The lines from the first that begins so: before it ncu may say something."""
    lines = text.splitlines()
    return lines[next((n for n, line in enumerate(lines) if line.startswith(first)), len(lines)) :]


def match(
    steps: Sequence[dict[str, Any]], raw: Sequence[dict[str, Any]], tables: Sequence[Table]
) -> Iterator[tuple[dict[str, Any], list[Kernel]]]:
    """Give each step its launches, in order. Raises NsightError when ncu saw another kernel.

    The tables are those of the launches, in order, some of them twice: a launch takes the next one of its
    name and its number of instructions. Without one its kernel has no traffic.
    """
    position, at = 0, 0
    for step in steps:
        mine = raw[position : position + len(step["kernels"])]
        if len(mine) < len(step["kernels"]):
            return  # ended by the time limit
        position += len(mine)
        kernels = []
        for name, row in zip(step["kernels"], mine, strict=True):
            if name not in row["Kernel Name"]:
                raise NsightError(f"ncu saw {row['Kernel Name']} where {name} was launched")
            key = row.get("inst_executed")
            here = (n for n in range(at, len(tables)) if name in tables[n].kernel)
            found = next((n for n in here if tables[n].total(EXECUTED) == key), None)
            table = None if found is None else tables[found]
            at = at if found is None else found + 1
            kernels.append(kernel(name, row, table))
        yield step, kernels


def kernel(name: str, row: dict[str, Any], table: Table | None) -> Kernel:
    """One launch, from its row of the raw page and its table of the source page."""
    numbers = {metric: value for metric, value in row.items() if metric != "Kernel Name"}
    figures = {}
    for figure, metrics in METRICS.items():
        if (known := next((numbers[metric] for metric in metrics if metric in numbers), None)) is not None:
            figures[figure] = known
    samples = {
        metric.removeprefix(STALLS): count
        for metric, count in numbers.items()
        if metric.startswith(STALLS) and not metric.endswith("not_issued")
    }
    everything = sum(samples.values())
    stalls = {
        reason: count / everything for reason, count in samples.items() if reason != "selected" and count
    }
    return Kernel(name, figures, stalls, _traffic(figures, table) if table else None, numbers)


def _traffic(figures: dict[str, float], table: Table) -> Traffic:
    def by_tma(op: str) -> int:
        return int(figures.get(f"tma_{op}_sectors", 0))  # a GPU before sm_90 has none

    return Traffic(
        global_load_requests=int(figures["load_requests"]) + table.total(EXECUTED, "UTMALDG"),
        global_load_sectors=int(figures["load_sectors"]) + by_tma("load"),
        global_store_requests=int(figures["store_requests"]) + table.total(EXECUTED, "UTMASTG"),
        global_store_sectors=table.total(SECTORS, "STG", "ST.") + by_tma("store"),
        shared_load_wavefronts=table.total(WAVES, "LDS"),  # and LDSM
        shared_store_wavefronts=table.total(WAVES, "STS", "LDGSTS"),  # and STSM, but not STAS
        bank_conflicts=table.total(WAVES) - table.total(IDEAL),
        barriers=table.whole_warps("BAR.", "UCGABAR_ARV"),  # a block's, a cluster's
        global_atomic_requests=table.total(EXECUTED, *ATOMICS),
        global_atomic_sectors=table.total(SECTORS, *ATOMICS),
    )
