"""Stages 12 and 13: the closed formulas give what the CPU executor counts, in every field.

With features too: the loads of lengths, slopes and sinks are among what is compared.
"""

import numpy as np
import pytest
from matrix import few, first_of_each
from small_weights import WITH_FEATURES, counted, merged, problem

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.features import Features
from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import predict
from flashcore_numba.stages import stage12_mma_sync, stage13_split_kv
from flashcore_numba.stages.tuning import stage13_tiles

STAGES = (stage12_mma_sync.STAGE, stage13_split_kv.STAGE)
VARIANTS = [(stage, variant) for stage in STAGES for variant in stage.variants]


def check(stage, variant, p, sm_count):
    assert predict(stage, variant, p, sm_count) == counted(stage, variant, p, sm_count), (
        f"{stage.label} {variant}: {p.q.shape}, {p.seq_k} keys, causal={p.causal}, {sm_count} SMs, "
        f"{p.features.label}"
    )


def any_problem(rng, seq_q, head_dim, causal):
    seq_k, group = int(rng.integers(1, 150)), int(rng.integers(1, 3))
    return problem(rng, int(rng.integers(1, 3)), 2, seq_q, seq_k, head_dim, causal, group)


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("head_dim", few([64, 128], 128))
@pytest.mark.parametrize(
    ("stage", "variant"),
    first_of_each(VARIANTS, lambda stage, variant: stage),
    ids=lambda x: getattr(x, "label", x),
)
def test_formula_is_what_is_counted(stage, variant, head_dim, causal, rng):
    check(stage, variant, any_problem(rng, int(rng.integers(1, 150)), head_dim, causal), sm_count=132)


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "value_dim"), [(192, 192), (256, 256), (192, 128), (64, 256)])
def test_other_head_dimensions_of_stage_12(head_dim, value_dim, rng):
    p = any_problem(rng, int(rng.integers(1, 150)), head_dim, bool(rng.integers(2)))
    values = np.ones((*p.v.shape[:3], value_dim), np.float16)
    check(stage12_mma_sync.STAGE, "mma_sync", Problem(p.q, p.k, values, p.causal), sm_count=132)


def test_rows_that_are_no_whole_lines_have_no_formula(rng):
    p = any_problem(rng, 20, 80, False)
    with pytest.raises(ArgumentError, match="no formula predicts the traffic of head dimension 80"):
        predict(stage12_mma_sync.STAGE, "mma_sync", p, 132)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("tile", "sm_count"), [("large", 1), ("medium", 2)])
def test_each_tile_of_stage_13(tile, sm_count, head_dim, rng):
    """A GPU so small that few rows fill it."""
    p = problem(rng, 1, 2, int(rng.integers(65, 129)), int(rng.integers(1, 150)), head_dim, True)
    assert stage13_tiles.choose(p, sm_count) == (tile, 1)
    check(stage13_split_kv.STAGE, "split_kv", p, sm_count)


@pytest.mark.long
@pytest.mark.parametrize("variant", ["split_kv", "persistent"])
def test_more_splits_than_two(variant, rng):
    seq_k = int(rng.integers(3 * 512, 4 * 512))
    p = problem(rng, 1, 1, int(rng.integers(1, 40)), seq_k, 64, bool(rng.integers(2)))
    assert stage13_tiles.choose(p, 132) == ("small", 3)
    check(stage13_split_kv.STAGE, variant, p, 132)


MADE = [(made, head_dim) for made in WITH_FEATURES for head_dim in (64, 128)]


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("made", "head_dim"), MADE)
@pytest.mark.parametrize(
    ("stage", "variant"),
    VARIANTS,
    ids=lambda x: getattr(x, "label", x),
)
def test_formula_holds_with_features(stage, variant, made, head_dim, causal, rng):
    check(stage, variant, made(rng, head_dim=head_dim, causal=causal), sm_count=132)


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "causal"), [(64, False), (128, True)])
def test_formula_holds_where_parts_are_merged(head_dim, causal, rng):
    check(stage12_mma_sync.STAGE, None, merged(rng, head_dim=head_dim, causal=causal), sm_count=132)


@pytest.mark.long
def test_a_window_that_begins_between_the_tiles_of_two_key_warps(rng):
    """A key warp meets its first key after the first step, and still does no tile twice."""
    p = problem(rng, 1, 2, 256, 1024, 64, True, features=Features((500, -1)))
    assert stage13_tiles.choose(p, 3) == ("medium", 1)
    check(stage13_split_kv.STAGE, "unsplit", p, 3)


@pytest.mark.long
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
