"""The stages of decoding in CUDA C: right in every case and order, for each variant, and without spills."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from matrix import few

from flashcore_numba import attention_paged
from flashcore_numba.branches.decode import decode_cluster, decode_even, decode_split, ladder
from flashcore_numba.branches.decode.decode_cluster import CLUSTER as CLUSTER_BLOCKS
from flashcore_numba.branches.decode.decode_even import Division
from flashcore_numba.branches.decode.decode_split import INVARIANT_PARTS, choose
from flashcore_numba.branches.decode.decode_traffic import tiles_of_rows, words
from flashcore_numba.branches.decode.inputs import paged
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.split_parts import MAX_PARTS, most_parts, parts_of
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.element import BFLOAT16, E4M3
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.features import Features
from flashcore_numba.core.wrapping import Idle
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.predict.formula import stores
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages.runs import Run

SPLIT, CLUSTER, EVEN = decode_split.STAGE, decode_cluster.STAGE, decode_even.STAGE
RUNS = [(stage, variant) for stage in (SPLIT, CLUSTER, EVEN) for variant in stage.variants]
QUICK = ((SPLIT, "in_turn"), (CLUSTER, "cluster"), (CLUSTER, "wide"), (EVEN, "even"), (EVEN, "in_turn"))
SMALLEST_SHARED = 99 * 1024  # bytes that a block may have at compute capability 8.9, the least from 8.0 on
HOPPERS_SHARED = 227 * 1024
TELLING = (
    "5 tokens, causal, 4 query heads on 2", "100 times as many keys", "sinks: with a window and a softcap",
)  # fmt: skip
label = lambda x: getattr(x, "label", x)  # noqa: E731


def decoded(stage, x, variant=None, **options):
    """out and lse, after a check that no launch reports anything; what is not written stays NaN."""
    executor = Simulator(**options)
    found = stage.run(
        x.problem(x.arrays), executor, variant, lambda shape, dtype: np.full(shape, np.nan, dtype)
    )
    executor.check()
    return found


def assert_right(x, found):
    reference = DECODE.reference(x)
    for output in DECODE.outputs:
        verdict = DECODE.judge(output, found[output.name], reference, None)
        assert verdict.passed, (x.label, output.name, verdict)


def same_bits(one, other):
    return all(np.array_equal(one[name], other[name]) for name in ("out", "lse"))


@pytest.mark.long
@pytest.mark.parametrize(("stage", "variant"), RUNS, ids=label)
def test_cases(stage, variant, rng):
    """Half of the cases, which each run draws; of the variants, fewer."""
    every = names(stage)
    count = len(every) // 2 if variant == stage.name else 12
    chosen = rng.choice(every, count, replace=False)
    report = check_stage(stage, variant, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen) and len(every) > 60


@pytest.mark.parametrize(("stage", "variant"), few(RUNS, *QUICK), ids=label)
def test_the_cases_that_tell_most(stage, variant):
    report = check_stage(stage, variant, names=TELLING)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(TELLING)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("stage", "variant"), RUNS, ids=label)
def test_every_head_dimension_in_every_order(stage, variant, head_dim, rng):
    sinks = rng.standard_normal(6).astype(np.float32)
    features = Features(window=(int(rng.integers(200, 400)), -1), softcap=4.0, sinks=sinks)
    for tokens, given in ((2, Features()), (7, features)):
        x = paged(rng, [600, 0, 90], 6, 2, tokens, head_dim, 48, features=given, element=BFLOAT16)
        for order in ("reverse", f"random:{rng.integers(1000)}"):
            assert_right(x, decoded(stage, x, variant, order=order, ops=False, sm_count=3))


@pytest.mark.long
@pytest.mark.parametrize("stage", [SPLIT, EVEN], ids=label)
def test_more_requests_than_a_warp_has_lanes(stage, rng):
    x = paged(rng, rng.integers(0, 90, 70).tolist(), 2, 1)
    for sm_count in (1, 5, 132):
        assert_right(x, decoded(stage, x, sm_count=sm_count, ops=False))


@pytest.mark.long
@pytest.mark.parametrize("stage", [SPLIT, CLUSTER], ids=label)
def test_a_request_has_the_same_bits_alone_and_on_other_pages(stage, rng):
    """With batch_invariant, where without it the batch would tell: on few SMs, of long requests."""
    lengths = [900, 0, 333, 1500]
    x = paged(rng, lengths, 4, 1, 2, batch_invariant=True)
    together = decoded(stage, x, sm_count=2, ops=False)
    for number, length in enumerate(lengths):
        one = x.request(number)
        k, v = (np.full((1, max(1, length), 1, 64), np.nan, np.float16) for _ in range(2))
        k[0, :length], v[0, :length] = one.k[0].swapaxes(0, 1), one.v[0].swapaxes(0, 1)
        table = np.zeros((1, 1), np.int32)
        alone = x.only([number]).but(k_pool=k, v_pool=v, block_table=table)
        mine = {name: together[name][number : number + 1] for name in ("out", "lse")}
        assert same_bits(mine, decoded(stage, alone, sm_count=132, ops=False)), length


class Launches(Idle):
    """Keeps the grids, the kernels and the plain numbers."""

    def __init__(self, sm_count=132, **options):
        super().__init__(sm_count, **options)
        self.seen = []

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        numbers = [x.shape if isinstance(x, np.ndarray) else x for x in args]
        self.seen.append((kernel, grid, block, numbers, shared_bytes))


@pytest.mark.parametrize("stage", [SPLIT, CLUSTER, EVEN], ids=label)
def test_a_launch_does_not_depend_on_lengths(stage, rng):
    """So that a graph that captured it serves all lengths that the table has room for."""
    x = paged(rng, [300, 5, 0, 17], 8, 2)
    executor = Launches()
    for lengths in (x.lengths, x.lengths[::-1].copy(), np.zeros_like(x.lengths)):
        stage.run(x.but(lengths=lengths).problem(x.but(lengths=lengths).arrays), executor)
    first, *others = executor.seen
    assert all(other == first for other in others) and len(others) == 2


def test_parts_of_a_request():
    """No part is empty, every warp has a tile where there are enough, and no request has too many parts."""
    for tiles, warps, at_least in product((0, 1, 7, 8, 9, 130, 4096, 70_000), (2, 4, 8), (1, 5, 16, 32)):
        count = parts_of(tiles, warps, 128, at_least)
        assert 1 <= count <= MAX_PARTS
        if tiles:
            part = -(-tiles // count)
            assert part * (count - 1) < tiles <= MAX_PARTS * -(-part // warps) * warps
            assert count == 1 or tiles > warps
    assert parts_of(130, 8, 1 << 16, 16) == 9  # of 16 tiles, two for each warp: 16 parts took as long
    assert parts_of(100_000 // 16, 4, 128, 1) == MAX_PARTS


def test_there_are_blocks_for_the_parts_of_shorter_requests():
    """A request of fewer tiles may have more parts than the longest."""
    for most, warps, longest, at_least in product((1, 129, 513, 3000), (2, 4, 8), (8, 512), (1, 5, 16, 32)):
        how = warps, longest, at_least
        counts = [parts_of(tiles, *how) for tiles in range(most + 1)]
        assert max(counts) <= most_parts(most, *how) <= MAX_PARTS
    assert parts_of(128, 8, 512, 16) == 16 > parts_of(129, 8, 512, 16)


def test_a_part_is_divided_where_lengths_may_differ(rng):
    for requests, spare, tiles in ((1, 3000, 3004), (2, 100, 104), (2, 3000, 384)):
        x = paged(rng, [40] * requests, 16, 2, 1, 128, spare_columns=spare)
        p = x.problem(x.arrays)
        assert decode_split.longest_part(p, choose(p, 132)[0]) == tiles
    for spare in (0, 9000):
        x = paged(rng, [40] * 2, 16, 2, 1, 128, spare_columns=spare, batch_invariant=True)
        assert decode_split.longest_part(x.problem(x.arrays), "many") == 128


def test_stretches_of_all_requests(rng):
    """Each step is in one part, no block has more steps than `share`, starts included, no place has two
    parts, and no request too many.
    """
    for _ in range(300):
        requests, blocks = int(rng.integers(1, 80)), int(rng.integers(1, 140))
        most = int(2 ** rng.uniform(0, 11))
        steps = rng.integers(1, most, requests, endpoint=True).tolist()
        if rng.integers(3) == 0:
            steps = [most] * requests
        division = Division.of(steps, blocks)
        parts, of_blocks, places = division.parts(steps), Counter(), Counter()
        for own, some in zip(steps, parts, strict=True):
            assert 1 <= len(some) <= MAX_PARTS
            ends = [0, *(last for *_, last in some)]
            assert [first for _, first, _ in some] == ends[:-1] and ends[-1] == own
            assert all(first < last for _, first, last in some)
            assert [block for block, *_ in some] == list(range(some[0][0], some[0][0] + len(some)))
            of_blocks.update({block: last - first for block, first, last in some})
            if len(some) > 1:
                places.update(2 * block + (number == 0) for number, (block, *_) in enumerate(some))
        assert max(of_blocks.values()) <= division.share and max(of_blocks) < blocks
        assert max(places.values(), default=1) == 1


def test_requests_of_one_length_are_apart():
    """Each has as many blocks as the others. Where lengths differ much, the longest is cut more often."""
    assert Division.of([128] * 4, 16) == (32, 0, 128)
    assert Division.of([94] * 5, 16) == (32, 0, 96)  # three each, which leaves one over
    assert Division.of([300] * 5, 16) == (96, decode_even.START, None)
    assert Division.of([2, 300, 2, 2], 16) == (21, decode_even.START, None)


def test_the_size_of_a_cluster(rng):
    """The GPU is filled, by few blocks where that is enough, and no cluster waits for a place."""

    def chosen(requests, keys=4000, **options):
        x = paged(rng, [1] * requests, 16, 2, 1, 128, spare_columns=keys // 16, **options)
        return decode_cluster.choose(x.problem(x.arrays), 132)

    assert chosen(1) == chosen(7) == ("few", 8) and chosen(8) == chosen(15) == ("few", 4)
    assert chosen(16) == chosen(17) == chosen(33) == ("few", 2) and chosen(66) == ("few", 1)
    assert chosen(132) == ("many", 1) and chosen(133)[1] > 1
    assert chosen(133, keys=100) == ("many", 1)  # each further turn of the GPU starts and merges anew
    assert chosen(133, features=Features((100, 0))) == ("many", 1)
    assert chosen(1, batch_invariant=True) == chosen(200, batch_invariant=True) == ("few", CLUSTER_BLOCKS)
    window = Features((100, 0))
    assert chosen(64, keys=9000, features=window) == chosen(64, keys=90, features=window)


def test_who_has_64_rows_in_a_block(rng):
    """More than 32 query rows of a K/V head, but of elements alone; and whoever asks for it by name."""

    def chosen(tokens, variant=None, head_dim=128, **options):
        x = paged(rng, [1], 16, 2, tokens, head_dim, **options)
        return decode_cluster.choose(x.problem(x.arrays), 132, variant)

    assert chosen(5) == chosen(8) == ("wide", 8) and chosen(30) == ("wide", 8)
    # 32 rows where a block has few keys; more are faster by mma.sync.
    for head_dim, keys in ((64, 2048), (128, 4096)):
        assert chosen(4, head_dim=head_dim, spare_columns=keys // 16 - 1)[0] == "wide"
        assert chosen(4, head_dim=head_dim, spare_columns=keys // 16)[0] == "rows"
    assert chosen(4, "rows")[0] == chosen(4, stored=E4M3)[0] == chosen(4, batch_invariant=True)[0] == "rows"
    assert chosen(1, "wide") == ("wide", 8) and chosen(8, "rows")[0] == "rows"
    assert chosen(8, spare_columns=1100) == ("wide_3", 8) and chosen(8, spare_columns=900)[0] == "wide"
    assert chosen(8, "wide", spare_columns=1100)[0] == "wide"
    for spare in (0, 1100):
        assert chosen(8, batch_invariant=True, spare_columns=spare) == ("wide", CLUSTER_BLOCKS)
    assert chosen(8, stored=E4M3)[0] == chosen(8, "wide", stored=E4M3)[0] == "rows"
    assert chosen(8, "wide", 256)[0] == "few"


def test_the_choice_of_a_tile(rng):
    def chosen(requests, tokens=1, room=HOPPERS_SHARED, **options):
        x = paged(rng, [1] * requests, 16, 2, tokens, 128, **options)
        return choose(x.problem(x.arrays), 132, room)

    assert chosen(1) == ("few", 32) and chosen(33) == ("few", 2) and chosen(66) == ("few", 1)
    assert chosen(67) == ("many", 2) and chosen(300) == ("many", 1)
    assert chosen(1, tokens=3)[0] == "rows"
    assert chosen(1, room=SMALLEST_SHARED)[0] == chosen(1, 3, SMALLEST_SHARED)[0] == "many"
    for requests in (1, 67):
        assert chosen(requests, batch_invariant=True) == ("many", INVARIANT_PARTS)


@pytest.mark.parametrize("page", [1, 15, 16, 20, 24, 32, 100, 150])
def test_keys_that_are_found_together_are_in_one_page(page, rng):
    x = paged(rng, [150], 2, 1, 1, 64, page, spare_columns=0)
    p = x.problem(x.arrays)
    run = decode_split.TILES[64]["few"].macros(p)["RUN"]
    assert all(first // page == (min(first + run, 150) - 1) // page for first in range(0, 150, run))
    assert run == 16 or page % 16


def test_which_stage_comes_first(rng):
    """Clusters where no request has room for many keys, or there is one; equal stretches elsewhere. More than
    32 rows of a K/V head go to clusters where these take 64 at a time.
    """
    for requests, tokens, keys, head_dim, first in (
        *((2, 1, 8000, 64, CLUSTER), (2, 1, 9000, 64, EVEN), (1, 1, 9000, 64, CLUSTER)),
        *((2, 16, 9000, 128, EVEN), (2, 17, 9000, 128, CLUSTER), (1, 17, 4000, 64, CLUSTER)),
        *((1, 17, 4000, 256, SPLIT), (2, 17, 4000, 256, CLUSTER), (400, 1, 9000, 128, EVEN)),
    ):
        x = paged(rng, [1] * requests, 2, 1, tokens, head_dim, spare_columns=keys // 16)
        order = ladder.preferred(x.problem(x.arrays))
        assert order[0] is first and {*order} == {*ladder.LADDER}
        without = [stage for stage in order if stage is not CLUSTER]  # on other GPUs
        assert without[0] is (EVEN if requests > 1 and keys > 8192 else SPLIT)


def test_what_is_cut_by_all_lengths_is_not_batch_invariant(rng):
    x = paged(rng, [40, 9], 2, 1, batch_invariant=True)
    assert EVEN.why_not(x.problem(x.arrays)) == "does not serve batch_invariant=True"
    arrays = (x.q, x.k_pool, x.v_pool, x.block_table, x.lengths)
    with pytest.raises(UnsupportedError, match=r"^stage decode/even does not serve batch_invariant=True"):
        attention_paged(*arrays, batch_invariant=True, stage=EVEN.key)


def test_the_same_stage_for_all_batches(rng):
    """With `batch_invariant` another stage would give other bits, beside others or in a wide table."""
    for tokens, head_dim, stored, first in (
        (1, 64, None, CLUSTER), (16, 256, None, CLUSTER), (17, 128, None, CLUSTER),
        (17, 256, None, SPLIT), (17, 128, E4M3, SPLIT),
    ):  # fmt: skip
        for requests, keys in product((1, 2), (100, 9000)):
            x = paged(
                rng, [1] * requests, 2, 1, tokens, head_dim, spare_columns=keys // 16, stored=stored,
                batch_invariant=True,
            )  # fmt: skip
            assert ladder.preferred(x.problem(x.arrays))[0] is first


@pytest.mark.parametrize("stage", [decode_split, decode_cluster], ids=lambda x: x.STAGE.label)
def test_shared_memory_suffices(stage):
    for head_dim, tiles in stage.TILES.items():
        assert all(tile.block_bytes(head_dim) < HOPPERS_SHARED - 6144 for tile in tiles.values())
        assert tiles["many"].block_bytes(head_dim) < SMALLEST_SHARED - 6144


def test_blocks_of_equal_stretches(rng):
    """As many as the GPU holds, or as there may be steps; smaller ones where the large do not fit."""

    def planned(requests, tokens=1, keys=9000, variant=None, room=HOPPERS_SHARED):
        x = paged(rng, [1] * requests, 16, 2, tokens, 128, spare_columns=keys // 16)
        return decode_even.plan(x.problem(x.arrays), variant, 132, room)

    tiles = decode_split.TILES[128]
    assert planned(2) == planned(400) == (tiles["few"], 66) and planned(400, 3) == (tiles["rows"], 66)
    assert planned(2, keys=0) == (tiles["few"], 2) and planned(1, 60, keys=0) == (tiles["rows"], 1)
    assert planned(2, variant="many") == planned(2, room=SMALLEST_SHARED) == (tiles["many"], 198)
    assert planned(5, variant="in_turn") == (tiles["many"], 3)
    assert planned(2, 3, room=SMALLEST_SHARED) == (tiles["many"], 99)


def test_a_variant_is_refused_where_its_block_does_not_fit(rng):
    """What a launch asks for is what a GPU is asked for before it."""
    for head_dim in SPLIT.head_dims:
        x = paged(rng, [40], 2, 1, 1, head_dim)
        for variant in SPLIT.variants:
            for room in (HOPPERS_SHARED, SMALLEST_SHARED):
                executor = Launches(shared_limit=room)
                SPLIT.run(x.problem(x.arrays), executor, variant)
                refused = SPLIT.why_not_in(room, head_dim, variant)
                assert (refused is None) == (executor.seen[0][4] <= room), (head_dim, variant, refused)
    assert SPLIT.why_not_in(SMALLEST_SHARED, 128, "few") and not SPLIT.why_not_in(SMALLEST_SHARED, 128)


COMPILED = [
    (stage, variant, head_dim, capability)
    for stage, variant in RUNS
    for head_dim in (64, 128, 256)
    for capability in ((90,) if stage is CLUSTER else (80, 90))
    # Whether these fit an Ampere GPU is for its larger shared memory to say, which the example has not.
    if (variant, capability) not in (("few", 80), ("rows", 80))
]


@pytest.mark.parametrize(
    ("stage", "variant", "head_dim", "capability"),
    few(COMPILED, (SPLIT, "many", 128, 80), (CLUSTER, "cluster", 64, 90), (EVEN, "even", 128, 90)),
    ids=label,
)
def test_nothing_is_spilled(stage, variant, head_dim, capability):
    found = registers(Run(stage, variant), examples(stage, head_dim), divmod(capability, 10))
    assert found
    for kernel in found:
        assert (kernel["spill_bytes"], kernel["stack_bytes"]) == (0, 0), kernel
        assert 0 < kernel["registers"] <= (168 if variant == "many" and head_dim < 256 else 255)
        assert not kernel["warnings"]


def assert_foretold(stage, variant, problem, sm_count, tile, lanes):
    """In every field, and what the LSE adds, which no formula has: its stores, by the first of so many lanes
    that merge a row.
    """
    counted = []
    for optional in (False, True):
        executor = Simulator(races=False, sm_count=sm_count)
        stage.run(problem, executor, variant, optional=optional)
        (launch,) = executor.launches
        counted.append(Traffic.of_totals(launch.totals()))
    p, added = problem, Traffic()
    for rows in tiles_of_rows(p, tile):
        for request, h_kv in product(range(p.batch), range(p.kv_heads)):
            heads = request * p.heads + h_kv * p.group + rows % p.group
            added += stores(*words(lanes, heads * p.seq_q + rows // p.group))
    foretold = predict(stage, variant, p, sm_count)
    assert counted == [foretold, foretold + added], (p.shape_label, sm_count)


OF_PARTS = [(stage, variant) for stage, variant in RUNS if stage is not CLUSTER]


def tile_of(stage, variant, problem, sm_count):
    if stage is EVEN:
        return decode_even.plan(problem, variant, sm_count)[0]
    return decode_split.TILES[problem.head_dim][decode_split.plan(problem, variant, sm_count)[0]]


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize(("stage", "variant"), OF_PARTS, ids=label)
def test_a_formula_gives_what_is_counted(stage, variant, head_dim, rng):
    """Requests, pages, groups and features are random."""
    for longest, page in ((40, 16), (600, int(rng.integers(1, 40)))):
        kv_heads, group, tokens = (int(n) for n in rng.integers(1, (3, 7, 6)))
        sinks = rng.standard_normal(kv_heads * group).astype(np.float32) if rng.integers(2) else None
        features = Features(window=(int(rng.integers(-1, 200)), -1), sinks=sinks)
        lengths = rng.integers(0, longest, 3 if longest > 100 else 40).tolist()
        x = paged(rng, lengths, kv_heads * group, kv_heads, tokens, head_dim, page, features=features)
        problem, sm_count = x.problem(x.arrays), int(rng.choice([3, 132]))
        tile = tile_of(stage, variant, problem, sm_count)
        assert_foretold(stage, variant, problem, sm_count, tile, head_dim // 4)


@pytest.mark.long
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("stage", "head_dim"), list(product((SPLIT, CLUSTER, EVEN), (64, 128, 256))))
def test_a_formula_knows_where_a_window_begins_and_ends(stage, head_dim, page, rng):
    """Inside one tile, at any of its keys."""
    variant = next(iter(stage.variants))
    for left in range(13):
        lengths = rng.integers(left + 1, 40, 2).tolist()
        x = paged(rng, lengths, 2, 2, 1, head_dim, page, features=Features(window=(left, -1)))
        problem = x.problem(x.arrays)
        if stage is not CLUSTER:
            tile, lanes = tile_of(stage, variant, problem, 132), head_dim // 4
        else:
            name, blocks = decode_cluster.choose(problem, 132)
            tile, lanes = decode_cluster.TILES[head_dim][name], head_dim // 4 // blocks
        assert_foretold(stage, variant, problem, 132, tile, lanes)


@pytest.mark.long
def test_a_formula_gives_what_is_counted_of_64_rows(rng):
    """Some warps have no keys in the tiles of their warpgroup, and some rows of the block do not exist."""
    sinks = rng.standard_normal(8).astype(np.float32)
    features = Features(window=(int(rng.integers(60, 200)), -1), sinks=sinks)
    lengths = [0, *rng.integers(1, 400, 3).tolist()]
    x = paged(rng, lengths, 8, 1, int(rng.integers(5, 9)), 64, int(rng.integers(1, 40)), features=features)
    problem = x.problem(x.arrays)
    name, blocks = decode_cluster.choose(problem, 132)
    assert (name, blocks) == ("wide", 8)
    assert_foretold(CLUSTER, None, problem, 132, decode_cluster.TILES[64][name], 64 // 4 // blocks)


OF_CLUSTERS = [
    (head_dim, name, variant)
    for head_dim, tiles in decode_cluster.TILES.items()
    for name in tiles
    if name != "many"  # which comes beside "few", on a GPU of fewer SMs
    for variant in {"rows": ("rows",), "wide": ("cluster",), "wide_3": ("wide_3",)}.get(
        name, ("cluster", "overlapped")
    )
    if head_dim == 64 or name != "wide_3"
]
ROWS = {"few": (1, 16), "rows": (17, 32), "wide": (33, 80)}  # fewest and most of a K/V head


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "name", "variant"), OF_CLUSTERS)
def test_a_formula_gives_what_is_counted_of_clusters(head_dim, name, variant, rng):
    """On a GPU for each tile and size of a cluster; one request has no keys."""
    for longest, page in ((40, 16), (900, int(rng.integers(1, 40)))):
        kv_heads, group = (int(n) for n in rng.integers(1, (3, 7)))
        least, most = ROWS.get(name, (1, 80))
        tokens = int(rng.integers(-(-least // group), most // group + 1))
        sinks = rng.standard_normal(kv_heads * group).astype(np.float32) if rng.integers(2) else None
        features = Features(window=(int(rng.integers(-1, 200)), -1), sinks=sinks)
        lengths = [0, *rng.integers(0, longest, 3).tolist()]
        x = paged(rng, lengths, kv_heads * group, kv_heads, tokens, head_dim, page, features=features)
        problem = x.problem(x.arrays)
        gpus = {decode_cluster.choose(problem, sm_count, variant): sm_count for sm_count in range(1, 200)}
        assert {(name, 1), (name, 2), (name, 4), (name, 8)} <= {*gpus}
        assert (name == "few") == (("many", 1) in gpus)
        for (tile, blocks), sm_count in gpus.items():
            tile = decode_cluster.TILES[head_dim][tile]
            assert_foretold(CLUSTER, variant, problem, sm_count, tile, head_dim // 4 // blocks)
