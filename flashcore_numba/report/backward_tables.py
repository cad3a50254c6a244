"""The backward pass in Markdown: a row per stage and library, from the recorded runs of that operation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashcore_numba.branches.backward.ladder import LADDER
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.records import artifact
from flashcore_numba.records.amounts import markdown, provenance, short_us, tflops
from flashcore_numba.report.pictures.backward import order
from flashcore_numba.report.pictures.records import MISSION, PEERS, defaults, peers

Shapes = dict[tuple[str, bool], dict[str, Any]]  # by shape and mask


def backward(folder: Path | None = None) -> str | None:
    """A row per stage and per peer: its time at the mission shape, and its rates at all others; None without
    a record of the mission shape.

    folder: of the recorded runs; the package's own by default.
    """
    shapes, sources = _recorded(folder)
    if (MISSION, False) not in shapes:
        return None
    ordered = sorted(shapes.values(), key=order)
    others = list(dict.fromkeys(each["shape"] for each in ordered if each["shape"] != MISSION))
    head = ["", "the idea", f"{MISSION}, µs", *(f"{name}, TFLOP/s" for name in others)]
    lines = []
    ideas = {stage.label: stage.idea for stage in LADDER} | PEERS
    for label, idea in ideas.items():
        cells = [_us(shapes[MISSION, False], label)]
        cells += [
            " / ".join(_rate(shapes.get((name, mask)), label) for mask in (False, True)) for name in others
        ]
        if any(cell.strip("- /") for cell in cells):
            lines.append([label if "/" in label else f"*{label}*", idea, *cells])
    return markdown(head, lines, 2) + (
        f"\n\n{'; '.join(sources)}: B x H x S x D in fp16, medians of interleaved rounds, GPU time with all "
        "that a call launches, in a CUDA graph. At the longer shapes: without a mask / with the causal mask. "
        "A rate counts five products of each head, of a mask what it leaves."
    )


TABLES: dict[str, Callable[[Path | None], str | None]] = {"backward": backward}


def _recorded(folder: Path | None) -> tuple[Shapes, list[str]]:
    """The results of each shape and mask in the first run that has it, and where they are from."""
    shapes: Shapes = {}
    sources = []
    for _, record in artifact.recorded(folder, operation=BACKWARD.name):
        for shape in record["shapes"]:
            if (shape["shape"], shape["causal"]) not in shapes:
                shapes[shape["shape"], shape["causal"]] = shape
                sources.append(provenance(record))
    return shapes, list(dict.fromkeys(sources))


def _entry(shape: dict[str, Any] | None, label: str) -> dict[str, Any] | None:
    every = [*defaults(shape), *peers(shape)] if shape else []
    return next((entry for entry in every if entry["label"] == label), None)


def _us(shape: dict[str, Any], label: str) -> str:
    entry = _entry(shape, label)
    return "-" if entry is None else short_us(entry["gpu_us"]["p50"]) if entry["error"]["right"] else "wrong"


def _rate(shape: dict[str, Any] | None, label: str) -> str:
    entry = _entry(shape, label)
    if shape is None or entry is None:
        return "-"
    return f"{tflops(shape, entry):.0f}" if entry["error"]["right"] else "wrong"
