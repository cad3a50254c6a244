"""Decoding in CUDA C where all blocks read as many keys, however long each request is. `decode_even.cu`."""

import math
from typing import NamedTuple

import numpy as np

from cuda_reference import source
from flashcore_numba.branches.decode.decode_parts import KEYS, Tile, arguments
from flashcore_numba.branches.decode.decode_split import TILES
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import FEATURES, LENGTHS, DecodeProblem, cut_by_all_lengths
from flashcore_numba.branches.decode.split_parts import MAX_PARTS
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.stage import Stage

START = 6  # steps of a block: how long it ends a request and begins another, measured on an H200


class Division(NamedTuple):
    """How the steps of all requests, of `Tile.warps` tiles each, are divided among blocks, as the kernel does
    it: a block has `share` of a row in which a request's come after `lead` others, or are `room` apart.
    """

    share: int
    lead: int
    room: int | None

    @classmethod
    def of(cls, steps: list[int], blocks: int) -> "Division":
        """steps: of each request, at least 1."""
        longest, together = max(steps), sum(steps) + START * len(steps)
        share = max(-(-together // blocks), -(-longest // (MAX_PARTS - 1)))
        each = blocks // len(steps)
        apart = max(-(-longest // max(1, each)), -(-longest // MAX_PARTS))
        return cls(apart, 0, each * apart) if each and apart <= share else cls(share, START, None)

    def parts(self, steps: list[int]) -> list[list[tuple[int, int, int]]]:
        """Of each request: (block, first step, the step after its last), of the steps of the request."""
        found, at = [], 0
        for own in steps:
            begin, room = at + self.lead, self.room or self.lead + own
            blocks = range(begin // self.share, (begin + own - 1) // self.share + 1)
            ends = ((block, block * self.share - begin, (block + 1) * self.share - begin) for block in blocks)
            found.append([(block, max(0, first), min(own, last)) for block, first, last in ends])
            at += room
        return found


def plan(
    problem: DecodeProblem, variant: str | None, sm_count: int, room: float = math.inf
) -> tuple[Tile, int]:
    """The tile, and blocks for each head and tile of rows: as many as the GPU holds, or as steps exist."""
    p = problem
    fit = {name: tile for name, tile in TILES[p.head_dim].items() if tile.block_bytes(p.head_dim) <= room}
    large = "rows" if "rows" in fit and p.seq_q * p.group > 16 else "few"
    tile = fit.get("many" if variant in ("many", "in_turn") else large, TILES[p.head_dim]["many"])
    most = p.batch * -(-(p.capacity // KEYS + 1) // tile.warps)
    places = sm_count * tile.blocks_an_sm // (p.kv_heads * tile.blocks_of_rows(p))
    return tile, -(-p.batch // 2) if variant == "in_turn" else max(1, min(places, most))


def launch(
    problem: DecodeProblem, out: Array, executor: Executor, lse: Array = None, variant: str | None = None
) -> None:
    """Queue the one kernel."""
    p = problem
    tile, blocks = plan(p, variant, executor.sm_count, executor.shared_limit)
    part_rows = (2 * blocks, p.kv_heads, p.seq_q * p.group)
    executor.launch(
        source("decode_even", **tile.macros(p), MAX_PARTS=MAX_PARTS, START=START),
        (blocks, p.kv_heads, tile.blocks_of_rows(p)),
        32 * tile.warps,
        *(*arguments(p, out, lse), np.int32(p.batch)),
        *(executor.empty((*part_rows, p.head_dim), np.float32), executor.empty(part_rows, np.float32)),
        executor.counter(tile.blocks(p)),
        shared_bytes=tile.block_bytes(p.head_dim),
    )


STAGE = Stage(
    number=None,
    name="even",
    title="As many keys for every block",
    idea="Blocks take equal stretches of the keys of all requests, and cut a request where a stretch ends.",
    launch=launch,
    language="CUDA C",
    compute_capability=(8, 0),
    head_dims=tuple(TILES),
    elements=ACCEPTED,
    grouped_queries=True,
    features=(*FEATURES, *LENGTHS),
    outputs=(OUT, LSE),
    operation=DECODE,
    limit=cut_by_all_lengths,
    variants={
        "even": "a block fills an SM, where it fits, with 16 query rows or 32",
        "many": "three blocks share an SM",
        "in_turn": "a block for two requests, so that each has several",
    },
    # Of the smallest tile, which is taken where the others do not fit.
    shared_bytes=lambda d, variant: TILES[d]["many"].block_bytes(d),
)
