"""Attention in 8 bits and over several GPUs in Markdown: a row per recorded problem."""

from collections.abc import Callable
from pathlib import Path

from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.fp8.peers import PEERS
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import markdown, percent, provenance, short_us, tflops
from flashcore_numba.records.artifact import WITH_FORWARD

RING, RING_BACKWARD, ALONE = "ring", "ring_backward", "one GPU, its own rows"
WAYS = ("gated, captured", "gated", "gather, captured", "pull, captured", "pull", "ring", "ulysses")
TORCH = ("torch allgather", "torch alltoall")
TORCH_CAPTURED = tuple(f"{label}, captured" for label in TORCH)
CUDNN = "Ulysses, cuDNN"
BACKWARD_WAYS = ("pull", "ring", "ulysses")


def ring(folder: Path | None = None) -> str | None:
    """A row per shape: what one GPU takes for as many rows as it holds, and each way's time and share of that
    rate; and a table of the backward pass where there is a record of it. None without a record.

    folder: of the recorded runs; the package's own by default.
    """
    return "\n\n".join(filter(None, (_ring_forward(folder), _ring_backward(folder)))) or None


def _ring_forward(folder: Path | None) -> str | None:
    lines, sources = [], []
    for record, shape in artifact.workloads(RING, folder):
        us = {entry["label"]: entry["gpu_us"]["p50"] for entry in shape["entries"] if entry["error"]["right"]}
        gpus, alone = record["topology"]["gpus"], us.get(ALONE)
        torch = min((us[label] for label in TORCH if label in us), default=None)
        graph = min((us[label] for label in TORCH_CAPTURED if label in us), default=None)
        cells = [_share(us.get(label), alone, gpus) for label in WAYS]
        name = f"{artifact.shape_title(shape)}, {gpus} GPUs"
        lines.append(
            [name, short_us(alone), *cells, *(_share(x, alone, gpus) for x in (torch, graph, us.get(CUDNN)))]
        )
        sources.append(provenance(record))
    if not lines:
        return None
    head = ["rows of all GPUs", "one GPU, its own rows", *(f"`{each}`" for each in WAYS)]
    head += ["torch", "torch, captured", CUDNN]
    return _measured(head, lines) + (
        f"\n\n{'; '.join(dict.fromkeys(sources))}. Medians of interleaved rounds in microseconds, of the "
        "slowest rank; in brackets the share of the rate that one GPU has alone. torch: the faster of its "
        "two rotate methods, called as one does; captured: one CUDA graph per call."
    )


def _ring_backward(folder: Path | None) -> str | None:
    """A row per shape: the backward pass alone, and with the forward pass, as PyTorch's is timed."""
    lines, sources = [], []
    for record, shape in artifact.workloads(RING_BACKWARD, folder):
        us = {entry["label"]: entry["gpu_us"]["p50"] for entry in shape["entries"] if entry["error"]["right"]}
        gpus, line = record["topology"]["gpus"], [artifact.shape_title(shape)]
        line[0] = f"{line[0]}, {gpus} GPUs"
        for suffix in ("", WITH_FORWARD):
            alone = us.get(ALONE + suffix)
            line += [
                short_us(alone), *(_share(us.get(way + suffix), alone, gpus) for way in BACKWARD_WAYS)
            ]  # fmt: skip
        torch = min((us[label + WITH_FORWARD] for label in TORCH if label + WITH_FORWARD in us), default=None)
        lines.append([*line, _share(torch, alone, gpus)])
        sources.append(provenance(record))
    if not lines:
        return None
    names = [ALONE, *(f"`{way}`" for way in BACKWARD_WAYS)]
    head = ["backward, rows of all GPUs", *names, *(f"{name}{WITH_FORWARD}" for name in names)]
    return _measured([*head, f"torch{WITH_FORWARD}"], lines) + (
        f"\n\n{'; '.join(dict.fromkeys(sources))}. As above, of the backward pass; with forward: forward and "
        "backward together, which is how torch's is timed, by autograd."
    )


def fp8(folder: Path | None = None) -> str | None:
    """A row per shape and mask: time and rate of the stage with all that it launches, beside each peer."""
    lines, sources = [], []
    for record, shape in artifact.workloads(FP8.name, folder):
        (own,) = (entry for entry in shape["entries"] if entry["kind"] == "stage" and entry["default"])
        time = own["gpu_us"]["p50"]
        by_label = {entry["label"]: entry for entry in shape["entries"]}
        cells = [short_us(time), f"{tflops(shape, own):.0f}", f"{own['error']['max']:.1e}"]
        for label in PEERS:
            peer = by_label.get(label)
            cells += ["-", "-"] if peer is None else [
                f"{peer['gpu_us']['p50'] / time:.2f}", f"{peer['error']['max']:.1e}"
            ]  # fmt: skip
        lines.append([artifact.shape_title(shape), *cells])
        sources.append(provenance(record))
    if not lines:
        return None
    head = ["", "µs", "TFLOP/s", "error"]
    head += [cell for label in PEERS for cell in (f"{label}: its time over ours", "its error")]
    return markdown(head, lines, 1) + (
        f"\n\n{'; '.join(dict.fromkeys(sources))}. Medians of interleaved rounds in CUDA graphs, the "
        "launches that quantise included; FA3 is given bytes. Errors: the largest beside float64, of N(0, 1) "
        "inputs."
    )


def prepare(folder: Path | None = None) -> str | None:
    """A row per number of tokens: what the launch before attention takes, and its share of a copy's rate."""
    record = artifact.other("decode/prepare", folder)
    if record is None:
        return None
    lines = []
    for row in record["rows"]:
        found = [row[kind] for kind in ("16 bits", "e4m3")]
        cells = [[short_us(each["us"]), percent(each["copy"] / each["us"])] for each in found]
        lines.append([f"{row['tokens']:,}", *cells[0], *cells[1]])
    heads, kv_heads = record["heads"]
    head = ["tokens", "16 bits", "of a copy's rate", "e4m3", "of a copy's rate"]
    return markdown(head, lines, 0) + (
        f"\n\n{record['gpu']}, {record['date']}, commit {record['commit'][:7]}: microseconds, medians of "
        f"{record['rounds']} interleaved rounds in CUDA graphs, {heads} heads on {kv_heads}, "
        f"D = {record['head_dim']}, with norm, weights and RoPE. The copy, of as many bytes, is "
        "cudaMemcpyAsync."
    )


TABLES: dict[str, Callable[[Path | None], str | None]] = {"ring": ring, "fp8": fp8, "prepare": prepare}


def _measured(head: list[str], lines: list[list[str]]) -> str:
    """The table without columns that no row has."""
    kept = [i for i in range(len(head)) if any(line[i] != "-" for line in lines)]
    head, *lines = ([line[i] for i in kept] for line in (head, *lines))
    return markdown(head, lines, 1)


def _share(us: float | None, alone: float | None, gpus: int) -> str:
    if us is None:
        return "-"
    return short_us(us) if alone is None else f"{short_us(us)} ({percent(gpus * alone / us)})"
