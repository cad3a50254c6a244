"""Stage 15: loading, multiplying and softmax at the same time. The kernel: `stage15_ping_pong.cu`."""

import math
from typing import NamedTuple

import numpy as np

from cuda_reference import source

from .cuda_arguments import scalars, tile_map
from .stage import Stage

FILE = "stage15_ping_pong"
ROWS, STORED_ROWS = 64, 16  # of a warpgroup, and of what one warp stores
L2_BYTES = 32 << 20  # of K and V that blocks which run at the same time should share
# By warpgroups that multiply: registers of their threads and of the producer's. All together are no more than
# the block starts with, or setmaxnreg would wait for ever.
REGISTERS = {1: (240, 40), 2: (232, 40), 3: (160, 32), 4: (112, 32)}


class Tile(NamedTuple):
    """A configuration: warpgroups that multiply, keys a K/V tile, slots of the rings, and what overlaps.

    overlap: a warpgroup's softmax and its own P V. turns: warpgroups take turns at the tensor cores. lazy: no
    maximum as long as the weights stay small. polynomials: of 16 exponentials so many leave the
    special-function unit.
    """

    consumers: int
    keys: int
    stages: int
    overlap: bool = True
    turns: bool = True
    lazy: bool = True
    polynomials: int = 0


TILES = {64: Tile(4, 64, 4, overlap=False), 128: Tile(3, 80, 3)}  # by head dimension
# Where large pieces of work would leave SMs idle, others. On an H200, microseconds: of a tile of keys; and of
# what a piece adds, and the launch that begins to deal pieces out.
TIMES = {
    64: {TILES[64]: 1.03, Tile(3, 128, 2): 1.66, Tile(2, 128, 3): 1.40, Tile(2, 192, 2): 2.02},
    128: {TILES[128]: 1.33, Tile(2, 128, 2): 1.68},
}
PIECE_TIME = BEGIN_TIME = 2.0
VARIANTS = {"in_sequence": {"overlap": False, "turns": False, "lazy": False, "polynomials": 0}}


def run(problem, out, executor, lse, tile, longest_first):
    """Launch any configuration, measured ones and those that a sweep tries."""
    p, rows = problem, ROWS * tile.consumers
    registers, producer_registers = REGISTERS[tile.consumers]
    defines = {
        "HEAD_DIM": p.head_dim,
        "CONSUMERS": tile.consumers,
        "BLOCK_N": tile.keys,
        "STAGES": tile.stages,
        "OVERLAP": tile.overlap,
        "PING_PONG": tile.turns and tile.consumers > 1,
        "LAZY_MAX": tile.lazy,
        "POLYNOMIALS": tile.polynomials,
        "CONSUMER_REGISTERS": registers,
        "PRODUCER_REGISTERS": producer_registers,
    }
    works = p.batch * p.heads * -(-p.seq_q // rows)
    # Longest first, over as many heads at a time as the L2 holds K and V of.
    together = p.group * max(1, L2_BYTES // (4 * p.head_dim * p.seq_k)) if longest_first else 1
    blocks = min(works, executor.sm_count)
    next_work = None
    if longest_first and blocks < works:  # pieces of different length: a block that is done takes the next
        next_work = executor.empty((1,), np.int32)
        executor.launch(source(FILE, "ping_pong_begin", **defines), 1, 1, next_work, np.int32(blocks))
    maps = (tile_map(p.q, ROWS), *(tile_map(x, tile.keys) for x in (p.k, p.v)), tile_map(out, STORED_ROWS))
    executor.launch(
        source(FILE, **defines),
        blocks,
        128 * (tile.consumers + 1),
        *(*maps, lse),
        *scalars(p, p.scale * math.log2(math.e)),
        *(np.int32(p.batch * p.heads), np.int32(min(together, p.batch * p.heads)), next_work),
        shared_bytes=4 * p.head_dim * (rows + tile.stages * tile.keys) + 8 * (4 * tile.stages + 3),
    )


def choose(problem, variant, sm_count):
    """The configuration of a variant, and whether the longest pieces of work go first."""
    p = problem
    tile = TILES[p.head_dim]._replace(**VARIANTS.get(variant, {}))
    if variant not in VARIANTS and 2 * _pieces(p, 2) > sm_count:  # with fewer rows, stage 16 is for them
        tile = min(TIMES[p.head_dim], key=lambda tile: _predicted(p, tile, sm_count))
    # An order matters to blocks that wait for a place.
    return tile, p.causal and _pieces(p, tile.consumers) > sm_count


def _pieces(p, consumers):
    return p.batch * p.heads * -(-p.seq_q // (ROWS * consumers))


def _predicted(p, tile, sm_count):
    """Microseconds of a launch: pieces of one length go in rounds, others fill each other's gaps."""
    pieces, longest = _pieces(p, tile.consumers), math.ceil(p.seq_k / tile.keys)
    rounds = math.ceil(pieces / sm_count)
    tiles, time = rounds * longest, rounds * PIECE_TIME
    if p.causal:
        shortest = math.ceil(max(0, p.seq_k - p.seq_q + ROWS * tile.consumers) / tile.keys)
        tiles = max(longest, pieces / sm_count * (longest + shortest) / 2)
        time += BEGIN_TIME * (rounds > 1)
    return time + tiles * TIMES[p.head_dim][tile]


def launch(problem, out, executor, lse=None, variant=None):
    run(problem, out, executor, lse, *choose(problem, variant, executor.sm_count))


STAGE = Stage(
    number=15,
    name="ping_pong",
    title="Softmax under the products",
    idea="A warp loads, and warpgroups take turns: while one multiplies, the others exponentiate.",
    launch=launch,
    language="CUDA C",
    compute_capability=(9, 0),
    no_other_gpu=True,
    grouped_queries=True,
    returns_lse=True,
    variants={
        "in_sequence": "a warpgroup's products and then its softmax, nothing of what the others add",
        "ping_pong": "turns at the tensor cores, the lazy maximum; at D = 128 also softmax under P V",
    },
)
