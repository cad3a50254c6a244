"""Decoding where the parts of a request are the blocks of a cluster. The kernel: `decode_cluster.cu`."""

from cuda_reference import source
from flashcore_numba.branches.decode.decode_parts import Tile, arguments
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import FEATURES, LENGTHS, DecodeProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.stage import Stage

CLUSTER = 8  # blocks, whatever the batch: the bits of a request depend on nothing else
# By head dimension: where an SM has one block at most, for more, and for more than 16 rows.
TILES: dict[int, dict[str, Tile]] = {
    64: {"few": Tile(1, 8, 4, 1), "many": Tile(1, 4, 4, 3), "rows": Tile(2, 8, 4, 1)},
    128: {"few": Tile(1, 8, 3, 1), "many": Tile(1, 4, 2, 2), "rows": Tile(2, 8, 3, 1)},
    256: {"few": Tile(1, 4, 3, 1), "many": Tile(1, 2, 2, 2)},
}


def choose(problem: DecodeProblem, sm_count: int) -> str:
    """The tile; one for all batches where the batch must not tell."""
    p, tiles = problem, TILES[problem.head_dim]
    if "rows" in tiles and p.seq_q * p.group > 16:
        return "rows"
    alone = p.batch_invariant or CLUSTER * tiles["few"].blocks(p) <= sm_count
    return "few" if alone else "many"


def launch(
    problem: DecodeProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the one kernel: a cluster for each request, K/V head and tile of query rows."""
    p = problem
    tile = TILES[p.head_dim][choose(p, executor.sm_count)]
    early = variant == "overlapped"
    executor.launch(
        source("decode_cluster", **tile.macros(p), CLUSTER=CLUSTER, EARLY=early),
        (CLUSTER * tile.blocks_of_rows(p), p.kv_heads, p.batch),
        32 * tile.warps,
        *arguments(p, out, lse),
        shared_bytes=tile.block_bytes(p.head_dim),
    )


STAGE = Stage(
    number=None,
    name="cluster",
    title="The parts of a request meet in shared memory",
    idea="Eight blocks that run together share the keys of a request and send each other what they found.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    head_dims=tuple(TILES),
    elements=ACCEPTED,
    grouped_queries=True,
    features=(*FEATURES, *LENGTHS),
    outputs=(OUT, LSE),
    operation=DECODE,
    variants={
        "cluster": "a cluster of eight blocks for each request and K/V head",
        "overlapped": "the same, and begins under the end of the kernel before it",
    },
)
