"""Decoding where the parts of a request are the blocks of a cluster: `decode_clusters.cuh`."""

from typing import Any

from cuda_reference import source
from flashcore_numba.branches.decode.decode_parts import Tile, arguments, most_keys
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import FEATURES, LENGTHS, DecodeProblem
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.stage import Stage

CLUSTER = 8  # blocks, where the batch must not tell; the most that every GPU of the kind runs
START_KEYS = 256  # that a block would read while it starts and merges
WIDE_KEYS = 2048  # of a block, beyond which three warpgroups of 64 rows are faster than two
SHORT_KEYS = {64: 256, 128: 512}  # of a block, by D, up to which wgmma is faster for 17 to 32 rows
NARROW_ROWS = 32  # of a K/V head, beyond which blocks of 32 rows would read the same keys again
# Blocks of a cluster -> the share of a GPU's places that clusters can have, measured on an H200: their blocks
# run side by side.
PLACED = {1: 1.0, 2: 1.0, 4: 0.91, CLUSTER: 0.91}


def _wide(two: int, three: int) -> dict[str, Tile]:
    """64 rows, of two and of three warpgroups, with so many slots in the ring of each."""
    return {"wide": Tile(4, 8, two, 1, wgmma=True), "wide_3": Tile(4, 12, three, 1, wgmma=True)}


# By head dimension: where an SM has one block at most, for more, for more than 16 rows, and for more than 32.
TILES: dict[int, dict[str, Tile]] = {
    64: {"few": Tile(1, 8, 4, 1), "many": Tile(1, 4, 4, 3), "rows": Tile(2, 8, 4, 1), **_wide(7, 6)},
    128: {"few": Tile(1, 8, 3, 1), "many": Tile(1, 4, 2, 2), "rows": Tile(2, 8, 3, 1), **_wide(5, 3)},
    256: {"few": Tile(1, 4, 3, 1), "many": Tile(1, 2, 2, 2)},
}


def serves_wide(problem: Any) -> bool:
    """Whether blocks of 64 rows are for more rows of the problem, of decoding or of the forward pass."""
    p, tiles = problem, TILES.get(problem.head_dim, {})
    return p.seq_q * p.group > NARROW_ROWS and "wide" in tiles and tiles["wide"].serves(p)


def choose(problem: DecodeProblem, sm_count: int, variant: str | None = None) -> tuple[str, int]:
    """The tile, that of the variant if it has one, and the blocks of a cluster: those that are done first if
    all requests see as many keys as they can. A block takes as long as its keys and `START_KEYS` more, and
    blocks without a place wait. What is batch-invariant has one tile and one number for all batches.
    """
    p, tiles = problem, TILES[problem.head_dim]
    if variant in tiles and tiles[variant].serves(p):
        name = variant
    elif serves_wide(p):
        name = "wide"
    elif "rows" in tiles and p.seq_q * p.group > 16:
        name = "rows"
    else:
        name = "few" if p.batch_invariant or tiles["few"].blocks(p) <= sm_count else "many"
    if p.batch_invariant:
        return name, CLUSTER
    blocks, an_sm, keys = tiles[name].blocks(p), tiles[name].blocks_an_sm, most_keys(p)

    def duration(size: int) -> float:
        turns = -(-size * blocks // max(1, int(sm_count * an_sm * PLACED[size])))
        return turns * (keys / size + START_KEYS)

    size = min(PLACED, key=duration)
    if name == "wide" != variant and keys > size * WIDE_KEYS:
        name = "wide_3"
    elif name == "rows" != variant and keys <= size * SHORT_KEYS[p.head_dim] and tiles["wide"].serves(p):
        name = "wide"
    return name, size


def fill_gpu(problem: Any) -> bool:
    """Whether clusters keep a GPU busy: those of a single request with many query rows are too few, unless
    blocks take 64 of them at a time. problem: of decoding or of the forward pass.
    """
    return problem.batch > 1 or problem.seq_q * problem.group <= 32 or serves_wide(problem)


def launch(
    problem: DecodeProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the one kernel: a cluster for each request, K/V head and tile of query rows."""
    p = problem
    name, blocks = choose(p, executor.sm_count, variant)
    tile = TILES[p.head_dim][name]
    kernel, early = f"decode_cluster{'_wide' if tile.wgmma else ''}", variant == "overlapped"
    executor.launch(
        source(kernel, **tile.macros(p), CLUSTER=blocks, EARLY=early),
        (blocks * tile.blocks_of_rows(p), p.kv_heads, p.batch),
        32 * tile.warps,
        *arguments(p, out, lse),
        shared_bytes=tile.block_bytes(p.head_dim),
    )


STAGE = Stage(
    number=None,
    name="cluster",
    title="The parts of a request meet in shared memory",
    idea="Blocks that run together share the keys of a request and send each other what they found.",
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
        "cluster": "a cluster for each request and K/V head, of as many blocks as there is room for, up to 8",
        "overlapped": "the same, and begins under the end of the kernel before it",
        "rows": "32 query rows in a block, by mma.sync",
        "wide": "64 query rows in a block, by wgmma: what more than 32 get, unless pools hold e4m3",
        "wide_3": "the same by three warpgroups instead of two, with shorter rings: for blocks of many keys",
    },
)
