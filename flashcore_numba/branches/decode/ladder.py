"""The ladder of decoding, and which stage runs when none is named."""

from flashcore_numba.branches.decode.decode_chunks import STAGE as CHUNKS
from flashcore_numba.branches.decode.decode_cluster import STAGE as CLUSTER
from flashcore_numba.branches.decode.decode_split import STAGE as SPLIT
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (CHUNKS, SPLIT, CLUSTER)

CLUSTERS_KEYS = 4096  # room for more is divided into more parts than a cluster has blocks


def preferred(problem: DecodeProblem) -> tuple[Stage, ...]:
    """The stages in the order in which `attention_paged` tries them. Clusters are for requests that have room
    for few keys: they divide all requests alike, so that long ones among short ones leave SMs idle.
    """
    few = problem.capacity <= CLUSTERS_KEYS
    return (CLUSTER, SPLIT, CHUNKS) if few else (SPLIT, CLUSTER, CHUNKS)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "decode", "decoding")
