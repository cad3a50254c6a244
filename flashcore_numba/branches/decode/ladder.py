"""The ladder of decoding, and which stage runs when none is named."""

from flashcore_numba.branches.decode.decode_chunks import STAGE as CHUNKS
from flashcore_numba.branches.decode.decode_cluster import NARROW_ROWS, fill_gpu, serves_wide
from flashcore_numba.branches.decode.decode_cluster import STAGE as CLUSTER
from flashcore_numba.branches.decode.decode_even import STAGE as EVEN
from flashcore_numba.branches.decode.decode_parts import may_differ
from flashcore_numba.branches.decode.decode_split import STAGE as SPLIT
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.stages.find import find_in
from flashcore_numba.stages.stage import Stage

LADDER: tuple[Stage, ...] = (CHUNKS, SPLIT, CLUSTER, EVEN)


def preferred(problem: DecodeProblem) -> tuple[Stage, ...]:
    """The stages in the order in which `attention_paged` tries them.

    Clusters that fill a GPU are faster for equal lengths. But they divide all requests alike, so that long
    ones among short ones leave SMs idle. More than 32 query rows of a K/V head go to clusters in any case
    where a block takes 64 of them: in blocks of 32 K and V would be read again. What is batch-invariant has
    one stage for all batches and all widths of the table.
    """
    p, uneven = problem, may_differ(problem) and not problem.batch_invariant
    if p.batch_invariant:
        clusters = p.seq_q * p.group <= NARROW_ROWS or serves_wide(p)
    else:
        clusters = serves_wide(p) if uneven else fill_gpu(p)
    others = (EVEN, SPLIT) if uneven else (SPLIT, EVEN)
    return (CLUSTER, *others, CHUNKS) if clusters else (*others, CLUSTER, CHUNKS)


def find(selector: object) -> Stage:
    """The stage of this ladder with this key or name, or that stage itself. Raises ArgumentError."""
    return find_in(LADDER, selector, "decode", "decoding")
