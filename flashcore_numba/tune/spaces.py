"""What a search may try of a stage: its parameters, their values, and the rules that a configuration keeps.

A rule is a sentence and a test. What only the compiler knows, spills for example, is no rule.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flashcore_numba.branches.backward import backward_mma_sync, backward_wgmma, mma_sync_tiles, wgmma_tiles
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.branches.decode import decode_parts, decode_split, split_parts
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages import (
    stage12_mma_sync,
    stage13_split_kv,
    stage15_ping_pong,
    stage16_cluster_split,
)
from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.tuning import recorded, stage12_tiles, stage13_tiles, stage15_tiles, stage16_tiles

Config = Mapping[str, Any]

SM_BYTES, BLOCK_BYTES = 228 << 10, 227 << 10  # shared memory of an SM and of a block, on Hopper
RESERVED = 1 << 10  # bytes of shared memory that each block takes beside its own
SM_THREADS = 2048


@dataclass(frozen=True)
class Rule:
    """What every configuration keeps; `says` is a sentence about those that do not."""

    says: str
    kept: Callable[[Any, Config], bool]


@dataclass(frozen=True)
class Space:
    """The configurations of one stage: all combinations of `values` that keep the rules.

    run: launches one; its last arguments are the stage's outputs. rule: what the stage's rule chooses for a
    problem on a GPU with so many SMs. The problem is that of the stage's operation. looked_up: whether the
    stage asks what a search recorded; one that cannot see what its time depends on does not.
    """

    stage: Stage
    values: Mapping[str, tuple]
    rules: tuple[Rule, ...]
    run: Callable[..., None]
    rule: Callable[[Any, int], Config]
    looked_up: bool = True

    @property
    def key(self) -> int | str:
        """The stage's number, or `backward/wgmma` where it has none."""
        return self.stage.number or self.stage.key

    def shipped(self, problem: Any, sm_count: int) -> Config:
        """What the stage launches: what a recorded search found for this problem, else what its rule says."""
        values = recorded.find(self.key, problem, sm_count) if self.looked_up else None
        return self.rule(problem, sm_count) if values is None else self.config(values)

    def config(self, values: Iterable[int]) -> Config:
        """A configuration, of values in the order of the parameters."""
        return dict(zip(self.values, values, strict=True))

    def broken(self, problem: Any, config: Config) -> str | None:
        """What the first rule says that a configuration breaks; None for one that is legal."""
        return next((rule.says for rule in self.rules if not rule.kept(problem, config)), None)

    def points(self, problem: Any) -> Iterator[tuple[Config, str | None]]:
        """Every combination, with what the first rule says that it breaks, None for one that is legal."""
        for values in itertools.product(*self.values.values()):
            config = self.config(values)
            yield config, self.broken(problem, config)

    def configured(self, config: Config, problem: Any) -> Stage:
        """The stage as it runs this configuration, for problems of this head dimension without features,
        under a name of its own.
        """

        def launch(problem: Any, *, executor: Executor, variant: str | None = None, **outputs: Array) -> None:
            self.run(problem, executor, config, **outputs)

        return replace(
            self.stage,
            name=name_of(config),
            launch=launch,
            variants={},
            head_dims=(problem.head_dim,),
            value_dims=False,
            features=(),
        )


def name_of(config: Config) -> str:
    """`2,4,64,2,1`: the values in order, a flag as 0 or 1."""
    return ",".join(str(int(value)) for value in config.values())


def _fits(block_bytes: Callable[[Any, Config], int]) -> tuple[Rule, Rule]:
    return (
        Rule("a block needs more shared memory than there is", lambda p, c: block_bytes(p, c) <= BLOCK_BYTES),
        Rule(
            "the blocks of an SM need more shared memory than it has",
            lambda p, c: c.get("blocks", 1) * (block_bytes(p, c) + RESERVED) <= SM_BYTES,
        ),
    )


def _divisors(rows_per_warp: int) -> Rule:
    """Warps copy K and V some rows at a time."""
    return Rule(
        "a K/V tile has too few keys for all warps to copy",
        lambda p, c: c["keys"] * c.get("key_warps", 1) >= rows_per_warp * _warps(c),
    )


def _warps(c: Config) -> int:
    return c["warps"] if "warps" in c else c["row_warps"] * c["key_warps"]


THREADS_12 = Rule(
    "the blocks of an SM have more threads than it", lambda p, c: 32 * _warps(c) * c["blocks"] <= SM_THREADS
)


def _rule_12(p: Problem, sm_count: int) -> Config:
    tile = stage12_tiles.tile_for(p, None, sm_count, BLOCK_BYTES, searched=False)
    row_tiles, warps, keys, blocks, lazy = tile
    return {"row_tiles": row_tiles, "warps": warps, "keys": keys, "blocks": blocks, "lazy": int(lazy)}


def _rule_13(p: Problem, sm_count: int) -> Config:
    name, splits = stage13_tiles.choose(p, sm_count)
    row_tiles, row_warps, key_warps, keys, blocks, lazy = stage13_tiles.TILES[p.head_dim][name]
    return {
        "row_tiles": row_tiles,
        "row_warps": row_warps,
        "key_warps": key_warps,
        "keys": keys,
        "blocks": blocks,
        "lazy": int(lazy),
        "splits": splits,
    }


def _tile_15(c: Config) -> stage15_tiles.Tile:
    *of_a_tile, _ = c.values()
    return stage15_tiles.Tile.of(of_a_tile)


def _rule_15(p: Problem, sm_count: int) -> Config:
    tile, longest_first = stage15_tiles.choose(p, None, sm_count)
    if tile.consumers == 1:
        tile = tile._replace(turns=False)
    return {name: int(value) for name, value in tile._asdict().items()} | {
        "longest_first": int(longest_first)
    }


def _split_16(c: Config) -> stage16_tiles.Split:
    return stage16_tiles.Split(**c)


def _run_16(p: Problem, executor: Executor, c: Config, out: Array, lse: Array = None) -> None:
    split = _split_16(c)
    split = split._replace(stages=min(split.stages, _tiles_16(p, c)))
    stage16_cluster_split.launch_split(p, out, executor, lse, split)


def _tiles_16(p: Problem, c: Config) -> int:
    """Of keys, that one ring sees."""
    return -(-p.seq_k // (c["keys"] * c["cluster"] * c["warpgroups"]))


def _tile_wgmma(c: Config) -> wgmma_tiles.Tile:
    return wgmma_tiles.Tile.of(c.values())


def _rule_wgmma(p: BackwardProblem, sm_count: int) -> Config:
    tile = wgmma_tiles.TILES[p.head_dim]
    return {name: int(x) for name, x in tile._asdict().items() if name != "deterministic"}


def _tile_decode(c: Config) -> decode_parts.Tile:
    return decode_parts.Tile(c["row_tiles"], c["warps"], c["stages"], c["blocks"])


def _run_decode(p: DecodeProblem, executor: Executor, c: Config, out: Array, lse: Array = None) -> None:
    tile, parts, longest = _tile_decode(c), c["parts"], c["longest"]
    sizes = split_parts.sizes(p, tile, parts, longest, executor.sm_count)
    decode_split.run(p, out, executor, lse, tile, parts, longest, *sizes)


def _rule_decode(p: DecodeProblem, sm_count: int) -> Config:
    name, parts = decode_split.choose(p, sm_count, BLOCK_BYTES)
    tile = decode_split.TILES[p.head_dim][name]
    return {
        "row_tiles": tile.row_tiles,
        "warps": tile.warps,
        "stages": tile.stages,
        "blocks": tile.blocks_an_sm,
        "parts": parts,
        "longest": decode_split.longest_part(p, name),
    }


def _tile_mma_sync(c: Config) -> mma_sync_tiles.Tile:
    return mma_sync_tiles.Tile.of(c.values())


def _rule_mma_sync(p: BackwardProblem, sm_count: int) -> Config:
    tile = mma_sync_tiles.TILES[p.head_dim][mma_sync_tiles.choose(p, sm_count, BLOCK_BYTES)]
    split = tile.kernel == mma_sync_tiles.SPLIT
    return {
        "keys": tile.keys,
        "rows": tile.rows,
        "warps": tile.warps,
        "blocks": tile.blocks_an_sm,
        "split": int(split),
        "late": int(tile.late),
    }


def _parts_mma_sync(p: BackwardProblem, c: Config) -> bool:
    """Whether warps have whole parts of S, of dV or dK, and of dQ; without `split`, of keys and of dQ."""
    keys, rows, warps = c["keys"], c["rows"], c["warps"]
    if not c["split"]:
        return keys in (16 * warps, 32 * warps) and warps % (rows // 16) == 0
    of_rows = warps * 32 // keys  # warps that have the same keys
    columns = min(32, keys * rows // (32 * warps))
    return (
        of_rows * keys == warps * 32
        and columns % 16 == 0
        and rows % (of_rows * columns) == 0
        and keys * p.head_dim // 64 % (8 * warps) == 0
        and p.head_dim * rows // (32 * warps) % 16 == 0
    )


SPACES: Mapping[int | str, Space] = {
    12: Space(
        stage12_mma_sync.STAGE,
        {"row_tiles": (1, 2), "warps": (2, 4, 8), "keys": (32, 64, 128), "blocks": (1, 2, 3), "lazy": (0, 1)},
        (
            *_fits(
                lambda p, c: stage12_tiles.block_bytes(p.columns, 16 * c["row_tiles"] * c["warps"], c["keys"])
            ),
            THREADS_12,
            _divisors(4),
        ),
        lambda p, executor, c, out, lse=None: stage12_mma_sync.run(
            p, out, executor, lse, stage12_tiles.tile_of(c.values())
        ),
        _rule_12,
    ),
    13: Space(
        stage13_split_kv.STAGE,
        {
            "row_tiles": (1, 2),
            "row_warps": (1, 2, 4),
            "key_warps": (1, 2, 4),
            "keys": (16, 32, 64, 128),
            "blocks": (1, 2, 3),
            "lazy": (0, 1),
            "splits": (1, 2, 3, 4, 6, 8),
        },
        (
            *_fits(
                lambda p, c: stage13_tiles.block_bytes(
                    p.head_dim, 16 * c["row_tiles"] * c["row_warps"], c["key_warps"], c["keys"]
                )
            ),
            THREADS_12,
            _divisors(4),
            Rule(
                "a part of the keys is less than one step of a block",
                lambda p, c: c["splits"] == 1 or p.seq_k >= c["splits"] * c["key_warps"] * c["keys"],
            ),
        ),
        lambda p, executor, c, out, lse=None: stage13_split_kv.run(
            p, out, executor, lse, *stage13_tiles.tile_of(c.values())
        ),
        _rule_13,
    ),
    15: Space(
        stage15_ping_pong.STAGE,
        {
            "consumers": (1, 2, 3, 4),
            "keys": (48, 64, 80, 96, 112, 128, 160, 192),
            "stages": (2, 3, 4),
            "overlap": (0, 1),
            "turns": (0, 1),
            "lazy": (0, 1),
            "polynomials": (0, 4),
            "blocks": (1, 3),
            "queries": (0, 1, 4),
            "two_q": (0, 1),
            "longest_first": (0, 1),
        },
        (
            *_fits(lambda p, c: stage15_ping_pong.block_bytes(p, _tile_15(c))),
            Rule(
                "the registers of so many threads are not divided among them",
                lambda p, c: (c["consumers"], c["blocks"]) in stage15_ping_pong.REGISTERS,
            ),
            Rule("one warpgroup takes no turns", lambda p, c: c["consumers"] > 1 or not c["turns"]),
            Rule(
                "without a causal mask all work tiles are as long",
                lambda p, c: p.causal or not c["longest_first"],
            ),
            Rule(
                "a maximum that waits for large scores is not for scores that are adjusted",
                lambda p, c: not (p.features.adjusting and c["lazy"]),
            ),
            Rule("Q has fewer columns", lambda p, c: 16 * c["queries"] <= p.head_dim),
        ),
        lambda p, executor, c, out, lse=None: stage15_ping_pong.run(
            p, out, executor, lse, _tile_15(c), bool(c["longest_first"])
        ),
        _rule_15,
    ),
    16: Space(
        stage16_cluster_split.STAGE,
        {
            "cluster": (1, 2),
            "warpgroups": (1, 2),
            "keys": (48, 64, 80, 96, 112, 128, 160, 192, 256),
            "stages": (1, 2, 3, 4),
        },
        (
            _fits(lambda p, c: stage16_cluster_split.shared_bytes(p.head_dim, _split_16(c)))[0],
            Rule(
                "the ring has more slots than there are tiles",
                lambda p, c: c["stages"] <= _tiles_16(p, c),
            ),
        ),
        _run_16,
        lambda p, sm_count: stage16_tiles.choose(p, None, sm_count)._asdict(),
    ),
    "backward/mma_sync": Space(
        backward_mma_sync.STAGE,
        {
            "keys": (32, 64, 128),
            "rows": (32, 64, 128),
            "warps": (4, 8),
            "blocks": (1, 2, 3),
            "split": (0, 1),
            "late": (0, 1),
        },
        (
            *_fits(lambda p, c: _tile_mma_sync(c).block_bytes(p.head_dim)),
            THREADS_12,
            Rule(
                "products come late in the kernel that splits them", lambda p, c: c["split"] or not c["late"]
            ),
            Rule("the warps cannot have whole parts of all products", _parts_mma_sync),
            Rule(
                "rows of P in shared memory are 64 queries or more",
                lambda p, c: not c["split"] or c["rows"] >= 64,
            ),
        ),
        lambda p, executor, c, dq, dk, dv: backward_mma_sync.run(p, dq, dk, dv, executor, _tile_mma_sync(c)),
        _rule_mma_sync,
    ),
    "backward/wgmma": Space(
        backward_wgmma.STAGE,
        {
            "rows": (64, 128),
            "stages": (2, 3, 4),  # the next S is asked for while Q of this one is read
            "ping_pong": (0, 1),
            "dv_early": (0, 1),
            "heads_together": (1, 2, 4, 8),
        },
        (
            _fits(lambda p, c: backward_wgmma.block_bytes(p.head_dim, _tile_wgmma(c)))[0],
            Rule(
                "there are fewer K/V heads",
                lambda p, c: c["heads_together"] <= p.kv_heads,
            ),
        ),
        lambda p, executor, c, dq, dk, dv: backward_wgmma.run(p, dq, dk, dv, executor, _tile_wgmma(c)),
        _rule_wgmma,
    ),
    "decode/split": Space(
        decode_split.STAGE,
        {
            "row_tiles": (1, 2),
            "warps": (2, 4, 8),
            "stages": (2, 3, 4, 6),
            "blocks": (1, 2, 3),
            "parts": (1, 2, 4, 8, 16, 32),
            "longest": (128, 256, 512, 1024),
        },
        (
            *_fits(lambda p, c: _tile_decode(c).block_bytes(p.head_dim)),
            THREADS_12,
            Rule(
                "the rows of O do not fit into the ring of a warp",
                lambda p, c: c["row_tiles"] * (p.head_dim + 8) <= p.head_dim * c["stages"],
            ),
            Rule(
                "the parts that a block merges do not fit into the rings",
                lambda p, c: p.head_dim * c["stages"] >= 8 * decode_split.MAX_PARTS,
            ),
        ),
        _run_decode,
        _rule_decode,
        looked_up=False,  # lengths are on the GPU: what is recorded would be for other ones
    ),
}
"""By the number of the stage, or its name where it has none."""
