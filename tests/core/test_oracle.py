"""The oracle against the definition, written out one row at a time."""

import math

import numpy as np
import pytest

from flashcore_numba.branches.backward import bounds
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.oracle import gradients as gradients_of
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.features import Features


def by_hand(q, k, v, causal, scale):
    """Attention by Python's own sums: slow, and sharing nothing with the oracle."""
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:3])
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:3]):
        keys = [j for j in range(k.shape[2]) if not causal or j <= i + k.shape[2] - q.shape[2]]
        terms = [math.exp(scale * math.fsum(map(float, q[b, h, i] * k[b, h // group, j]))) for j in keys]
        total = math.fsum(terms)
        lse[b, h, i] = math.log(total) if keys else -math.inf
        for c in range(q.shape[3]):
            pairs = zip(terms, keys, strict=True)
            out[b, h, i, c] = math.fsum(p * v[b, h // group, j, c] for p, j in pairs) / total if keys else 0
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "heads, kv_heads, seq_q, seq_k", [(2, 2, 5, 5), (4, 2, 3, 7), (3, 1, 7, 3), (1, 1, 1, 6)]
)
def test_oracle_is_the_definition(rng, heads, kv_heads, seq_q, seq_k, causal):
    q = rng.standard_normal((2, heads, seq_q, 8))
    k, v = rng.standard_normal((2, 2, kv_heads, seq_k, 8))
    for scale in (0.3, -0.7):
        out, lse = oracle.attention(q, k, v, causal, scale)
        expected_out, expected_lse = by_hand(q, k, v, causal, scale)
        np.testing.assert_allclose(out, expected_out, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-12)


@pytest.mark.parametrize(
    "causal, options",
    [
        (False, {}),
        (True, {}),
        (False, {"window": (3, 2), "softcap": 2.0}),
        (True, {"window": (0, 0), "sinks": np.float32([0.5, -1, 2, 0])}),
        (False, {"alibi_slopes": np.float32([0.5, 0, 0.25, 1]), "window": (5, -1)}),
        (True, {name: np.int32([0, 4, 9, 31]) for name in ("cu_seqlens_q", "cu_seqlens_k")}),
        (True, {"seqused_k": np.int32([17, 0])}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_a_large_head_is_answered_in_pieces(rng, monkeypatch, causal, options):
    """With as few rows as no real size has; of each only the keys that some row sees are read."""
    batch = 1 if "cu_seqlens_q" in options else 2
    q = rng.standard_normal((batch, 4, 31, 16)).astype(np.float16)
    k, v = rng.standard_normal((2, batch, 2, 31, 16)).astype(np.float16)
    features = Features(**options)
    monkeypatch.setattr(oracle, "MOST_PAIRS", 31 * 31)
    whole = oracle.attention(q, k, v, causal, features=features)
    standard = oracle.standard_attention(q, k, v, causal, features=features)
    x = backward_inputs(Inputs(q, k, v, causal=causal, features=features), rng, dlse=True)
    gradients, lost = gradients_of(x), bounds._float32_work(x)
    monkeypatch.setattr(oracle, "MOST_PAIRS", 3 * 31)
    heads = list(oracle.heads_of(q, k, v, causal, None, None, features, np.float32))
    assert len(heads) > 4 * batch and not all(head.whole for head in heads)
    pieces = oracle.attention(q, k, v, causal, features=features)
    for one, other in zip(pieces, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
    again = oracle.standard_attention(q, k, v, causal, features=features)  # some P rounds otherwise
    np.testing.assert_allclose(again.astype(float), standard.astype(float), atol=4e-3)
    for one, other in zip(gradients_of(x), gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    for one, other in zip(sum(bounds._float32_work(x), ()), sum(lost, ()), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_rows_without_keys_are_zero(rng):
    q = rng.standard_normal((1, 1, 6, 64)).astype(np.float16)
    k, v = rng.standard_normal((2, 1, 1, 2, 64)).astype(np.float16)
    out, lse = oracle.attention(q, k, v, causal=True)
    assert (out[:, :, :4] == 0).all()
    assert (lse[:, :, :4] == -np.inf).all()
    assert np.isfinite(lse[:, :, 4:]).all()
    np.testing.assert_array_equal(out[0, 0, 4], v[0, 0, 0])  # one key: its value
    assert (oracle.standard_attention(q, k, v, causal=True)[:, :, :4] == 0).all()


def test_default_scale(rng):
    q, k, v = rng.standard_normal((3, 1, 2, 9, 64))
    np.testing.assert_array_equal(oracle.attention(q, k, v)[0], oracle.attention(q, k, v, False, 0.125)[0])


def test_huge_scores_stay_finite(rng):
    q, k, v = (rng.standard_normal((1, 1, 16, 64)).astype(np.float16) for _ in "qkv")
    for factor in (1e4, -1e4):
        out, lse = oracle.attention(q, k, v, scale=factor)
        assert np.isfinite(out).all()
        assert np.isfinite(lse).all()
        assert np.isfinite(oracle.standard_attention(q, k, v, scale=factor)).all()


@pytest.mark.parametrize("function", [lambda *a: oracle.attention(*a)[0], oracle.standard_attention])
def test_nan_spreads_over_the_rows_that_see_it(rng, function):
    q, k, v = (rng.standard_normal((1, 1, 6, 64)).astype(np.float16) for _ in "qkv")
    k[0, 0, 4, 3] = np.nan
    out = function(q, k, v, True)
    assert np.isfinite(out[:, :, :4]).all()
    assert np.isnan(out[:, :, 4:]).all()


def test_standard_attention_rounds_like_float16(rng):
    q, k, v = (rng.standard_normal((1, 2, 64, 64)).astype(np.float16) for _ in "qkv")
    exact, _ = oracle.attention(q, k, v)
    rounded = oracle.standard_attention(q, k, v)
    assert rounded.dtype == np.float16
    error = np.abs(rounded - exact).max()
    assert 2**-14 < error < 2**-8, "neither exact nor coarser than a few float16 roundings"


def test_inputs_are_left_alone(rng):
    q, k, v = (rng.standard_normal((1, 1, 4, 64)).astype(np.float16) for _ in "qkv")
    copies = [x.copy() for x in (q, k, v)]
    oracle.attention(q, k, v, True)
    oracle.standard_attention(q, k, v, True)
    for x, copy in zip((q, k, v), copies, strict=True):
        np.testing.assert_array_equal(x, copy)


def test_parts_of_the_keys_merge_to_the_whole(rng):
    """In any order; a part of which some rows see nothing, and whose output there is NaN, changes nothing."""
    q, k, v = rng.standard_normal((2, 3, 9, 8)), *rng.standard_normal((2, 2, 1, 20, 8))
    out, lse = oracle.attention(q, k, v)
    cuts = [slice(0, 4), slice(4, 5), slice(5, 20)]
    before = {"prior_out": np.full(q.shape, np.nan), "prior_lse": np.full(q.shape[:3], -np.inf)}
    for keys in (cuts[i] for i in rng.permutation(3)):
        features = Features(**before)
        before = dict(
            zip(before, oracle.attention(q, k[:, :, keys], v[:, :, keys], features=features), strict=True)
        )
    assert np.allclose(before["prior_out"], out, rtol=0, atol=1e-14)
    assert np.allclose(before["prior_lse"], lse, rtol=0, atol=1e-13)
    empty = Features(prior_out=np.full(q.shape, np.nan), prior_lse=np.full(q.shape[:3], -np.inf))
    blind_out, blind_lse = oracle.attention(q, k[:, :, :4], v[:, :, :4], causal=True, features=empty)
    assert not blind_out[:, :, :5].any() and np.isneginf(blind_lse[:, :, :5]).all()
