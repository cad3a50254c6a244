"""Tables in Markdown of which GPU runs which stage, and what the compiler gives it there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashcore_numba.core.multiprocessors import MULTIPROCESSORS, shared_limit
from flashcore_numba.evidence import resource_table
from flashcore_numba.predict.occupancy import of_kernel
from flashcore_numba.records import artifact
from flashcore_numba.stages import LADDER, stage12_mma_sync
from flashcore_numba.stages.runs import runs
from flashcore_numba.stages.tuning import stage12_tiles

GPUS = {  # by compute capability
    (7, 0): "V100",
    (7, 5): "T4, GeForce RTX 20",
    (8, 0): "A100",
    (8, 6): "A10, GeForce RTX 30",
    (8, 9): "L4, L40S, GeForce RTX 40",
    (9, 0): "H100, H200",
    (10, 0): "B200",
    (12, 0): "RTX PRO 6000 Blackwell, GeForce RTX 50",
}
WIDE = 128  # the head dimension whose tiles are the larger ones


def gpus(folder: Path | None = None) -> str:
    """The stages that each GPU runs. folder: of the recorded runs; the package's own by default."""
    lines = [
        "| compute capability | GPUs | shared memory per block, KiB | stages | measured on |",
        "|---|---|--:|---|---|",
    ]
    for capability in MULTIPROCESSORS:
        able = [stage for stage in LADDER if stage.runs_on(capability)]
        room = shared_limit(capability)
        narrow = [
            f"{each.place:02d}" for each in able if WIDE in each.head_dims and each.why_not_in(room, WIDE)
        ]
        stages = f"{able[0].place:02d} to {able[-1].place:02d}"
        if narrow:
            stages += f"; {' and '.join(narrow)} at D = 64 alone"
        recorded = sorted(
            {
                record["gpu"]["name"]
                for _, record in artifact.recorded_whole(folder)
                if tuple(record["gpu"]["compute_capability"]) == capability
            }
        )
        cells = [".".join(map(str, capability)), GPUS[capability], str(room // 1024), stages]
        lines.append(f"| {' | '.join([*cells, ', '.join(recorded) or 'nothing'])} |")
    return "\n".join(lines)


def tiles() -> str:
    """Rows and keys of stage 12's tiles, by the shared memory that a block may have."""
    rooms = sorted({shared_limit(each) for each in MULTIPROCESSORS if stage12_mma_sync.STAGE.runs_on(each)})
    found: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for room in rooms:
        for head_dim, named in stage12_tiles.TILES.items():
            sizes = tuple(_tile(head_dim, name, room) for name in named)
            found.setdefault((head_dim, sizes), []).append(room)
    names = list(stage12_tiles.TILES[WIDE])
    lines = [f"| shared memory per block, KiB | D | {' | '.join(names)} |", "|---|--:|" + "---|" * len(names)]
    for (head_dim, sizes), some in found.items():
        more = " and more" if some[-1] == rooms[-1] else ""
        lines.append(f"| {some[0] // 1024}{more} | {head_dim} | {' | '.join(sizes)} |")
    return "\n".join([*lines, "", "Query rows x keys of a tile of stage 12."])


def _tile(head_dim: int, name: str, room: int) -> str:
    row_tiles, warps, *_ = stage12_tiles.TILES[head_dim][name]
    rows, keys = 16 * row_tiles * warps, stage12_tiles.fitting_keys(head_dim, name, room)
    return f"{rows} x {keys}" if stage12_tiles.block_bytes(head_dim, rows, keys) <= room else "-"


def resources() -> str:
    """What the compiler gives each stage in CUDA C for each GPU, and how many blocks of it an SM holds."""
    known = resource_table.CAPABILITIES
    table = resource_table.read()
    lines = [
        f"| stage | D | {' | '.join('sm_{}{}'.format(*each) for each in known)} |",
        "|---|--:|" + "---|" * len(known),
    ]
    spills = []
    for run in runs([stage for stage in LADDER if stage.language == "CUDA C"]):
        for head_dim in run.stage.head_dims if run.is_default else ():
            cells = []
            for capability in known:
                name = resource_table.name((run.stage.key, run.variant, head_dim, capability))
                kernels = table["kernels"].get(name, [])
                cells.append(_cell(capability, kernels))
                if spilled := max((kernel["spill_bytes"] for kernel in kernels), default=0):
                    spills.append(f"{name}: {spilled}")
            lines.append(f"| {run.label} | {head_dim} | {' | '.join(cells)} |")
    below = [
        f"Compiled by NVRTC {table['nvrtc']} and, sm_90 apart, not measured on these GPUs.",
        "In this order: registers per thread, KiB of shared memory per block, blocks that an SM holds;",
        "a range where the shape decides.",
    ]
    if spills:
        below.append(f"Bytes per thread that are spilled: {'; '.join(spills)}.")
    return "\n".join([*lines, "", " ".join(below)])


def _cell(capability: tuple[int, int], kernels: list[dict[str, Any]]) -> str:
    if not kernels:
        return "-"
    held = [of.blocks for kernel in kernels if (of := of_kernel(capability, kernel))]
    kib = [-(-kernel["shared_bytes"] // 1024) for kernel in kernels]
    return ", ".join(map(_range, ([kernel["registers"] for kernel in kernels], kib, held)))


def _range(values: list[int]) -> str:
    least, most = min(values), max(values)
    return str(least) if least == most else f"{least}-{most}"


TABLES: dict[str, Callable[[Path | None], str | None]] = {
    "gpus": gpus,
    "tiles": lambda folder: tiles(),
    "resources": lambda folder: resources(),
}
