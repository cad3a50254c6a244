"""Tables in Markdown of what GPUs can do: measured ceilings, and the limits of GPUs that nobody measured."""

from collections.abc import Callable
from pathlib import Path

from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence.roofline import UNITS
from flashcore_numba.predict.limits import DATA_SHEETS, ceilings_of, units_us
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import percent, provenance, short_us
from flashcore_numba.run.registers import stand_in

MISSION = Shape(1, 8, 512, 64)
FIGURES = {
    "fp32_tflops": ("CUDA cores, float32", "TFLOP/s"),
    "tensor_tflops": ("tensor cores, fp16, float32 sums", "TFLOP/s"),
    "mma_sync_tflops": ("the same through mma.sync", "TFLOP/s"),
    "exp_gops": ("exponentials", "10⁹/s"),
    "l1_gbs": ("L1 and shared memory", "GB/s"),
    "l2_gbs": ("L2", "GB/s"),
    "dram_gbs": ("device memory", "GB/s"),
    "read_gbs": ("the same, read only", "GB/s"),
    "launch_us": ("an empty kernel in a graph", "µs"),
}


def ceilings(folder: Path | None = None) -> str | None:
    """Of the run that the roofline shows, or another one with ceilings, beside what the documents allow; None
    without such a run.

    folder: of the recorded runs; the package's own by default.
    """
    known = [record for _, record in artifact.recorded(folder) if record["ceilings"]]
    if not known:
        return None
    record = next((each for each in known if artifact.find_shape(each, str(MISSION))), known[0])
    by_table = ceilings_of(record | {"ceilings": None})
    lines = [
        f"| {record['gpu']['name']} | measured | by the documents | share |",
        "|---|--:|--:|--:|",
    ]
    for name, (what, unit) in FIGURES.items():
        reached, allowed = record["ceilings"].get(name), getattr(by_table, name, None)
        if name not in record["ceilings"]:  # older than the figure
            continue
        share = percent(reached / allowed) if reached and allowed else "-"
        lines.append(f"| {what} | {_amount(reached, unit)} | {_amount(allowed, unit)} | {share} |")
    mhz = record["gpu"]["max_sm_mhz"]
    return _text(
        lines, f"Measured: {provenance(record)}. By the documents: at {mhz:.0f} MHz, the highest clock."
    )


def other_gpus() -> str:
    """Figures of data sheets, and what each unit needs by them at the mission shape."""
    known = [sheet.ceilings() for sheet in DATA_SHEETS]
    rows = {
        "SMs": [str(sheet.sm_count) for sheet in DATA_SHEETS],
        "clock, MHz": [f"{sheet.boost_mhz:.0f}" for sheet in DATA_SHEETS],
        "L2, MiB": [str(sheet.l2_mib) for sheet in DATA_SHEETS],
    }
    for name, (what, unit) in FIGURES.items():
        values = [getattr(each, name, None) for each in known]
        if all(values):
            rows[f"{what}, {unit}"] = [_figure(value) for value in values if value]
    problem = stand_in(MISSION.batch, MISSION.heads, MISSION.seq, MISSION.head_dim)
    for unit in ("fp32", "tensor", "exp", "dram"):
        times = [units_us(problem, {unit: 1.0}, None, None, 1, each)[unit] for each in known]
        rows[f"{MISSION}: {UNITS[unit]} alone, µs"] = list(map(short_us, times))
    lines = [
        f"| by the data sheet | {' | '.join(sheet.name for sheet in DATA_SHEETS)} |",
        "|---|" + "--:|" * len(DATA_SHEETS),
        *(f"| {what} | {' | '.join(cells)} |" for what, cells in rows.items()),
    ]
    return _text(lines, "From NVIDIA's data sheets and white papers; nothing here was measured.")


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "ceilings": ceilings,
    "other-gpus": lambda folder: other_gpus(),
}


def _amount(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{_figure(value)} {unit}"


def _figure(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def _text(lines: list[str], below: str) -> str:
    return "\n".join([*lines, "", below])
