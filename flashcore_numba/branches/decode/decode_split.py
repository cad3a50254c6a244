"""Decoding in CUDA C: the block that comes last merges the parts of a request. `decode_split.cu`."""

import math

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.decode import split_parts
from flashcore_numba.branches.decode.decode_parts import KEYS, Tile, arguments, may_differ
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import FEATURES, LENGTHS, DecodeProblem
from flashcore_numba.branches.decode.split_parts import MAX_PARTS
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.stage import Stage

# By head dimension: where each SM has at most one block to run, for more, and for more than 16 rows.
TILES: dict[int, dict[str, Tile]] = {
    64: {"few": Tile(1, 8, 4, 1), "many": Tile(1, 4, 4, 3), "rows": Tile(2, 8, 4, 1)},
    128: {"few": Tile(1, 8, 3, 1), "many": Tile(1, 4, 2, 3), "rows": Tile(2, 8, 3, 1)},
    256: {"few": Tile(1, 4, 3, 1), "many": Tile(1, 2, 2, 3)},
}
PART_ELEMENTS = {"few": 3 << 18, "many": 1 << 18, "rows": 1 << 18}  # of K in a part of a long request
INVARIANT_PARTS = 16  # what a request is divided into where the batch must not tell


def choose(problem: DecodeProblem, sm_count: int, room: float = math.inf) -> tuple[str, int]:
    """The tile, and into how many parts a request is divided that is not too long for them.

    They fill the GPU if all requests are long. What is batch-invariant follows from a request alone.
    """
    p, tiles = problem, TILES[problem.head_dim]
    fit = {name: tile for name, tile in tiles.items() if tile.block_bytes(p.head_dim) <= room}
    if "rows" in fit and p.seq_q * p.group > 16:
        name = "rows"
    elif "few" in fit and not p.batch_invariant and tiles["few"].blocks(p) <= sm_count:
        name = "few"
    else:
        name = "many"
    if p.batch_invariant:
        return name, INVARIANT_PARTS
    places = sm_count * tiles[name].blocks_an_sm
    return name, max(1, min(MAX_PARTS, places // tiles[name].blocks(p)))


def longest_part(problem: DecodeProblem, name: str) -> int:
    """Tiles of keys beyond which a part is divided, where requests may be of very different lengths."""
    p = problem
    uneven = p.batch_invariant or may_differ(p)
    return PART_ELEMENTS[name] // (p.head_dim * KEYS) if uneven else p.capacity // KEYS + 1


def plan(
    problem: DecodeProblem, variant: str | None, sm_count: int, room: float = math.inf
) -> tuple[str, int, int, int, int]:
    """The tile, parts as `choose` has them, `longest_part`, the most parts that lengths could make of all
    requests, and blocks for each head and tile of rows: as many as the GPU holds, or as there may be parts.
    """
    p, tiles = problem, TILES[problem.head_dim]
    name, at_least = choose(p, sm_count, room)
    if variant == "in_turn":
        return "many", 2, longest_part(p, "many"), MAX_PARTS * p.batch, -(-p.batch // 2)
    name = variant if variant and variant in tiles else name
    longest = longest_part(p, name)
    return name, at_least, longest, *split_parts.sizes(p, tiles[name], at_least, longest, sm_count)


def launch(
    problem: DecodeProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    p = problem
    name, *parts = plan(p, variant, executor.sm_count, executor.shared_limit)
    run(p, out, executor, lse, TILES[p.head_dim][name], *parts)


def run(problem: DecodeProblem, out: Array, executor: Executor, lse: Array, tile: Tile, *parts: int) -> None:
    """Queue the one kernel, in any configuration. parts: at least, the longest, the most, blocks, as `plan`
    has them.
    """
    p, (*told, blocks) = problem, parts
    part_rows = (p.batch, p.kv_heads, MAX_PARTS, p.seq_q * p.group)
    executor.launch(
        source("decode_split", **tile.macros(p), MAX_PARTS=MAX_PARTS),
        (blocks, p.kv_heads, tile.blocks_of_rows(p)),
        32 * tile.warps,
        *(*arguments(p, out, lse), *(np.int32(n) for n in (p.batch, *told))),
        *(executor.empty((*part_rows, p.head_dim), np.float32), executor.empty(part_rows, np.float32)),
        executor.counter(tile.blocks(p)),
        shared_bytes=tile.block_bytes(p.head_dim),
    )


STAGE = Stage(
    number=None,
    name="split",
    title="One launch at the speed of memory",
    idea="A warp streams its own keys past all rows that read them; who comes last merges what others left.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    head_dims=tuple(TILES),
    elements=ACCEPTED,
    grouped_queries=True,
    features=(*FEATURES, *LENGTHS),
    outputs=(OUT, LSE),
    operation=DECODE,
    variants={
        "few": "a block fills an SM: for few requests and heads",
        "many": "three blocks share an SM, so that one works while another starts or ends",
        "rows": "32 query rows in a block, for several tokens of large groups",
        "in_turn": "requests in two parts, and blocks that take several of these one after the other",
        "split": "one of the first three, by the numbers of requests, heads and rows",
    },
    # Where the launcher chooses: of the tile that it takes on small GPUs.
    shared_bytes=lambda d, variant: TILES[d].get(variant or "", TILES[d]["many"]).block_bytes(d),
)
