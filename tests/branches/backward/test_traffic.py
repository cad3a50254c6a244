"""The formulas of the backward pass's stages in CUDA C give what the CPU executor counts, in every field."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba.branches.backward.backward_mma_sync import STAGE as MMA_SYNC
from flashcore_numba.branches.backward.backward_one_launch import STAGE as ONE_LAUNCH
from flashcore_numba.branches.backward.backward_wgmma import STAGE as WGMMA
from flashcore_numba.branches.backward.mma_sync_tiles import TILES
from flashcore_numba.core.features import Features
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator

from .running import drawn, poisoned

VARIANTS = [(MMA_SYNC, variant) for variant in TILES[64]]
VARIANTS += [(stage, variant) for stage in (WGMMA, ONE_LAUNCH) for variant in stage.variants]
QUICK = ((WGMMA, "wgmma"), (ONE_LAUNCH, "one_launch"))


def check(stage, variant, x):
    problem, executor = x.problem(x.arrays), Simulator(races=False)
    if stage.why_not(problem) is not None:
        return
    stage.launch(problem, executor=executor, variant=variant, **poisoned(problem))
    counted = sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())
    assert predict(stage, variant, problem, 132) == counted, (
        f"{stage.label} {variant}: {problem.shape_label}, {problem.seq_k} keys, causal={problem.causal}, "
        f"{problem.features.label}"
    )


def window(rng):
    rows, keys = (int(n) for n in rng.integers(1, 400, 2))
    features = Features((int(rng.integers(60)), int(rng.integers(-1, 30))))
    return {"rows": rows, "keys": keys, "features": features}


def adjusted(rng):
    ones = np.ones((2, 2), np.float32)
    features = Features(softcap=3.0, sinks=ones[0], alibi_slopes=ones / 256)
    return {"rows": 70, "keys": int(rng.integers(1, 150)), "batch": 2, "features": features, "causal": True}


def used(rng):
    counts = rng.permutation([0, 150, int(rng.integers(150))]).astype(np.int32)
    return {"rows": 50, "keys": 150, "batch": 3, "features": Features(seqused_k=counts)}


def packed(rng):
    """More sequences than a warp has lanes, some of them empty."""
    bounds_q, bounds_k = (np.cumsum([0, *rng.integers(0, 60, 40)], dtype=np.int32) for _ in range(2))
    features = Features(
        (int(rng.integers(20)), -1),
        seqused_k=np.minimum(20, np.diff(bounds_k)),
        cu_seqlens_q=bounds_q,
        cu_seqlens_k=bounds_k,
    )
    return {"rows": int(bounds_q[-1]), "keys": int(bounds_k[-1]), "features": features}


WITH_FEATURES = (window, adjusted, used, packed)


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("stage", "variant"), few(VARIANTS, QUICK[1]), ids=lambda x: getattr(x, "label", x))
def test_formula_is_what_is_counted(stage, variant, head_dim, causal, rng):
    batch, heads, kv_heads = (2, 2, 1) if rng.integers(2) else (1, 3, 3)
    rows, keys = (int(n) for n in rng.integers(1, 300, 2))
    options = {"kv_heads": kv_heads, "causal": causal, "dlse": bool(rng.integers(2))}
    check(stage, variant, drawn(rng, rows, keys, head_dim, batch, heads, **options))


MADE = [(made, head_dim) for made in WITH_FEATURES for head_dim in (64, 128)]


@pytest.mark.long
@pytest.mark.parametrize(("made", "head_dim"), MADE)
@pytest.mark.parametrize(
    ("stage", "variant"),
    VARIANTS,
    ids=lambda x: getattr(x, "label", x),
)
def test_formula_holds_with_features(stage, variant, made, head_dim, rng):
    check(stage, variant, drawn(rng, head_dim=head_dim, heads=2, dlse=bool(rng.integers(2)), **made(rng)))
