"""Which of the given artifacts, and which of their shapes, a picture shows."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.records.artifact import find_shape
from flashcore_numba.report.pictures.style import LackingError, Record

MISSION = "1x8x512x64"
MILESTONES = (1, 5, 6, 8, 12, 15, 16)  # stages that a picture names where all would be too many
# The peers of README and pictures, and what a reader calls them.
PEERS = {
    "SDPA flash": "FlashAttention-2, in PyTorch",
    "SDPA cuDNN": "cuDNN, in PyTorch",
    "FlexAttention": "FlexAttention, compiled by PyTorch",
    "FA4": "FlashAttention-4",
}


def chosen_shape(records: Sequence[Record]) -> tuple[str, bool]:
    """The shape and mask that pictures of one shape show: the mission without a mask where it was measured,
    else the first of the first artifact. Raises LackingError.
    """
    shapes = [(s["shape"], s["causal"]) for _, record in records for s in record["shapes"]]
    if not shapes:
        raise LackingError("there is no artifact")
    return (MISSION, False) if (MISSION, False) in shapes else shapes[0]


def same_shape(records: Sequence[Record], shape: str, causal: bool) -> list[tuple[Record, dict[str, Any]]]:
    """The artifacts that measured this shape and mask, and what they measured there.

    A run with a label repeats shapes of the whole ladder: it counts only where its GPU has none before it.
    """
    found: list[tuple[Record, dict[str, Any]]] = []
    for path, record in records:
        measured = find_shape(record, shape, causal)
        known = {earlier["gpu"]["name"] for (_, earlier), _ in found}
        if measured and not (record["label"] and record["gpu"]["name"] in known):
            found.append(((path, record), measured))
    return found


def beside(own: Record, recorded: Sequence[Record]) -> list[Record]:
    """`own`, and of the recorded runs at its first shape and mask the first of each GPU."""
    shape = own[1]["shapes"][0]
    found: dict[str, Record] = {}
    for record, _ in same_shape(recorded, shape["shape"], shape["causal"]):
        if record[1]["date"] != own[1]["date"]:
            found.setdefault(record[1]["gpu"]["name"], record)
    return [own, *found.values()]


def defaults(shape: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the stages as they run when no variant is named."""
    return [e for e in shape["entries"] if e["kind"] == "stage" and e["default"]]


def peers(shape: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of other libraries' kernels."""
    return [e for e in shape["entries"] if e["kind"] == "peer"]


def named_peers(shape: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of `PEERS`; where none of them was measured, all peers."""
    every = peers(shape)
    return [e for e in every if e["label"] in PEERS] or every


def best_peer(shape: dict[str, Any]) -> dict[str, Any] | None:
    """The fastest peer whose output is right."""
    right = [e for e in peers(shape) if e["error"]["right"]]
    return min(right, key=lambda e: e["gpu_us"]["p50"], default=None)


def problem(shape: dict[str, Any]) -> Problem:
    """The problem of an artifact's shape, all zero, in a few bytes. `8/2` are query and K/V heads, `512/640`
    query rows and keys.
    """
    sizes = [[int(n) for n in part.split("/")] for part in shape["shape"].split("x")]
    (batch,), heads, rows, (dim,) = sizes
    one_row = np.zeros(dim, FLOAT16.dtype)
    q, kv = (np.broadcast_to(one_row, (batch, heads[k], rows[k], dim)) for k in (0, -1))
    return Problem(q, kv, kv, shape["causal"], shape.get("scale"))
