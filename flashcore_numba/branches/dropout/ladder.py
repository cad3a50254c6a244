"""The stages of attention with dropout: forward and backward, one of each."""

from flashcore_numba.branches.dropout.dropout_backward_mma_sync import STAGE as BACKWARD_MMA_SYNC
from flashcore_numba.branches.dropout.dropout_mma_sync import STAGE as MMA_SYNC
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

FORWARD: tuple[Stage, ...] = (MMA_SYNC,)
BACKWARD: tuple[Stage, ...] = (BACKWARD_MMA_SYNC,)


def find(selector: object, ladder: tuple[Stage, ...]) -> Stage:
    """The stage of that ladder with this key or name, or that stage itself. Raises ArgumentError."""
    backward = ladder == BACKWARD
    what = "the gradients of attention with dropout" if backward else "attention with dropout"
    return find_in(ladder, selector, "dropout_backward" if backward else "dropout", what)
