"""What kernels of decoding in CUDA C share: how a block divides its keys among warps, and its arguments.

`cuda_reference/include/decode_keys.cuh` says what the macros mean.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.core.executor import Array
from flashcore_numba.core.scaled import scale_arguments
from flashcore_numba.stages.parts.cuda_arguments import defines, feature_arguments, strides

KEYS = 16  # of a tile
ALIKE_KEYS = 8192  # of a request: where there is room for more, others of the batch may have far fewer
NO_PAGE_ENDS = 1 << 30  # the page of a request that is in one


class Tile(NamedTuple):
    """16-row tiles of a block, its warps, slots of a warp's ring, blocks that an SM has room for.

    Slots have K and V of 16 keys, as elements; those of e4m3 are half as large and twice as many. wgmma: the
    four warps of a warpgroup multiply 64 rows, and have a ring whose slots have K or V of 64 keys.
    """

    row_tiles: int
    warps: int
    stages: int
    blocks_an_sm: int
    wgmma: bool = False

    @property
    def sharers(self) -> int:
        """Warps that have a ring and a part of the keys together."""
        return 4 if self.wgmma else 1

    def serves(self, problem: DecodeProblem) -> bool:
        """Whether its products take what the pools hold."""
        return not (self.wgmma and problem.e4m3)

    def macros(self, problem: DecodeProblem) -> dict[str, Any]:
        """What a kernel is compiled with."""
        p = problem
        no_page_ends_in_a_tile = p.page % KEYS == 0 or p.width == 1
        own: dict[str, Any] = {} if self.wgmma else {"ROW_TILES": self.row_tiles}
        own |= {"WARPS": self.warps, "STAGES": self.stages}
        if p.e4m3:
            own |= {"E4M3": True, "STAGES": 2 * self.stages}
        own |= {"BLOCKS_PER_SM": self.blocks_an_sm, "HEAD_DIM": p.head_dim, "BLOCK_N": KEYS * self.sharers}
        own |= {"RUN": KEYS if no_page_ends_in_a_tile else 1, "PAGED": p.paged}
        return own | defines(p) | ({"USED": True} if p.paged else {})

    def block_bytes(self, head_dim: int) -> int:
        """Of dynamic shared memory: the rings and Q."""
        halves = 1 if self.wgmma else 2  # of a slot: K, V
        return 2 * head_dim * (halves * KEYS * self.warps * self.stages + 16 * self.row_tiles)

    def blocks_of_rows(self, problem: DecodeProblem) -> int:
        """That the query rows of one K/V head and request take."""
        return -(-problem.seq_q * problem.group // (16 * self.row_tiles))

    def blocks(self, problem: DecodeProblem) -> int:
        """The same of all requests and heads, for each part of the keys."""
        return problem.batch * problem.kv_heads * self.blocks_of_rows(problem)


def most_keys(problem: DecodeProblem) -> int:
    """That the query rows of a request can see."""
    p, mask = problem, problem.mask
    bounded = min(mask.left, mask.right) >= 0
    return min(p.capacity, mask.left + mask.right + p.seq_q) if bounded else p.capacity


def may_differ(problem: DecodeProblem) -> bool:
    """Whether lengths on the GPU may make some requests of the batch far longer than others."""
    return problem.paged and problem.batch > 1 and most_keys(problem) > ALIKE_KEYS


def arguments(problem: DecodeProblem, out: Array, lse: Array) -> tuple:
    """q, k, v, out, lse, then those for PARAMS and CACHE_PARAMS."""
    p = problem
    pools = (p.k_pool, p.v_pool)
    heads_first = (pool.swapaxes(1, 2) for pool in pools) if p.paged else pools  # [pages, H_kv, page, D]
    return (
        *(p.q, p.k_pool, p.v_pool, out, lse),
        *(step for x in (p.q, *heads_first, out) for step in strides(x)),
        *(np.int32(n) for n in (p.seq_q, p.capacity, p.heads, p.group)),
        *(np.float32(p.scale * math.log2(math.e)), np.int32(p.causal)),
        *(*feature_arguments(p), *([p.lengths] if p.paged else [])),
        *(p.block_table, np.int32(p.table_row), np.int32(NO_PAGE_ENDS if p.width == 1 else p.page)),
        np.uint32(-(-(1 << 31) // p.group)),
        *(scale_arguments(p.k_scale, p.v_scale) if p.e4m3 else ()),
    )
