"""What the kernels of `dropout_backward/mma_sync` move: the same without dropout: no mask is stored."""

from typing import Any

from flashcore_numba.branches.backward import mma_sync_traffic
from flashcore_numba.branches.dropout.dropout_backward_mma_sync import TILE
from flashcore_numba.predict.formula import Traffic


def traffic(problem: Any, variant: str | None, sm_count: int) -> Traffic:
    """As `backward.mma_sync_traffic` has it, for the one tile that this stage has."""
    return mma_sync_traffic.traffic(problem, TILE, sm_count)
