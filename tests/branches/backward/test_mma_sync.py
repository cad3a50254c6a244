"""The backward pass on mma.sync: right in every case and order, and without conflicts."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from cuda_reference.compile import why_not
from flashcore_numba.branches.backward import parts
from flashcore_numba.branches.backward.backward_mma_sync import STAGE
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.mma_sync_tiles import TILES, choose
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.features import Features
from flashcore_numba.run.executor import Simulator

from . import running
from .running import WithMacros, drawn

SMALLEST_SHARED = 99 * 1024  # bytes that a block may have at compute capability 8.9, the least from 8.0 on
VARIANTS = ("large", "split", "short")
EVERY_TILE = list(product(VARIANTS, (64, 128), (800, 900)))


def wrong(x, executor, variant=None):
    return running.wrong(x, partial(STAGE.launch, executor=executor, variant=variant))


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant, rng):
    """Of the variants, some cases."""
    every = names(STAGE)
    chosen = every if variant == STAGE.name else rng.choice(every, 30, replace=False)
    report = check_stage(STAGE, variant, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen) and len(every) > 100


@pytest.mark.parametrize("variant", few(VARIANTS, "split"))
def test_the_cases_that_tell_most(variant):
    telling = (
        "causal 140 rows, 300 keys, bfloat16", "causal, 8 query heads on 1", "ALiBi and softcap: 4",
        "ragged and seqused_k: NaN behind, causal",
    )  # fmt: skip
    report = check_stage(STAGE, variant, names=telling)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(telling)


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_head_dimension_128_in_every_order(variant, rng):
    x = drawn(rng, 200, 150, 128, heads=4, kv_heads=2, causal=True)
    for order in ("reverse", f"random:{rng.integers(1000)}"):
        executor = Simulator(order=order, ops=False)
        assert not wrong(x, executor, variant)
        executor.check()


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 129), (129, 1), (257, 40)])
def test_lengths_that_fill_no_tile(rows, keys, head_dim, rng):
    executor = Simulator()
    assert not wrong(drawn(rng, rows, keys, head_dim), executor)
    executor.check()


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_windows_of_packed_sequences(head_dim, rng):
    """Tiles of keys that no row sees, rows that see no key, sequences without rows, keys or both."""
    rows, keys = (np.array([0, *lengths]).cumsum().astype(np.int32) for lengths in
                  ((130, 0, 40, 0, 200), (0, 140, 300, 0, 20)))  # fmt: skip
    features = Features(window=(30, 5), cu_seqlens_q=rows, cu_seqlens_k=keys)
    f = normal(rng, 1, 2, rows[-1], keys[-1], head_dim).but(features=features)
    executor = Simulator()
    assert not wrong(backward_inputs(f, rng), executor)
    executor.check()


def test_lse_of_ten_thousand(rng):
    """P is the softmax of scores whose differences float32 still knows; then nothing overflows."""
    x = drawn(rng, 70, 100)
    x = backward_inputs(x.forward.but(q=(100 * x.forward.q).astype(np.float16), scale=10.0), rng)
    assert np.abs(x.lse).max() > 1e4
    assert not wrong(x, Simulator(ops=False))


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_an_older_gpu(head_dim, rng):
    """Of sm_80: no addition of four floats at once; and of one with little shared memory."""
    for variant in (None, "short"):
        executor = WithMacros(("PTX_ARCH", 800), shared_limit=SMALLEST_SHARED)
        assert not wrong(drawn(rng, 100, 100, head_dim, causal=True), executor, variant)
        executor.check()


@pytest.mark.parametrize(
    ("head_dim", "chosen"),
    [
        (64, {10: "large", 11: "split", 42: "split", 43: "short"}),
        (128, {21: "split", 22: "large", 42: "large", 43: "short"}),
    ],
)
def test_the_largest_tiles_that_fill_the_gpu(head_dim, chosen, rng):
    x = drawn(rng, 16, 8 * 128, head_dim)  # 16 blocks of 128 keys
    problem = x.problem(x.arrays)
    assert {sm_count: choose(problem, sm_count) for sm_count in chosen} == chosen


@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_tiles_that_fit(head_dim, rng):
    x = drawn(rng, 16, 8 * 128, head_dim)
    problem, tiles = x.problem(x.arrays), TILES[head_dim]
    room = tiles["split"].block_bytes(head_dim)
    assert room <= 227 * 1024
    assert choose(problem, 8, room) == next(iter(tiles))
    assert choose(problem, 8, room - 1) == choose(problem, 8, SMALLEST_SHARED) == "large"
    for name in ("large", "short"):
        assert tiles[name].block_bytes(head_dim) <= SMALLEST_SHARED


@pytest.mark.long
@pytest.mark.parametrize(
    ("variant", "head_dim", "arch"),
    EVERY_TILE,
)
def test_no_access_meets_a_bank_twice_and_no_addition_a_sector_in_part(variant, head_dim, arch, rng):
    tile = TILES[head_dim][variant]
    x = drawn(rng, 70, tile.keys, head_dim)
    executor = WithMacros(("PTX_ARCH", arch))
    assert not wrong(x, executor, variant)
    for launch in executor.launches:
        assert not [(row.text, row.conflicts) for row in launch.lines() if row.conflicts]
    totals = executor.launches[1].totals()
    added = 2 * -(-70 // tile.rows) * tile.rows * head_dim * 4  # heads, rows of whole tiles
    assert totals["global_atomic_bytes_requested"] == totals["global_atomic_bytes_moved"] == added
    assert totals["global_atomic_requests"] == added // (512 if arch == 900 else 128)


@pytest.mark.parametrize(("variant", "barriers"), [("large", 2), ("split", 1), ("short", 2)])
def test_barriers_a_tile(variant, barriers, rng):
    tile = TILES[64][variant]

    def counted(rows):
        executor = Simulator()
        assert not wrong(drawn(rng, rows, tile.keys), executor, variant)
        return executor.launches[1].totals()["barriers"]

    heads, tiles = 2, 3
    more = counted(4 * tile.rows) - counted(tile.rows)
    assert more == heads * tiles * barriers * tile.warps


@pytest.mark.parametrize(("variant", "head_dim", "arch"), few(EVERY_TILE, ("large", 64, 800)))
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_nothing_spills(variant, head_dim, arch):
    tile, capability = TILES[head_dim][variant], divmod(arch // 10, 10)
    for features in ({}, {"WINDOW": 1}, {"USED": 1}, {"ALIBI": 1}, {"ELEMENT": "bfloat16"}):
        kernel = source(tile.kernel, **tile.macros(head_dim), **features)
        assert compiled(kernel, capability).spill_bytes == 0, kernel.label
    for entry in ("prepare", "finish"):
        assert compiled(source("backward_rows", entry, HEAD_DIM=head_dim), capability).spill_bytes == 0


def test_rows_are_padded_as_the_kernels_do(rng):
    x = drawn(rng, 129, 20)
    assert parts.padded_rows(x.problem(x.arrays)) == 256
