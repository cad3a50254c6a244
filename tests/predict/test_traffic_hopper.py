"""Stages 14 to 16: the closed formulas give what the CPU executor counts, in every field."""

import numpy as np
import pytest
from matrix import few, first_of_each
from small_weights import WITH_FEATURES, counted, merged, problem

from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import stage14_tma_wgmma, stage15_ping_pong, stage16_cluster_split
from flashcore_numba.stages.tuning import stage15_tiles, stage16_tiles

TMA_WGMMA, PING_PONG = stage14_tma_wgmma.STAGE, stage15_ping_pong.STAGE
CLUSTER_SPLIT = stage16_cluster_split.STAGE
VARIANTS = [
    *((stage, None) for stage in (TMA_WGMMA, PING_PONG, CLUSTER_SPLIT)),
    (PING_PONG, "in_sequence"),
    (CLUSTER_SPLIT, "one_block"),
    (CLUSTER_SPLIT, "two_blocks"),
]


def check(stage, variant, p, sm_count=132):
    assert predict(stage, variant, p, sm_count) == counted(stage, variant, p, sm_count), (
        f"{stage.label} {variant}: {p.q.shape}, {p.seq_k} keys, causal={p.causal}, {sm_count} SMs"
    )


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("head_dim", few([64, 128], 128))
@pytest.mark.parametrize(
    ("stage", "variant"),
    first_of_each(VARIANTS, lambda stage, variant: stage),
    ids=lambda x: getattr(x, "label", str(x)),
)
def test_formula_is_what_is_counted(stage, variant, head_dim, causal, rng):
    seq_q, seq_k = (int(n) for n in rng.integers(1, 300, 2))
    check(stage, variant, problem(rng, 1, 2, seq_q, seq_k, head_dim, causal, int(rng.integers(1, 3))))


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "value_dim"), [(32, 32), (80, 80), (96, 96), (192, 128), (256, 256)])
def test_other_head_dimensions_of_stage_15(head_dim, value_dim, rng):
    seq_q, seq_k = (int(n) for n in rng.integers(1, 300, 2))
    p = problem(rng, 1, 2, seq_q, seq_k, head_dim, bool(rng.integers(2)))
    values = np.ones((*p.v.shape[:3], value_dim), np.float16)
    check(PING_PONG, None, Problem(p.q, p.k, values, p.causal))


MASKED = [(86, 101, 80), (143, 286, 256), (70, 134, 64)]


@pytest.mark.long
@pytest.mark.parametrize(("seq_q", "seq_k", "head_dim"), MASKED)
def test_a_row_without_a_maximum_has_a_tile_multiplied_again(seq_q, seq_k, head_dim, rng):
    check(PING_PONG, None, problem(rng, 1, 2, seq_q, seq_k, head_dim, True))


TABLES = [
    (132, stage16_tiles.FEW_ROWS),
    (1, stage16_tiles.MANY_ROWS),
    (2, stage16_tiles.MORE_ROWS),
]


@pytest.mark.long
@pytest.mark.parametrize(("sm_count", "table"), TABLES, ids=lambda x: str(x)[:3])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_split_of_stage_16(head_dim, sm_count, table, rng):
    """The last keys are so many that some slot is filled again, where the split has room for it."""
    heads = {132: 1, 1: 4, 2: 3}[sm_count]
    for most, split in table[head_dim].items():
        seq_k = int(min(most, 1100)) - int(rng.integers(20))
        p = problem(rng, 1, heads, int(rng.integers(1, 64)), seq_k, head_dim, False)
        assert stage16_tiles.choose(p, None, sm_count)[:3] == split[:3]
        check(CLUSTER_SPLIT, None, p, sm_count)


@pytest.mark.long
def test_a_slot_is_filled_again(rng):
    """Eight tiles of keys and more for two slots of one or two parts."""
    p = problem(rng, 1, 1, int(rng.integers(1, 64)), int(rng.integers(1024, 1200)), 128, True)
    check(TMA_WGMMA, None, p)
    check(CLUSTER_SPLIT, "one_block", p)


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_stage_15_take_several_pieces(causal, rng):
    """On a GPU of two SMs: under a causal mask a counter deals the pieces out."""
    p = problem(rng, 1, 3, int(rng.integers(129, 300)), int(rng.integers(1, 300)), 64, causal)
    (launched,) = _launches(PING_PONG, p, 2)
    assert any(row.op == "atomic" for row in launched.lines()) is causal
    check(PING_PONG, None, p, 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("heads", "seq_q", "seq_k", "causal", "queries"),
    [(12, 64, 128, False, 4), (2, 190, 4200, False, 4), (2, 250, 4200, True, 1)],
)
def test_configurations_of_stage_15_with_queries_in_registers(heads, seq_q, seq_k, causal, queries, rng):
    p = problem(rng, 1, heads, seq_q, seq_k, 64, causal)
    assert stage15_tiles.choose(p, None, 1)[0].queries == queries
    check(PING_PONG, None, p, 1)


@pytest.mark.long
@pytest.mark.parametrize("sm_count", [132, 2])
@pytest.mark.parametrize(
    ("stage", "made"),
    [(stage, made) for made in WITH_FEATURES for stage in (PING_PONG, CLUSTER_SPLIT)],
    ids=lambda x: getattr(x, "label", None) or x.__name__,
)
def test_formula_holds_with_features(stage, made, sm_count, rng):
    """Also where blocks draw several work tiles: who does which does not change what is read of lengths."""
    head_dim, causal = int(rng.choice([64, 128])), bool(rng.integers(2))
    check(stage, None, made(rng, head_dim=head_dim, causal=causal), sm_count)


@pytest.mark.long
@pytest.mark.parametrize(("head_dim", "sm_count"), [(64, 132), (128, 2)])
def test_formula_holds_where_parts_are_merged(head_dim, sm_count, rng):
    p = merged(rng, head_dim=head_dim, causal=bool(rng.integers(2)))
    check(PING_PONG, None, p, sm_count)


def _launches(stage, p, sm_count):
    executor = Simulator(sm_count=sm_count, races=False)
    stage.launch(p, np.empty(p.q.shape, np.float16), executor)
    return executor.launches


@pytest.mark.long
def test_a_tile_that_is_done_twice_is_more_than_predicted(rng):
    """What the formula leaves out: scores that outgrow the reference, which the last tile of keys gave."""
    p = problem(rng, 1, 1, 64, 384, 64, False)
    grown = np.linspace(30, 0, 384)[:, None] * np.abs(rng.standard_normal((1, 1, 384, 64)))
    harder = Problem(np.abs(p.q) + np.float16(1), grown.astype(np.float16), p.v)
    more, expected = counted(PING_PONG, None, harder, 132), predict(PING_PONG, None, harder, 132)
    assert more.shared_load_wavefronts > expected.shared_load_wavefronts
