"""The backward pass in one launch: right in every case and order, without conflicts and spills."""

from functools import partial

import numpy as np
import pytest
from matrix import few

from cuda_reference import source
from cuda_reference.compile import compile as compiled
from cuda_reference.compile import why_not
from flashcore_numba.branches.backward import backward_one_launch as one
from flashcore_numba.branches.backward.backward_one_launch import STAGE
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.checks.runner import check_stage, names
from flashcore_numba.core.features import Features
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT
from flashcore_numba.run.executor import Simulator

from . import running
from .running import drawn

FEATURES: list[dict] = [{}, {"WINDOW": 1}, {"ELEMENT": "bfloat16"}]
KERNELS = [(d, cluster, on) for d in (64, 128) for cluster in (1, 2) for on in FEATURES]
RINGS = ("alone", "one_launch")


def gradients(x, executor, variant=None):
    return running.gradients(x, partial(STAGE.launch, executor=executor, variant=variant))


def wrong(x, executor, variant=None):
    return running.wrong(x, partial(STAGE.launch, executor=executor, variant=variant))


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant, rng):
    """Of the variants that do not run by default, some cases."""
    every = names(STAGE)
    chosen = every if variant == STAGE.default else rng.choice(every, 30, replace=False)
    report = check_stage(STAGE, variant, names=chosen)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(chosen) and len(every) > 80


@pytest.mark.parametrize("variant", few(STAGE.variants, "one_launch"))
def test_the_cases_that_tell_most(variant):
    telling = (
        "causal 140 rows, 300 keys, bfloat16", "the LSE has a gradient", "causal, 8 query heads on 1",
        "extreme: scores rise at a negative scale",
    )  # fmt: skip
    report = check_stage(STAGE, variant, names=telling)
    assert report.passed, report.failures[0]
    assert len(report.results) == len(telling)


@pytest.mark.long
@pytest.mark.parametrize(
    ("variant", "head_dim"),
    [(v, d) for v in STAGE.variants for d in (64, 128)],
)
def test_the_same_bits_in_every_order(variant, head_dim, rng):
    x, found = drawn(rng, 250 * 64 // head_dim, 150, head_dim, kv_heads=1, causal=True, dlse=True), []
    for order in ("lockstep", "reverse", f"random:{rng.integers(1000)}"):
        executor = Simulator(order=order, ops=False)
        found.append(gradients(x, executor, variant))
        executor.check()
    for other in found[1:]:
        assert all(np.array_equal(found[0][name], other[name]) for name in other)


LENGTHS = [(1, 1), (1, 129), (129, 1), (40, 600), (600, 40)]


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("variant", "rows", "keys"),
    [(variant, *lengths) for variant in STAGE.variants for lengths in LENGTHS],
)
def test_lengths_that_fill_no_tile_and_more_than_the_rings(variant, rows, keys, head_dim, rng):
    executor = Simulator()
    assert not wrong(drawn(rng, rows, keys, head_dim, heads=1), executor, variant)
    executor.check()


@pytest.mark.long
@pytest.mark.parametrize(
    ("left", "right", "head_dim"),
    [(40, 30, 64), (40, 30, 128), (70, 0, 64), (-1, 20, 64), (3, -1, 64)],
)
@pytest.mark.parametrize("variant", STAGE.variants)
def test_windows(variant, left, right, head_dim, rng):
    """Tiles that no row sees, rows and keys that see nothing."""
    for rows, keys in ((300, 90), (90, 300)):
        x = drawn(rng, rows, keys, head_dim, heads=1)
        x = backward_inputs(x.forward.but(features=Features(window=(left, right))), rng)
        executor = Simulator()
        assert not wrong(x, executor, variant)
        executor.check()


@pytest.mark.long
def test_lse_of_ten_thousand(rng):
    """Negative too, where keys past the end, which score 0, would be infinite."""
    for scale in (10.0, -10.0):
        x = drawn(rng, 70, 100)
        big = np.abs(100 * x.forward.q).astype(np.float16)
        x = backward_inputs(x.forward.but(q=big, k=np.abs(x.forward.k), scale=scale), rng)
        assert np.abs(x.lse).min() > 1e4
        assert not wrong(x, Simulator(ops=False))


@pytest.mark.long
@pytest.mark.parametrize("variant", STAGE.variants)
def test_results_have_strides_of_their_own(variant, rng):
    """What is between their rows, and after them, stays as it was."""
    x = drawn(rng, 100, 70)
    problem, wanted = x.problem(x.arrays), gradients(x, Simulator(ops=False), variant)
    around = {"dq": (1, 101, 2, 64), "dk": (1, 2, 70, 72), "dv": (1, 3, 71, 64)}
    arrays = {name: np.full(shape, np.nan, np.float16) for name, shape in around.items()}
    views = {"dq": arrays["dq"].swapaxes(1, 2)[:, :, :100], "dk": arrays["dk"][..., :64]}
    views["dv"] = arrays["dv"][:, :2, :70]
    executor = Simulator()
    STAGE.launch(problem, executor=executor, variant=variant, **views)
    executor.check()
    for name, view in views.items():
        assert np.array_equal(view, wanted[name])
        assert np.isfinite(arrays[name]).sum() == view.size < arrays[name].size


@pytest.mark.long
@pytest.mark.parametrize("variant", RINGS)
def test_what_moves_is_the_closed_count(variant, rng):
    """Every tile once for each block that needs it, seven products, no scratch, no conflict."""
    rows, keys, heads, kv_heads = 130, 300, 4, 2
    executor = Simulator()
    assert not wrong(drawn(rng, rows, keys, heads=heads, kv_heads=kv_heads), executor, variant)
    (launch,) = executor.launches
    totals, row_tiles, key_tiles = launch.totals(), 3, 5
    cluster, row_blocks, key_blocks = (1, 3, 5) if variant == "alone" else (2, 4, 6)
    own = 2 * kv_heads * key_blocks + 3 * heads * row_blocks  # K and V; Q, dO and O
    of_keys, of_rows = heads * key_blocks * row_tiles, heads * row_blocks * key_tiles  # pairs of tiles
    streamed = (3 * of_keys + 2 * of_rows) // cluster  # Q, dO and O; K and V
    assert totals["tma_load_bytes"] == (own + streamed) * 64 * 64 * 2
    assert totals["wgmma"] == (4 * of_keys + 3 * of_rows) * 4 * 4  # products of 16, each in four warps
    assert totals["tma_store_bytes"] == 2 * 64 * (heads * rows + 2 * kv_heads * keys)
    assert totals["global_store_bytes_moved"] == totals["global_atomic_bytes_moved"] == 0
    assert not [(row.text, row.conflicts) for row in launch.lines() if row.conflicts]


@pytest.mark.long
def test_a_block_fetches_half_for_two(rng):
    """What crosses the L2 for streamed tiles, where they fit; else each block fetches for itself."""
    x, moved = drawn(rng, 260, 500, heads=1), {}
    for variant in RINGS:
        executor = Simulator()
        assert not wrong(x, executor, variant)
        moved[variant] = executor.launches[0].totals()["tma_load_bytes"]
    own, streamed = 2 * 8 + 3 * 5, 5 * 5 * 8
    assert moved["alone"] == (own + streamed) * 8192
    assert one.fits(x.problem(x.arrays)) and moved["one_launch"] <= (own + 1 + streamed * 6 // 10) * 8192
    longer = drawn(rng, 520, 64)
    assert not one.fits(longer.problem(longer.arrays))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_block_fits_the_shared_memory(head_dim):
    found = one.shared_bytes(head_dim)
    assert found <= EXAMPLE_SHARED_LIMIT < found + 49152 * head_dim // 64


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize(("head_dim", "cluster", "features"), few(KERNELS, KERNELS[7]))
def test_nothing_spills_and_no_product_waits_for_another(head_dim, cluster, features):
    macros = {"HEAD_DIM": head_dim, "BLOCK_N": 64, "STAGES": one.STAGES[head_dim], "CLUSTER": cluster}
    kernel = source("backward_one_launch", **macros, **features)
    found = compiled(kernel, (9, 0))
    assert (found.spill_bytes, found.warnings) == (0, ()), kernel.label
