"""The one launch of `backward/one_launch` where a block holds all tiles that it streams. The kernel:
`backward_resident.cu`.
"""

import math
from typing import Any

from cuda_reference import source
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines, scalars, strides
from flashcore_numba.stages.parts.tile_maps import tile_map

ROWS = 64  # of every tile
WARPGROUPS, CLUSTER = 2, 2
HEAD_DIM = 64  # what registers hold
PAIRS = 12  # of tiles, that shared memory holds


def shared_bytes() -> int:
    """Two tiles of the block's own, pairs of tiles, their LSE and D, the mbarriers."""
    return 2 * ROWS * HEAD_DIM * (2 + 2 * PAIRS) + PAIRS * ROWS * 8 + 8 * (2 + 3 * PAIRS)


def serves(problem: BackwardProblem) -> bool:
    """Whether every block has room for all pairs of tiles."""
    return problem.head_dim == HEAD_DIM and most_pairs(problem) <= PAIRS


def most_pairs(problem: BackwardProblem) -> int:
    """Pairs of tiles that a block streams, at most."""
    return max(problem.group * -(-problem.seq_q // ROWS), -(-problem.seq_k // ROWS))


def launch(problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor) -> None:
    """Queue the one kernel: blocks of keys, then those of query rows, for each K/V head and batch."""
    p = problem
    fixed = {"HEAD_DIM": HEAD_DIM, "BLOCK_N": ROWS, "PAIRS": PAIRS, "CLUSTER": CLUSTER}
    macros: dict[str, Any] = {**fixed, **defines(p.forward)}
    key_blocks, row_blocks = (-(-n // (CLUSTER * ROWS)) * CLUSTER for n in (p.seq_k, p.seq_q))
    executor.launch(
        source("backward_resident", **macros),
        (key_blocks + p.group * row_blocks, p.kv_heads, p.batch),
        128 * WARPGROUPS,
        *(tile_map(x, ROWS) for x in (p.q, p.k, p.v, p.dout)),
        *(p.out, p.lse, p.dlse, dq, dk, dv),
        *(step for x in (p.out, dq, dk, dv) for step in strides(x)),
        *scalars(p.forward, p.scale * math.log2(math.e)),
        shared_bytes=shared_bytes(),
    )
