"""What models add to attention, through the two calls: right on the simulator, bad arguments refused."""

import math

import numpy as np
import pytest
from matrix import few

from flashcore_numba import LADDER, ArgumentError, UnsupportedError, attention, attention_varlen
from flashcore_numba.checks import bounds
from flashcore_numba.core import oracle
from flashcore_numba.core.features import ALL, Features
from flashcore_numba.stages.find import find

SERVING = [stage for stage in LADDER if stage.features]
EACH = pytest.mark.parametrize("stage", SERVING, ids=lambda stage: stage.label)


def draw(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def assert_right(out, lse, q, k, v, causal=False, **features):
    ref = bounds.reference(q, k, v, causal, None, Features(**features))
    for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref)):
        assert verdict.passed, (verdict.reason, verdict.where)


def packed(x):
    """[total, H, D] as the oracle takes it."""
    return x.swapaxes(0, 1)[None]


@pytest.mark.long
@EACH
def test_all_at_once(rng, stage):
    q, k, v = draw(rng, 2, 4, 40, 64), draw(rng, 2, 2, 75, 64), draw(rng, 2, 2, 75, 64)
    features = {
        "window": (30, 4),
        "softcap": 6.0,
        "sinks": rng.standard_normal(4).astype(np.float32),
        "alibi_slopes": rng.uniform(0, 0.3, (2, 4)).astype(np.float32),
        "seqused_k": np.array([75, 51], np.int32),
    }
    features = {name: value for name, value in features.items() if name in stage.features}
    out, lse = attention(q, k, v, stage=stage, return_lse=True, **features)
    assert_right(out, lse, q, k, v, **features)


@pytest.mark.long
@EACH
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(rng, stage, causal):
    lengths_q, lengths_k = np.array([5, 0, 70, 33]), np.array([9, 20, 0, 90])
    bounds_q, bounds_k = (np.cumsum([0, *x]).astype(np.int32) for x in (lengths_q, lengths_k))
    q, k, v = draw(rng, 108, 4, 64), draw(rng, 119, 2, 64), draw(rng, 119, 2, 64)
    out = np.full((108, 4, 64), np.nan, np.float16)
    found, lse = attention_varlen(
        q, k, v, bounds_q, bounds_k, causal=causal, stage=stage, out=out, return_lse=True
    )
    assert found is out and lse.shape == (4, 108) and lse.dtype == np.float32
    whole = {"cu_seqlens_q": bounds_q, "cu_seqlens_k": bounds_k}
    assert_right(packed(out), lse[None], packed(q), packed(k), packed(v), causal, **whole)
    # Each sequence is what it is alone.
    for i, (rows, keys) in enumerate(
        zip(np.split(q, bounds_q[1:-1]), np.split(k, bounds_k[1:-1]), strict=True)
    ):
        if not (len(rows) and len(keys)):
            continue
        values = v[bounds_k[i] : bounds_k[i + 1]]
        alone = attention(packed(rows), packed(keys), packed(values), causal=causal, stage=stage)
        difference = np.abs(packed(out[bounds_q[i] : bounds_q[i + 1]]).astype(float) - alone.astype(float))
        assert difference.max() < 4e-3, i


@pytest.mark.long
def test_rows_behind_the_last_sequence_stay(rng):
    q, k = draw(rng, 50, 2, 64), draw(rng, 40, 2, 64)
    out = np.full(q.shape, 7, np.float16)
    attention_varlen(q, k, k, np.array([0, 30], np.int32), np.array([0, 40], np.int32), stage=12, out=out)
    assert (out[30:] == 7).all() and (out[:30] != 7).any()


@pytest.mark.long
def test_the_lse_without_the_sink(rng):
    """As `Features` says how to take it out."""
    q, k = draw(rng, 1, 2, 20, 64), draw(rng, 1, 2, 30, 64)
    sinks = np.array([0.5, 3], np.float32)
    _, lse = attention(q, k, k, sinks=sinks, stage=12, return_lse=True)
    _, plain = oracle.attention(q, k, k)
    assert np.allclose(lse + np.log1p(-np.exp(sinks[:, None] - lse)), plain, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["sinks", "alibi_slopes"])
@pytest.mark.parametrize("stage", [5, 12])
def test_what_is_not_finite_in_a_feature_is_no_error(rng, stage, name, value):
    """As in q, k and v: the simulator reports only a NaN that is made of finite numbers."""
    q, k = draw(rng, 1, 2, 20, 64), draw(rng, 1, 2, 30, 64)
    out = attention(q, k, k, stage=stage, **{name: np.array([value, 0], np.float32)})
    assert np.isnan(out[0, 0]).any() and np.isfinite(out[0, 1]).all()


@pytest.mark.parametrize("window", [(1000, 1000), (-1, 1000), (2**30, -1)])
def test_a_window_wider_than_all_keys_is_none(rng, window):
    q = draw(rng, 1, 1, 20, 64)
    assert (attention(q, q, q, window=window, stage=12) == attention(q, q, q, stage=12)).all()


@pytest.mark.long
def test_a_window_of_w_keys(rng):
    """`sliding_window=W` of Hugging Face and vLLM, the row's own key among them, is left = W - 1."""
    q = draw(rng, 1, 1, 50, 64)
    seen = np.array([[0 <= row - key < 8 for key in range(50)] for row in range(50)])
    expected, _ = oracle.attention(q, q, q, seen=seen)
    found = attention(q, q, q, causal=True, window=(7, -1), stage=12)
    assert np.abs(found - expected).max() < 4e-3


Q, ROWS = np.ones((2, 4, 8, 64), np.float16), np.ones((8, 4, 64), np.float16)
BOUNDS = np.array([0, 5, 8], np.int32)
FLOATS, INTS = np.ones(4, np.float32), np.array([8, 8], np.int32)
BAD = {
    "one number": ({"window": 5}, ["window is 5", "(left, right)"]),
    "three numbers": ({"window": (1, 2, 3)}, ["window is (1, 2, 3)"]),
    "below -1": ({"window": (-2, 0)}, ["window is (-2, 0)", "-1"]),
    "a float": ({"window": (1.5, 0)}, ["window is (1.5, 0)"]),
    "a bool": ({"window": (True, 0)}, ["window is (True, 0)"]),
    "negative softcap": ({"softcap": -1.0}, ["softcap is -1.0", "above 0"]),
    "NaN": ({"softcap": math.nan}, ["softcap is nan"]),
    "infinite": ({"softcap": math.inf}, ["softcap is inf"]),
    "nothing in float32": ({"softcap": 1e-46}, ["softcap is 1e-46", "float32 above 0"]),
    "infinite in base 2": ({"softcap": 3e38}, ["softcap is 3e+38", "to 2.3586e+38"]),
    "beside a large scale": ({"softcap": 0.1, "scale": 1e38}, ["softcap is 0.1: with scale 1e+38"]),
    "softcap as text": ({"softcap": "5"}, ["softcap is '5'"]),
    "sinks of a list": ({"sinks": [1.0] * 4}, ["sinks is of type list"]),
    "sinks in float16": ({"sinks": FLOATS.astype(np.float16)}, ["sinks has dtype float16", "float32"]),
    "too few sinks": ({"sinks": FLOATS[:3]}, ["sinks has shape (3,)", "(4,)"]),
    "strided sinks": ({"sinks": np.ones(8, np.float32)[::2]}, ["sinks has strides (8,)", "contiguous"]),
    "slopes of a batch": ({"alibi_slopes": np.ones((3, 4), np.float32)}, ["(3, 4)", "(4,) or (2, 4)"]),
    "used as int64": ({"seqused_k": INTS.astype(np.int64)}, ["seqused_k has dtype int64", "int32"]),
    "too many used": ({"seqused_k": INTS + 1}, ["seqused_k is 9 for sequence 0", "0 to 8"]),
    "negative used": ({"seqused_k": INTS - 9}, ["seqused_k is -1", "0 to 8"]),
}
BAD_PACKED = {
    "four dimensions": ({"q": Q}, ["q has shape (2, 4, 8, 64)", "[total, heads, D]"]),
    "backwards": ({"q": ROWS[::-1]}, ["q has strides (-512, 128, 2) bytes: the row stride is negative"]),
    "no rows": ({"q": ROWS[:0]}, ["q has shape (0, 4, 64)"]),
    "out of others": (
        {"out": ROWS[:7].copy()},
        ["out has shape (7, 4, 64): it must be (8, 4, 64), the rows of q"],
    ),
    "odd rows of out": (
        {"out": np.ones((8, 4, 68), np.float16)[..., :64]},
        ["out has strides (544, 136, 2) bytes", "multiple of 16 bytes"],
    ),
    "out for one head": (
        {"out": np.lib.stride_tricks.as_strided(ROWS.copy(), ROWS.shape, (512, 0, 2))},
        ["out has strides (512, 0, 2) bytes: its rows share memory"],
    ),
    "heads first": (
        {"gate": ROWS.swapaxes(0, 1).copy()},
        ["gate has shape (4, 8, 64): it must be (8, 4, 64)"],
    ),
    "no bounds": ({"cu_seqlens_q": None}, ["cu_seqlens_q is None"]),
    "int64": ({"cu_seqlens_k": BOUNDS.astype(np.int64)}, ["cu_seqlens_k has dtype int64", "int32"]),
    "one bound": ({"cu_seqlens_q": BOUNDS[:1]}, ["cu_seqlens_q has shape (1,)", "[B + 1]"]),
    "as many": ({"cu_seqlens_k": np.array([0, 8], np.int32)}, ["cu_seqlens_k has shape (2,)", "(3,)"]),
    "falls": ({"cu_seqlens_q": np.array([0, 9, 8], np.int32)}, ["cu_seqlens_q is [0, 9, 8]", "never fall"]),
    "falls by more than 2^31": (
        {"cu_seqlens_q": np.array([0, 2**31 - 1, -(2**31)], np.int32)},
        ["cu_seqlens_q is [0, 2147483647, -2147483648]", "never fall"],
    ),
    "begins late": ({"cu_seqlens_q": np.array([1, 5, 8], np.int32)}, ["begin at 0"]),
    "ends beyond": ({"cu_seqlens_k": np.array([0, 5, 9], np.int32)}, ["8 at the most", "rows of k"]),
    "used beyond": ({"seqused_k": np.array([5, 4], np.int32)}, ["seqused_k is 4 for sequence 1", "0 to 3"]),
}


@pytest.mark.parametrize("stage", [12, 15])
def test_the_greatest_softcap_changes_nothing(rng, stage):
    """The kernels take it in units of log2, as they take the scale."""
    q, k, v = (draw(rng, 1, 1, 20, 64) for _ in range(3))
    capped = attention(q, k, v, softcap=2.3586e38, stage=stage)
    assert np.abs(capped - attention(q, k, v, stage=stage)).max() < 4e-3


@pytest.mark.parametrize("changes, words", BAD.values(), ids=BAD)
def test_a_bad_argument_is_named(changes, words):
    out = np.full_like(Q, 7)
    with pytest.raises(ArgumentError) as raised:
        attention(Q, Q, Q, out=out, **changes)
    assert all(word in str(raised.value) for word in words), raised.value
    assert (out == 7).all()


@pytest.mark.parametrize("changes, words", BAD_PACKED.values(), ids=BAD_PACKED)
def test_a_bad_packed_argument_is_named(changes, words):
    good = {"q": ROWS, "k": ROWS, "v": ROWS, "cu_seqlens_q": BOUNDS, "cu_seqlens_k": BOUNDS}
    with pytest.raises(ArgumentError) as raised:
        attention_varlen(**good | changes)
    assert all(word in str(raised.value) for word in words), raised.value


@pytest.mark.parametrize("name", ["sinks", "alibi_slopes", "seqused_k", "cu_seqlens_q", "cu_seqlens_k"])
def test_out_must_not_overlap_what_a_feature_reads(name):
    memory, bounds = np.zeros(8 * 2 * 64, np.float16), np.array([0, 8], np.int32)
    feature = memory[:2].view(np.int32) if name == "seqused_k" else memory[:4].view(bounds.dtype)
    feature = feature.view(np.float32) if name in ("sinks", "alibi_slopes") else feature
    q, packed = np.ones((1, 2, 8, 64), np.float16), np.ones((8, 2, 64), np.float16)
    with pytest.raises(ArgumentError, match=f"out overlaps {name} in memory"):
        if name.startswith("cu"):
            feature[:] = bounds
            given = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds} | {name: feature}
            attention_varlen(packed, packed, packed, **given, out=memory.reshape(packed.shape))
        else:
            attention(q, q, q, **{name: feature}, out=memory.reshape(q.shape))
    assert not memory[4:].any()


def test_who_serves_it_is_named():
    with pytest.raises(UnsupportedError, match=r"stage 03 .* does not serve softcap; stage \d+ .* can"):
        attention(Q, Q, Q, softcap=5.0, stage=3)
    with pytest.raises(
        UnsupportedError, match=r"stage 06 .* does not serve head dimension 96, only 64 and 128"
    ):
        wide = np.ones((1, 1, 4, 96), np.float16)
        attention(wide, wide, wide, stage=6)
    with pytest.raises(UnsupportedError, match=r"values of another head dimension .64 and 128."):
        attention(Q, Q, np.ones((2, 4, 8, 128), np.float16), stage=5)


def test_some_stage_serves_everything():
    assert set(find(15).features) == set(ALL)


@pytest.mark.parametrize(
    "head_dim, value_dim",
    few([(32, 32), (80, 80), (96, 96), (192, 128), (256, 256), (64, 96)], (80, 80), (64, 96)),
)
def test_head_dimensions(rng, head_dim, value_dim):
    q, k, v = draw(rng, 1, 2, 37, head_dim), draw(rng, 1, 2, 50, head_dim), draw(rng, 1, 2, 50, value_dim)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert out.shape == (1, 2, 37, value_dim)
    assert_right(out, lse, q, k, v, True)
