"""What a launch moves, as numbers that a closed formula, a counter and a profiler can all give."""

from collections import Counter
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np

from flashcore_numba.core.element import FLOAT16, FLOAT32
from flashcore_numba.core.mask import Mask

LANES = 32  # of a warp
SECTOR = 32  # bytes
BANKS = 32  # each one word of 4 bytes wide
HALF, FLOAT = FLOAT16.size, FLOAT32.size  # bytes


@dataclass(frozen=True)
class Traffic:
    """Sums over all warps of all launches of one run.

    A request is one warp's execution of a memory instruction, a sector 32 bytes of global memory. An
    asynchronous copy counts as a global load and as a shared store; as the latter alone if all lanes of the
    warp fill with zeros. A wavefront is one pass through the 32 banks; bank_conflicts are the wavefronts
    beyond the fewest that the same bytes need. A barrier counts once for each warp that arrives. Atomics on
    global memory, those that return nothing included, are neither loads nor stores.

    A copy by TMA is one request, and the sectors are those of its box. It has no wavefronts, nor have wgmma's
    operands, nor what a block stores into another one of its cluster. A bulk copy to shared memory is one of
    a box of as many bytes.

    async_sectors are those of global_load_sectors that asynchronous copies bring past the L1, so that they
    pass through it once, as shared stores. Only formulas know them: they are 0 in counts and measurements,
    and no part of a comparison.
    """

    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    shared_load_wavefronts: int = 0
    shared_store_wavefronts: int = 0
    bank_conflicts: int = 0
    barriers: int = 0
    global_atomic_requests: int = 0
    global_atomic_sectors: int = 0
    async_sectors: int = field(default=0, compare=False)

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(*(times * n for n in astuple(self)))

    __rmul__ = __mul__

    @classmethod
    def of_totals(cls, totals: dict[str, Any]) -> "Traffic":
        """From the counters of the simulator or the CPU executor, see `Counted.totals`."""
        conflicts = sum(totals.get(f"shared_{op}_conflicts", 0) for op in ("load", "store", "atomic"))
        named = {each.name: totals.get(each.name, 0) for each in fields(cls)}
        for op in ("load", "store"):
            for copy in (f"tma_{op}", f"bulk_{op}"):
                named[f"global_{op}_requests"] += totals.get(copy, 0)
                named[f"global_{op}_sectors"] += totals.get(f"{copy}_bytes", 0) // SECTOR
        return cls(**(named | {"bank_conflicts": conflicts}))


def ceil_div(a: Any, b: Any) -> Any:
    """The quotient rounded up, of numbers or arrays."""
    return -(-a // b)


def loads(requests: Any, sectors: Any) -> Traffic:
    """Loads from global memory."""
    return Traffic(global_load_requests=int(requests), global_load_sectors=int(sectors))


def stores(requests: Any, sectors: Any) -> Traffic:
    """Stores to global memory."""
    return Traffic(global_store_requests=int(requests), global_store_sectors=int(sectors))


def atomics(requests: Any, sectors: Any) -> Traffic:
    """Atomics on global memory."""
    return Traffic(global_atomic_requests=int(requests), global_atomic_sectors=int(sectors))


def shared_loads(wavefronts: Any, conflicts: Any = 0) -> Traffic:
    """Loads from shared memory; `conflicts` says how many of the wavefronts are bank conflicts."""
    return Traffic(shared_load_wavefronts=int(wavefronts), bank_conflicts=int(conflicts))


def shared_stores(wavefronts: Any, conflicts: Any = 0) -> Traffic:
    """Stores to shared memory; `conflicts` says how many of the wavefronts are bank conflicts."""
    return Traffic(shared_store_wavefronts=int(wavefronts), bank_conflicts=int(conflicts))


def barriers(warps: Any) -> Traffic:
    """Barriers of a block, one per warp that comes to it."""
    return Traffic(barriers=int(warps))


def row_tiles(length: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each tile of so many rows, and how many rows it really has: all but the last, all."""
    first = np.arange(0, length, rows)
    return first, np.minimum(rows, length - first)


def requests_for(rows: Any, head_dim: int, width: int = 16) -> Any:
    """Requests that bring whole float16 rows of a tile, neighbouring lanes taking `width` neighbouring bytes.

    `rows` is how many of the tile's rows exist: a number or an array.
    """
    return ceil_div(rows * head_dim * HALF, LANES * width)


def sectors_apart(first: Any, lanes: Any, stride: Any) -> Any:
    """Sectors of a request of `lanes` lanes, `stride` bytes apart from byte `first` on; elementwise.

    Lanes a sector or more apart have one each; nearer ones share all from the first to the last. No lane's
    bytes may cross the border of a sector.
    """
    span = (first + (lanes - 1) * stride) // SECTOR - first // SECTOR + 1
    return np.where(lanes > 0, np.minimum(lanes, span), 0)


def masks(problem: Any) -> Counter[Mask]:
    """What the sequences of the batch see, and how many of them see the same: their traffic is equal."""
    return Counter(each.mask for each in problem.sequences)


def head_starts(problem: Any, nbytes: int) -> list[tuple[int, int]]:
    """How far into a sector the parts of an array start that belong to the heads, `nbytes` each, and how many
    of the B x H parts start so far: their traffic is equal.
    """
    starts = Counter(head * nbytes % SECTOR for head in range(problem.batch * problem.heads))
    return sorted(starts.items())
