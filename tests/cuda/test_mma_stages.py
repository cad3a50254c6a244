"""What stages 12 and 13 say of themselves: tiles, barriers, bank conflicts, the lazy maximum."""

import numpy as np
import pytest

from flashcore_numba.core import oracle
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import stage12_mma_sync, stage13_split_kv
from flashcore_numba.stages.tuning import stage12_tiles, stage13_tiles

SMALLEST_SHARED = 99 * 1024  # bytes that a block may have at compute capability 8.9, the least from 8.0 on


def shaped(batch, heads, seq_q, seq_k, head_dim=64, causal=False):
    """A problem of this shape that takes no memory."""
    q, k = (np.broadcast_to(np.float16(0), (batch, heads, rows, head_dim)) for rows in (seq_q, seq_k))
    contiguous = [np.lib.stride_tricks.as_strided(x, x.shape, (0, 0, 0, 2), writeable=False) for x in (q, k)]
    return Problem(contiguous[0], contiguous[1], contiguous[1], causal=causal)


def launched(stage, problem, variant=None):
    """The output, its log-sum-exp, and the launches."""
    p = problem
    out, lse = np.full(p.q.shape, np.nan, np.float16), np.full(p.q.shape[:3], np.nan, np.float32)
    executor = Simulator()
    stage.STAGE.launch(p, out, executor, lse, variant)
    executor.check()
    return out, lse, executor.launches


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((1, 8, 512, 512), "small"),
        ((1, 8, 1024, 1024), "medium"),
        ((4, 8, 256, 256), "medium"),
        ((4, 32, 4096, 4096), "large"),
        ((4, 16, 4096, 4096, 128), "large"),
        ((2, 16, 1024, 1024, 64, True), "medium"),
    ],
)
def test_stage_12_takes_the_tile_that_was_fastest(shape, tile):
    assert stage12_tiles.choose(shaped(*shape), 132) == tile


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((1, 8, 512, 512), ("small", 1)),
        ((1, 8, 1024, 1024), ("medium", 1)),
        ((4, 32, 4096, 4096), ("large", 1)),
        ((1, 8, 64, 16384), ("small", 8)),
        ((1, 32, 16, 16384, 128), ("small", 4)),
        ((1, 16, 128, 8192, 128), ("large", 16)),
        ((2, 8, 512, 2048), ("large", 4)),
    ],
)
def test_stage_13_takes_the_tile_and_splits_that_were_fastest(shape, choice):
    assert stage13_tiles.choose(shaped(*shape), 132) == choice


@pytest.mark.parametrize("stage", [stage12_mma_sync, stage13_split_kv])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_tile_fits_the_smallest_shared_memory(stage, head_dim, rng):
    class Recorder(Simulator):
        def launch(self, kernel, grid, block, *args, shared_bytes=0):
            sizes.append(shared_bytes)

    sizes = []
    for shape in ((1, 1, 64, 64), (1, 128, 64, 64), (8, 64, 128, 64)):
        problem = shaped(*shape, head_dim)
        stage.STAGE.launch(problem, np.empty(problem.q.shape, np.float16), Recorder())
    assert len(set(sizes)) >= 2
    assert max(sizes) <= SMALLEST_SHARED


@pytest.mark.parametrize(("variant", "rows", "keys"), [("large", 128, 64), ("small", 32, 128)])
def test_stage_12_has_one_barrier_a_tile(variant, rows, keys, rng):
    def barriers(tiles):
        problem = Problem(*(normal(rng, 1, 1, n, 64) for n in (rows, tiles * keys, tiles * keys)))
        return launched(stage12_mma_sync, problem, variant)[2][0].totals()["barriers"]

    assert barriers(5) - barriers(2) == 3 * rows // (32 if variant == "large" else 16)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("stage", "variant"),
    [(stage12_mma_sync, "large"), (stage12_mma_sync, "small"), (stage13_split_kv, "two_splits")],
)
def test_no_access_meets_a_bank_twice(stage, variant, head_dim, rng):
    problem = Problem(*(normal(rng, 1, 1, n, head_dim) for n in (128, 160, 160)))
    for launch in launched(stage, problem, variant)[2]:
        assert not [(row.text, row.conflicts) for row in launch.lines() if row.conflicts]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("stage", "variant"), [(stage12_mma_sync, "large"), (stage13_split_kv, "two_splits")]
)
def test_scores_that_grow_from_tile_to_tile(stage, variant, causal, rng):
    """The reference of the first tile would let later weights overflow: those tiles are done again."""
    growth = np.linspace(0, 30, 400)[:, None]
    q, v = np.abs(normal(rng, 1, 1, 150, 64)), normal(rng, 1, 1, 400, 64)
    k = (growth * np.abs(rng.standard_normal((400, 64)))).astype(np.float16)[None, None]
    out, lse, _ = launched(stage, Problem(q, k, v, causal=causal), variant)
    expected, expected_lse = oracle.attention(q, k, v, causal)
    np.testing.assert_allclose(out, expected, atol=3e-3)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)


def test_a_split_without_a_visible_key_weighs_nothing(rng):
    q, k, v = normal(rng, 1, 1, 300, 64), normal(rng, 1, 1, 140, 64), normal(rng, 1, 1, 140, 64)
    out, lse, _ = launched(stage13_split_kv, Problem(q, k, v, causal=True), "two_splits")
    expected, expected_lse = oracle.attention(q, k, v, True)
    np.testing.assert_allclose(out, expected, atol=2e-3)
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(expected_lse))
