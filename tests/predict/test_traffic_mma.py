"""Stages 12 and 13: the closed formulas give what the CPU executor counts, in every field."""

import numpy as np
import pytest
from matrix import few, first_of_each
from small_weights import counted, problem

from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import predict
from flashcore_numba.stages import stage12_mma_sync, stage13_split_kv

STAGES = (stage12_mma_sync.STAGE, stage13_split_kv.STAGE)
VARIANTS = [(stage, variant) for stage in STAGES for variant in stage.variants]


def check(stage, variant, p, sm_count):
    assert predict(stage, variant, p, sm_count) == counted(stage, variant, p, sm_count), (
        f"{stage.label} {variant}: {p.q.shape}, {p.seq_k} keys, causal={p.causal}, {sm_count} SMs"
    )


def any_problem(rng, seq_q, head_dim, causal):
    seq_k, group = int(rng.integers(1, 150)), int(rng.integers(1, 3))
    return problem(rng, int(rng.integers(1, 3)), 2, seq_q, seq_k, head_dim, causal, group)


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(
    ("stage", "variant"),
    first_of_each(VARIANTS, lambda stage, variant: stage),
    ids=lambda x: getattr(x, "label", x),
)
def test_formula_is_what_is_counted(stage, variant, head_dim, causal, rng):
    check(stage, variant, any_problem(rng, int(rng.integers(1, 150)), head_dim, causal), sm_count=132)


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize(("tile", "sm_count"), [("large", 1), ("medium", 2)])
def test_each_tile_of_stage_13(tile, sm_count, head_dim, rng):
    """A GPU so small that few rows fill it."""
    p = problem(rng, 1, 2, int(rng.integers(65, 129)), int(rng.integers(1, 150)), head_dim, True)
    assert stage13_split_kv.choose(p, sm_count) == (tile, 1)
    check(stage13_split_kv.STAGE, "split_kv", p, sm_count)


@pytest.mark.parametrize("variant", ["split_kv", "persistent"])
def test_more_splits_than_two(variant, rng):
    seq_k = int(rng.integers(3 * 512, 4 * 512))
    p = problem(rng, 1, 1, int(rng.integers(1, 40)), seq_k, 64, bool(rng.integers(2)))
    assert stage13_split_kv.choose(p, 132) == ("small", 3)
    check(stage13_split_kv.STAGE, variant, p, 132)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.label)
def test_a_tile_that_is_done_twice_is_more_than_predicted(stage, rng):
    """What the formulas leave out: scores that outgrow the first tile's reference."""
    p = problem(rng, 1, 2, 128, 150, 64, False)
    grown = np.linspace(0, 30, 150)[:, None] * np.abs(rng.standard_normal((1, 2, 150, 64)))
    harder = Problem(np.abs(p.q) + np.float16(1), grown.astype(np.float16), p.v)
    (variant, sm_count) = ("large", 132) if stage.key == "mma_sync" else ("split_kv", 1)
    extra = counted(stage, variant, harder, sm_count).shared_load_wavefronts
    assert extra > predict(stage, variant, harder, sm_count).shared_load_wavefronts
    check(stage, variant, p, sm_count)
