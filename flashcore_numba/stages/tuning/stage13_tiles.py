"""The configurations of stage 13, and which one serves a problem."""

from collections.abc import Iterable

from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import row_tiles_at_most
from flashcore_numba.stages.tuning import recorded

Tile = tuple[int, int, int, int, int, bool]

# 16-row tiles per warp, warps along rows and along keys, keys per warp and step, blocks per SM, lazy maximum.
LARGE = (2, 4, 1, 64, 2, True)
TILES = {  # by head dimension
    64: {"large": LARGE, "medium": (1, 4, 2, 64, 1, True), "small": (1, 2, 2, 64, 1, False)},
    128: {"large": LARGE, "medium": (1, 4, 2, 32, 1, True), "small": (1, 2, 2, 32, 1, False)},
}
STAGES = 2
KEYS_WORTH_A_SPLIT = 512  # a large tile with fewer keys spends too much of its time starting and merging


def tile_for(problem: Problem, variant: str | None, sm_count: int) -> tuple[Tile, int]:
    """The tile and the splits of a search of this problem, else those of the rule, `choose`; or a variant's
    splits.
    """
    if found := recorded.find(13, problem, sm_count):
        tile, splits = tile_of(found)
    else:
        name, splits = choose(problem, sm_count)
        tile = TILES[problem.head_dim][name]
    return tile, {"unsplit": 1, "two_splits": 2}.get(variant or "", splits)


def tile_of(values: Iterable[int]) -> tuple[Tile, int]:
    """The tile and the splits, from the numbers of a search in the order of its space."""
    row_tiles, row_warps, key_warps, keys, blocks_an_sm, lazy, splits = values
    return (row_tiles, row_warps, key_warps, keys, blocks_an_sm, bool(lazy)), splits


def choose(problem: Problem, sm_count: int) -> tuple[str, int]:
    """(tile, splits): many keys of few rows are divided among blocks, few keys among smaller tiles."""
    p = problem
    packed = p.sequence_count // p.batch
    rows, keys = p.seq_q // packed, p.seq_k // packed  # of a sequence, on average
    if p.mask.left >= 0 and p.mask.right >= 0:
        keys = min(keys, p.mask.left + 1 + p.mask.right)

    def blocks(name: str) -> int:
        row_tiles, row_warps, *_ = TILES[p.head_dim][name]
        return p.batch * p.heads * row_tiles_at_most(p, 16 * row_tiles * row_warps)

    places = TILES[p.head_dim]["large"][4] * sm_count
    if blocks("large") >= 0.75 * places:
        return "large", 1
    splits = places // blocks("large")
    if rows >= 128 and splits > 1 and keys >= splits * KEYS_WORTH_A_SPLIT:
        return "large", splits
    if blocks("medium") >= 0.75 * sm_count * (2 if p.causal else 1):
        return "medium", 1
    splits = min(sm_count // blocks("small"), keys // KEYS_WORTH_A_SPLIT)
    return "small", max(1, splits)


def block_bytes(head_dim: int, rows: int, key_warps: int, keys: int) -> int:
    """Of shared memory: Q and the K/V tiles, or later what warps along the keys merge."""
    step = key_warps * keys
    return max(2 * head_dim * (rows + 2 * STAGES * step), 4 * key_warps * rows * (head_dim + 8))
