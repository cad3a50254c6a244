"""The ladder of decoding, and which stage runs when none is named."""

from flashcore_numba.branches.decode.decode_chunks import STAGE as CHUNKS
from flashcore_numba.branches.decode.decode_cluster import NARROW_ROWS, fill_gpu, serves_wide
from flashcore_numba.branches.decode.decode_cluster import STAGE as CLUSTER
from flashcore_numba.branches.decode.decode_parts import may_differ
from flashcore_numba.branches.decode.decode_split import STAGE as SPLIT
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (CHUNKS, SPLIT, CLUSTER)

MANY_TILES = 96  # of 16 rows, from where clusters are enough to balance requests of very different lengths


def preferred(problem: DecodeProblem) -> tuple[Stage, ...]:
    """The stages in the order in which `attention_paged` tries them.

    Clusters that fill a GPU are faster for equal lengths. But they divide all requests alike, so that long
    ones among short ones leave SMs idle, unless there are many. More than 32 query rows of a K/V head go to
    clusters in any case where a block takes 64 of them: in blocks of 32 K and V would be read again. What is
    batch-invariant has one stage for all batches and all widths of the table.
    """
    p = problem
    if p.batch_invariant:
        clusters = p.seq_q * p.group <= NARROW_ROWS or serves_wide(p)
    elif may_differ(p):
        tiles = p.batch * p.kv_heads * -(-p.seq_q * p.group // 16)
        clusters = tiles >= MANY_TILES or serves_wide(p)
    else:
        clusters = fill_gpu(p)
    return (CLUSTER, SPLIT, CHUNKS) if clusters else (SPLIT, CLUSTER, CHUNKS)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "decode", "decoding")
