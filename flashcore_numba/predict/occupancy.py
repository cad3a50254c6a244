"""How many blocks of a kernel an SM holds at a time: from its registers, shared memory and threads alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashcore_numba.core.multiprocessors import MULTIPROCESSORS, kept_bytes

PARTITIONS = 4  # of an SM: a warp belongs to one, with its registers
PARTITION_REGISTERS = 16384
REGISTER_UNIT = 256  # registers of a warp are given out in such units
SHARED_UNIT = 128  # bytes


@dataclass(frozen=True)
class Occupancy:
    """`blocks` an SM, `warps` an SM and their `share` of the most that it holds; `held_by`: what allows no
    further block: "registers", "shared memory", "warps" or "blocks".
    """

    blocks: int
    warps: int
    share: float
    held_by: str

    def __str__(self) -> str:
        return f"{self.blocks} ({self.share:.0%}), {self.held_by}"


def occupancy(
    compute_capability: tuple[int, int], threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """Of a kernel: `threads` a block, `registers` a thread, `shared_bytes` (static and dynamic) a block.

    None for a compute capability that is not in the table. No block fits where `blocks` is 0.

    >>> occupancy((9, 0), 128, 168, 49152)
    Occupancy(blocks=3, warps=12, share=0.1875, held_by='registers')
    >>> occupancy((8, 9), 128, 168, 49152)
    Occupancy(blocks=2, warps=8, share=0.16666666666666666, held_by='shared memory')
    """
    sm = MULTIPROCESSORS.get(compute_capability)
    if sm is None:
        return None
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    of_block = shared_bytes + kept_bytes(compute_capability)
    of_block = -(-of_block // SHARED_UNIT) * SHARED_UNIT
    room = {
        "registers": PARTITIONS * (PARTITION_REGISTERS // of_warp) // warps if of_warp else sm.blocks,
        "shared memory": sm.shared_kib * 1024 // of_block if of_block else sm.blocks,
        "warps": sm.warps // warps,
        "blocks": sm.blocks,
    }
    held_by = min(room, key=lambda name: room[name])
    blocks = room[held_by]
    return Occupancy(blocks, blocks * warps, blocks * warps / sm.warps, held_by)


def of_kernel(compute_capability: tuple[int, int], kernel: Mapping[str, Any]) -> Occupancy | None:
    """Of one item of `registers`; None where the compiler's report lacks a figure."""
    threads, used, shared_bytes = (kernel.get(name) for name in ("threads", "registers", "shared_bytes"))
    if threads is None or used is None or shared_bytes is None:
        return None
    return occupancy(compute_capability, threads, used, shared_bytes)
