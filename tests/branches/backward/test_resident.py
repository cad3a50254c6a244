"""The kernel of `backward/one_launch` that holds all tiles: right, counted, without conflicts and spills."""

from functools import partial

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from cuda_reference.compile import why_not
from flashcore_numba.branches.backward import backward_resident as resident
from flashcore_numba.branches.backward.backward_one_launch import STAGE
from flashcore_numba.checks.runner import check_stage
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator

from . import running
from .running import drawn

FEATURES: list[dict] = [{}, {"WINDOW": 1}, {"ELEMENT": "bfloat16"}]


def run(x, executor):
    """The names of the gradients that are wrong."""
    return running.wrong(x, partial(STAGE.launch, executor=executor, variant="resident"))


def test_the_cases_that_tell_most():
    telling = ("causal 140 rows, 300 keys, bfloat16", "the LSE has a gradient", "causal, 8 query heads on 1")
    report = check_stage(STAGE, "resident", names=telling)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(telling)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "keys"), [(1, 1), (1, 129), (129, 1), (64, 768), (768, 64), (65, 257), (300, 300)]
)
def test_lengths_up_to_all_that_fits(rows, keys, rng):
    executor = Simulator()
    assert not run(drawn(rng, rows, keys, heads=1), executor)
    executor.check()
    (launch,) = executor.launches
    assert launch.kernel.file == "backward_resident"


@pytest.mark.parametrize(
    ("rows", "keys", "kv_heads", "head_dim", "held"),
    [(768, 768, 2, 64, True), (769, 10, 2, 64, False), (10, 769, 2, 64, False), (385, 64, 1, 64, False),
     (384, 64, 1, 64, True), (64, 64, 2, 128, False)],
)  # fmt: skip
def test_it_serves_what_a_block_can_hold(rows, keys, kv_heads, head_dim, held, rng):
    x = drawn(rng, rows, keys, head_dim, heads=2, kv_heads=kv_heads)
    assert resident.serves(x.problem(x.arrays)) is held


@pytest.mark.long
def test_what_moves_is_the_closed_count(rng):
    """The first round each block fetches for itself, the others one block for both; D once for two blocks."""
    rows, keys, heads, kv_heads = 330, 300, 2, 1
    x, executor = drawn(rng, rows, keys, heads=heads, kv_heads=kv_heads), Simulator()
    assert not run(x, executor)
    executor.check()
    (launch,) = executor.launches
    totals, tiles, blocks, alone = launch.totals(), (6, 5), (6, 6), 2
    own = 2 * (kv_heads * blocks[1] + heads * blocks[0])
    of_keys, of_rows = heads // kv_heads * tiles[0], tiles[1]  # pairs that a block streams
    fetched = kv_heads * blocks[1] * (alone + (of_keys - alone) / 2)
    fetched += heads * blocks[0] * (alone + (of_rows - alone) / 2)
    assert totals["tma_load_bytes"] == (own + 2 * fetched) * 64 * 64 * 2
    products = 4 * kv_heads * blocks[1] * of_keys + 3 * heads * blocks[0] * of_rows
    assert totals["wgmma"] == products * 4 * 4  # of 16, each in four warps
    assert totals["global_atomic_bytes_moved"] == 0
    assert predict(STAGE, "resident", x.problem(x.arrays), 132) == Traffic.of_totals(totals)
    assert not [(row.text, row.conflicts) for row in launch.lines() if row.conflicts]


@pytest.mark.long
def test_the_same_bits_in_every_order(rng):
    x, found = drawn(rng, 200, 150, kv_heads=1, causal=True, dlse=True), []
    for order in ("lockstep", "reverse", f"random:{rng.integers(1000)}"):
        executor = Simulator(order=order, ops=False)
        launch = partial(STAGE.launch, executor=executor, variant="resident")
        found.append(running.gradients(x, launch))
        executor.check()
    for other in found[1:]:
        assert all(np.array_equal(found[0][name], other[name]) for name in other)


def test_a_block_fits_the_shared_memory():
    found = resident.shared_bytes()
    assert found <= EXAMPLE_SHARED_LIMIT < found + 4 * 64 * 64 * 2


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("features", few(FEATURES, FEATURES[1]))
def test_nothing_spills_and_no_product_waits_for_another(features):
    macros = {"HEAD_DIM": 64, "BLOCK_N": 64, "PAIRS": resident.PAIRS, "CLUSTER": resident.CLUSTER}
    kernel = source("backward_resident", **macros, **features)
    found = compiled(kernel, (9, 0))
    assert (found.spill_bytes, found.warnings) == (0, ()), kernel.label
