"""Results as tables for the terminal."""

from typing import Any

from rich.table import Table

from flashcore_numba.core import workload
from flashcore_numba.records.amounts import (
    NARROW,
    SMALL,
    WIDE,
    amount,
    compiled,
    percent,
    provenance,
    short_us,
    terabytes,
    tflops,
    times,
)
from flashcore_numba.records.artifact import FORWARD, is_plain, operation_of, shape_title


def clocks_seen(artifact: dict[str, Any]) -> str:
    """One sentence on the state of the GPU during the rounds."""
    names = {"sm_mhz": ("SM clock", "MHz"), "temperature_c": ("temperature", "C"), "power_w": ("power", "W")}
    seen = {name: span for name, span in artifact["clocks"].items() if span}
    parts = (f"{names[n][0]} {s['min']:.0f} to {s['max']:.0f} {names[n][1]}" for n, s in seen.items())
    return (
        f"During the rounds: {', '.join(parts)}." if seen else "Clocks, temperature and power were not read."
    )


def latency_table(artifact: dict[str, Any], shape: dict[str, Any], width: int) -> Table:
    """Both clocks of every entry of one shape, with speed-ups, share of the limit and error."""
    narrow, of = width < WIDE, operation_of(artifact)
    table = Table(
        title=f"{shape_title(shape, of)}: {provenance(artifact)}",
        caption="Microseconds. GPU: a launch in a CUDA graph, warm L2. Caller: event to event, one call."
        + (
            ""
            if narrow
            else " 95%: of the median, over rounds. Cold: L2 flushed. Spill, local: bytes per thread."
        ),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    columns = ["GPU p50", "caller", "x 01", "x peer", "limit", "error"]
    if width < SMALL:
        columns = ["GPU p50", "x 01", "error"]
    if not narrow:
        columns = ["GPU p50", "95%", "p90", "p99", "mean", "std", "cold", "caller", "p90", "p99"]
        columns += ["x 01", "x peer", "limit", "error", "regs", "spill", "local"]
    shown = [k for k, name in enumerate(columns) if of == FORWARD or name != "x 01"]  # of the forward pass
    for k in shown:
        table.add_column(columns[k], justify="right", no_wrap=True)
    for entry in shape["entries"]:
        gpu, caller, speed = entry["gpu_us"], entry["caller_us"] or {}, entry["speed_up"]
        ends = [times(speed["stage_01"]), times(speed["best_peer"]), percent(entry["share_of_limit"])]
        error = entry["error"]["max"]
        wrong = "NaN" if error is None else f"{error:.1e}"
        ends.append(wrong if entry["error"]["right"] else f"WRONG {wrong}")
        if width < SMALL:
            row = [short_us(gpu["p50"]), ends[0], ends[-1]]
        elif narrow:
            row = [short_us(gpu["p50"]), short_us(caller.get("p50")), *ends]
        else:
            row = [short_us(gpu["p50"]), either_side(gpu)]
            row += [short_us(gpu[field]) for field in ("p90", "p99", "mean", "std")]
            row += [short_us((entry["gpu_cold_us"] or {}).get("p50"))]
            row += [short_us(caller.get(field)) for field in ("p50", "p90", "p99")]
            row += [*ends, *compiled(entry["resources"])]
        style = None if entry["error"]["right"] else "red"
        table.add_row(entry["label"], *(row[k] for k in shown), style=style)
    return table


def kv_table(artifact: dict[str, Any], shape: dict[str, Any]) -> Table:
    """Of a shape whose bytes of K and V are recorded: how fast each entry reads them, with warm and cold L2,
    also as a share of what a kernel reaches that only reads.
    """
    read = (artifact["ceilings"] or {}).get("read_gbs")
    of = f"{read / 1e3:.2f} TB/s, what a kernel that only reads reached in this run" if read else "not known"
    table = Table(
        title=f"{shape_title(shape, operation_of(artifact))}: {amount(shape['kv_bytes'])} bytes of K and V",
        caption=f"Microseconds, and TB/s of these bytes alone. Cold: L2 flushed. Of read: of {of}. Warm, "
        "what fits in the L2 comes from there.",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in ("warm", "TB/s", "of read", "cold", "TB/s", "of read"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in shape["entries"]:
        row = []
        for clock in ("gpu_us", "gpu_cold_us"):
            us = (entry[clock] or {}).get("p50")
            gbs = shape["kv_bytes"] / us / 1e3 if us else None
            share = gbs / read if gbs and read else None
            row += [short_us(us), f"{gbs / 1e3:.2f}" if gbs else "-", percent(share)]
        table.add_row(entry["label"], *row, style=None if entry["error"]["right"] else "red")
    return table


def either_side(times: dict[str, Any]) -> str:
    """Half the 95 % interval of a median, as a share of it: `±0.2%`."""
    ci = times["ci"]
    return "-" if ci is None else f"±{(ci['high'] - ci['low']) / 2 / times['p50']:.1%}"


def rates_lines(artifact: dict[str, Any], shape: dict[str, Any]) -> list[str]:
    """Of a workload whose operations are recorded, the rate of each stage and peer in one sentence; of a
    ragged batch also as a share of the rate at equal lengths. Of decode only the latter, for K and V.
    """
    if "flops" not in shape:
        return []
    equal = equal_lengths(artifact, shape)
    if "kv_bytes" in shape and not equal:  # they have a table
        return []
    beside = rates(equal) if equal else {}
    unit, digits = ("TB/s of K and V", ".2f") if "kv_bytes" in shape else ("TFLOP/s", ".0f")
    parts = [
        f"{name} {rate:{digits}}" + (f" ({percent(rate / beside[name])})" if name in beside else "")
        for name, rate in rates(shape).items()
    ]
    what = f" (of the rate at {shape['equal_lengths']})" if equal else ""
    return [f"{unit}{what}: {', '.join(parts)}."]


def rates(shape: dict[str, Any]) -> dict[str, float]:
    """10^12 operations a second of what is right, by label; of decode 10^12 bytes of K and V."""
    return {
        entry["label"]: terabytes(shape, entry) if "kv_bytes" in shape else tflops(shape, entry)
        for entry in shape["entries"]
        if entry["default"] and entry["error"]["right"]
    }


def equal_lengths(artifact: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any] | None:
    """The results of as many tokens in equal lengths, with what else is on, from the same run."""
    if "equal_lengths" not in shape:
        return None

    def key(name: str, of: dict[str, Any]) -> tuple:
        return name, of["causal"], of.get("element"), workload.label(of.get("features", {}))

    wanted = key(shape["equal_lengths"], shape)
    return next((s for s in artifact["shapes"] if not is_plain(s) and key(s["shape"], s) == wanted), None)


def throttled_lines(shape: dict[str, Any]) -> list[str]:
    """One sentence for each way in which clocks were held back."""
    by_reason: dict[str, list[str]] = {}
    for entry in shape["entries"]:
        for reason in entry["throttled"] or []:
            by_reason.setdefault(reason, []).append(entry["label"])
    every = len(shape["entries"])
    return [
        f"Throttled: {'all' if len(labels) == every else ', '.join(labels)}: {reason}"
        for reason, labels in by_reason.items()
    ]


def limits_line(shape: dict[str, Any]) -> str:
    """What each unit of the GPU alone would need: `CUDA cores 8.02 us, tensor cores 0.50 us, ...`."""
    names = {"fp32": "CUDA cores", "tensor": "tensor cores", "exp": "exponentials", "memory": "memory"}
    known = {unit: us for unit, us in shape["limits_us"].items() if us is not None}
    return ", ".join(f"{names[unit]} {short_us(us)} us" for unit, us in known.items())


def not_timed(shape: dict[str, Any]) -> list[str]:
    """One sentence a reason why something was not timed."""
    by_reason: dict[str, list[str]] = {}
    for label, reason in shape["absent"].items():
        by_reason.setdefault(reason, []).append(label)
    return [f"Not timed: {', '.join(labels)}: {reason}" for reason, labels in by_reason.items()]


def moved_line(moved: dict[str, float]) -> str:
    """`Counted.moved` as a sentence."""
    of = {name: amount(value) for name, value in moved.items()}
    return (
        f"In all: {of['global_requests']} global requests that touch {of['global_bytes']} bytes, "
        f"{moved['times_needed']:.1f} times what is needed; {of['shared_wavefronts']} shared wavefronts, "
        f"{of['bank_conflicts']} of them conflicts; {of['barriers']} barriers, {of['shuffles']} shuffles."
    )


def counted_table(
    rows: list[dict[str, Any]],
    shape: str,
    width: int,
    recorded: tuple[dict[str, Any], dict[str, Any]] | None = None,
) -> Table:
    """What each run moved on the simulator, beside its checks and its recorded GPU time, if any.

    rows: label, right, moved (see `Counted.moved`) and, where checks ran, checks ("58/58").
    recorded: an artifact and one of its shapes.
    """
    caption = (
        "Global bytes: 32-byte sectors touched; needed: every input read once, every output written once. "
        "Wavefronts, conflicts: of shared memory."
    )
    gpu_us = {}
    columns = ["checks", "x needed"] if width < SMALL else ["checks", "global bytes", "x needed"]
    if width >= NARROW:
        columns += ["wavefronts", "conflicts", "barriers", "shuffles"]
    if not all("checks" in row for row in rows):
        columns.remove("checks")
    if recorded:
        record, timed = recorded
        gpu_us = {entry["label"]: entry["gpu_us"]["p50"] for entry in timed["entries"]}
        columns.append("recorded us")
        title = shape_title(timed, operation_of(record))
        caption += f" Recorded: GPU time at {title}, {provenance(record)}."
    table = Table(
        title=f"Counted on the simulator at {shape}",
        caption=caption,
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        moved = row["moved"]
        cells = {
            "checks": row.get("checks", ""),
            "global bytes": amount(moved["global_bytes"]),
            "x needed": f"{moved['times_needed']:.1f}",
            "wavefronts": amount(moved["shared_wavefronts"]),
            "conflicts": amount(moved["bank_conflicts"]),
            "barriers": amount(moved["barriers"]),
            "shuffles": amount(moved["shuffles"]),
            "recorded us": short_us(gpu_us.get(row["label"])),
        }
        label = row["label"] if row["right"] else f"{row['label']} WRONG"
        table.add_row(label, *(cells[name] for name in columns), style=None if row["right"] else "red")
    return table
