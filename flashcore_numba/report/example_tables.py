"""Tables in Markdown for `docs/integrations.md`: what the examples, and vLLM, measured on a GPU."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import markdown


def _provenance(gpu: str, record: dict[str, Any]) -> str:
    return f"{gpu}, {record['date']}, commit {record['commit'][:7]}, PyTorch {record['torch']}"


def operator(folder: Path | None = None) -> str | None:
    """Microseconds per call of the operator and of PyTorch's own attention; None without a record."""
    record = artifact.other("examples/time_operator", folder)
    if record is None:
        return None
    lines = []
    for row, rounds in record["us"].items():
        own, peer = median(rounds["flashcore"]), median(rounds["sdpa"])
        lines.append([row, f"{own:.1f}", f"{peer:.1f}", f"{peer / own:.2f}"])
    shape, causal = "x".join(map(str, record["shape"])), ", causal" if record["causal"] else ""
    return markdown(["µs per call", "FlashCore", "SDPA", "SDPA's over ours"], lines, 1) + (
        f"\n\n{_provenance(record['gpu'], record)}: {shape}{causal}, {record['dtype']}, medians of "
        f"{len(rounds['sdpa'])} interleaved rounds of {record['calls']} calls."
    )


def training(folder: Path | None = None) -> str | None:
    """The speed and the losses of the small GPT with either attention; None without a record."""
    record = artifact.other("examples/train_gpt", folder)
    if record is None:
        return None
    lines = [
        [name, f"{run['tokens_per_second'] / 1e6:.3f}", f"{run['loss'][0]:.3f}", f"{run['loss'][-1]:.3f}"]
        for name, run in record["runs"].items()
    ]
    losses = [run["loss"] for run in record["runs"].values()]
    apart = max(abs(one - other) for one, other in zip(*losses, strict=True))
    first = max(abs(one - other) for one, other in list(zip(*losses, strict=True))[:100])
    return markdown(["attention", "million tokens per second", "first loss", "last loss"], lines, 1) + (
        f"\n\n{_provenance(record['device'], record)}: {record['size']['steps']} steps, seed "
        f"{record['seed']}. Losses of one step differ by {apart:.3f} at most, in the first 100 steps by "
        f"{first:.3f}."
    )


VLLM_NAMES = {"CUSTOM": "FlashCore", "FLASH_ATTN": "FlashAttention-3", "TRITON_ATTN": "vLLM's Triton kernel"}


def answers(folder: Path | None = None) -> str | None:
    """How far what vLLM answers with each attention is from its answers with another; None without a
    record.
    """
    record = artifact.other("examples/vllm", folder)
    if record is None:
        return None
    lines = []
    for key, found in record["answers"].items():
        model, mode, attention = key.split(", ")
        name = VLLM_NAMES.get(attention, "FlashCore, scale 5 % too large")
        equal = f"{found['equal']} of {found['of']}"
        lines.append([model, mode, name, equal, f"{found['logprob_difference']:g}", f"{found['bound']:g}"])
    head = ["model", "steps", "attention", "equal answers", "log-probabilities differ by", "bound"]
    return markdown(head, lines, 3) + f"\n\n{_provenance(record['gpu'], record)}, vLLM {record['vllm']}."


def steps(folder: Path | None = None) -> str | None:
    """Milliseconds of vLLM's steps of decoding with each attention; None without a record."""
    record = artifact.other("examples/vllm", folder)
    if record is None:
        return None
    lines = [
        [row, *(f"{each[name][1]:.2f} ({each[name][0]:.2f} to {each[name][2]:.2f})" for name in VLLM_NAMES)]
        for row, each in record["step_ms"].items()
    ]
    m = record["model"]
    return markdown(["requests x keys, ms per step", *VLLM_NAMES.values()], lines, 1) + (
        f"\n\n{_provenance(record['gpu'], record)}, vLLM {record['vllm']}: medians of 3 and their range, in "
        f"CUDA graphs; {m['layers']} layers of {m['hidden']}, {m['heads']} heads over {m['kv_heads']}, head "
        f"dimension {m['head_dim']}, {m['type']}, random weights. Each attention in a process of its own."
    )


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "operator": operator,
    "training": training,
    "vllm-answers": answers,
    "vllm-steps": steps,
}
