"""dQ, dK and dV in one launch, for short problems. The kernel: `backward_one_launch.cu`."""

import math
from typing import Any

from cuda_reference import source
from flashcore_numba.branches.backward import backward_resident as resident
from flashcore_numba.branches.backward.backward_resident import ROWS, WARPGROUPS, most_pairs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.stages.parts.cuda_arguments import defines, scalars
from flashcore_numba.stages.parts.tile_maps import tile_map
from flashcore_numba.stages.stage import Stage

STORED_ROWS = 16  # what one warp stores
STAGES = {64: 4, 128: 2}  # slots of each ring by head dimension: what shared memory holds


def shared_bytes(head_dim: int) -> int:
    """Two tiles of the block's own, the rings, LSE and D of two tiles for each, the mbarriers."""
    tile, rings = 2 * ROWS * head_dim, WARPGROUPS * STAGES[head_dim]
    return tile * (2 + 3 * rings) + WARPGROUPS * 4 * (ROWS + 16) * 4 + 8 * (2 + 2 * rings)


def fits(problem: BackwardProblem) -> bool:
    """Whether every block has room for all tiles that it streams."""
    return most_pairs(problem) <= WARPGROUPS * STAGES[problem.head_dim]


def cluster_of(problem: BackwardProblem, variant: str | None) -> int:
    """Blocks that fetch for each other."""
    return 2 if variant != "alone" and fits(problem) else 1


def launch(
    problem: BackwardProblem, dq: Array, dk: Array, dv: Array, executor: Executor, variant: str | None = None
) -> None:
    """Queue the one kernel: blocks of keys, then those of query rows, for each K/V head and batch."""
    if variant == "resident" and resident.serves(problem):
        resident.launch(problem, dq, dk, dv, executor)
        return
    p, cluster = problem, cluster_of(problem, variant)
    macros: dict[str, Any] = {"HEAD_DIM": p.head_dim, "BLOCK_N": ROWS, "STAGES": STAGES[p.head_dim]}
    kernel = source("backward_one_launch", CLUSTER=cluster, **macros, **defines(p.forward))
    key_blocks, row_blocks = (-(-n // (cluster * ROWS)) * cluster for n in (p.seq_k, p.seq_q))
    executor.launch(
        kernel,
        (key_blocks + p.group * row_blocks, p.kv_heads, p.batch),
        128 * WARPGROUPS,
        *(tile_map(x, ROWS) for x in (p.q, p.k, p.v, p.out, p.dout)),
        *(tile_map(x, STORED_ROWS) for x in (dq, dk, dv)),
        *(p.lse, p.dlse, *scalars(p.forward, p.scale * math.log2(math.e))),
        shared_bytes=shared_bytes(p.head_dim),
    )


STAGE = Stage(
    number=None,
    name="one_launch",
    title="Two kinds of blocks and no sum with two writers",
    idea="Blocks of keys make dK and dV and blocks of queries dQ, at once: S and dP are computed twice.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    elements=ACCEPTED,
    grouped_queries=True,
    features=("window", "sinks"),
    outputs=GRADIENTS,
    operation=BACKWARD,
    default="resident",
    variants={
        "alone": "each block fetches for itself",
        "one_launch": "two blocks fetch for each other what both stream, where all of it fits, else each for "
        "itself",
        "resident": "where a block has room for all tiles that it streams, all are fetched at once, two "
        "pairs before the two blocks have met, and D is computed a round ahead; else the same as one_launch",
    },
)
