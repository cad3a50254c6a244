"""The configurations of stage 16, and which one serves a problem."""

from math import inf
from typing import NamedTuple

from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.tuning import recorded

ROWS = 64


class Split(NamedTuple):
    """How keys are divided: blocks of a cluster, warpgroups of a block, keys of a tile, slots of a ring."""

    cluster: int
    warpgroups: int
    keys: int
    stages: int


ONE_BLOCK = {64: Split(1, 2, 128, 2), 128: Split(1, 2, 64, 2)}  # by head dimension
TWO_BLOCKS = {64: Split(2, 2, 128, 2), 128: Split(2, 2, 128, 1)}
FORCED = {"one_block": ONE_BLOCK, "two_blocks": TWO_BLOCKS}

# The fastest on an H200, by head dimension, for up to so many keys. FEW_ROWS: there are SMs for two blocks
# per row tile. MANY_ROWS: with more keys than hide it, two blocks of one warpgroup share an SM out of step.
# MORE_ROWS, one to three row tiles per SM: smaller blocks are all on the GPU at once, or in fewer rounds.
FEW_ROWS = {
    64: {64: Split(1, 1, 64, 1), 128: Split(2, 1, 64, 1), 256: ONE_BLOCK[64], inf: TWO_BLOCKS[64]},
    128: {64: Split(1, 1, 64, 1), 128: Split(2, 1, 64, 1), 256: Split(2, 2, 64, 1), inf: TWO_BLOCKS[128]},
}
MANY_ROWS = {
    64: {128: Split(1, 1, 64, 2), 1023: ONE_BLOCK[64], inf: Split(2, 1, 128, 2)},
    128: {64: Split(1, 1, 64, 1), 256: Split(1, 2, 128, 1), 1023: ONE_BLOCK[128], inf: Split(2, 1, 64, 2)},
}
MORE_ROWS = {
    64: {
        128: Split(1, 1, 64, 2),
        512: ONE_BLOCK[64],
        640: Split(2, 1, 160, 1),
        1024: Split(2, 1, 64, 2),
        inf: Split(2, 1, 128, 2),
    },
    128: MANY_ROWS[128],
}
TABLES = {0.5: FEW_ROWS, 1: MANY_ROWS, 3: MORE_ROWS, inf: MANY_ROWS}  # for so many row tiles per SM at most


def split_for(problem: Problem, variant: str | None, sm_count: int) -> Split:
    """The split of a variant, else that of a search of this problem, else that of the rule, `choose`."""
    if variant not in FORCED and (found := recorded.find(16, problem, sm_count)):
        return Split(*found)
    return choose(problem, variant, sm_count)


def choose(problem: Problem, variant: str | None, sm_count: int) -> Split:
    """By the rule: the split that a variant names or `TABLES` has, with no more slots than iterations."""
    row_tiles = problem.batch * problem.heads * -(-problem.seq_q // ROWS)
    table = next(table for most, table in TABLES.items() if row_tiles <= most * sm_count)
    fitting = next(split for most, split in table[problem.head_dim].items() if problem.seq_k <= most)
    split = FORCED[variant][problem.head_dim] if variant in FORCED else fitting
    iterations = -(-problem.seq_k // (split.keys * split.cluster * split.warpgroups))
    return split._replace(stages=min(split.stages, iterations))
