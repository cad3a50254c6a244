"""The ladder of decoding, and which stage runs when none is named: the last that serves the problem."""

from flashcore_numba.branches.decode.decode_chunks import STAGE as CHUNKS
from flashcore_numba.branches.decode.decode_cluster import STAGE as CLUSTER
from flashcore_numba.branches.decode.decode_split import STAGE as SPLIT
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (CHUNKS, SPLIT, CLUSTER)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "decode", "decoding")
