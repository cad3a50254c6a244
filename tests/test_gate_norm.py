"""Norm and gate after attention, by the public calls: `head_norm=(weight, eps)` and `gate=`."""

import numpy as np
import pytest
from matrix import few
from small_weights import counted, problem

from flashcore_numba import ArgumentError, UnsupportedError, attention, attention_varlen
from flashcore_numba.checks import bounds
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.predict import predict
from flashcore_numba.stages import stage15_ping_pong, stage16_cluster_split

STAGES = stage15_ping_pong.STAGE, stage16_cluster_split.STAGE
STAGE = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.label)


def draw(rng, *shape, element=ACCEPTED[0]):
    return element.round(rng.standard_normal(shape))


def assert_right(out, lse, q, k, v, causal=False, features=OFF):
    ref = bounds.reference(q, k, v, causal, None, features)
    for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref)):
        assert verdict.passed, (verdict.reason, verdict.where)


@pytest.mark.long
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)
@STAGE
def test_the_formula_by_hand(rng, stage, element):
    """Norm first, then the gate; a gate that is a slice, weights of each head in q's type."""
    q, k, v = (draw(rng, 2, heads, rows, 64, element=element) for heads, rows in ((4, 70), (2, 90), (2, 90)))
    both = draw(rng, 2, 70, 4, 128, element=element)  # query and gate as one projection makes them
    gate, weight = both.swapaxes(1, 2)[..., 64:], draw(rng, 4, 64, element=element)
    found, lse = attention(q, k, v, head_norm=(weight, 0.5), gate=gate, stage=stage, return_lse=True)
    plain, plain_lse = attention(q, k, v, stage=stage, return_lse=True)
    x = plain.astype(np.float64)
    normed = x / np.sqrt((x**2).mean(axis=3, keepdims=True) + 0.5) * weight[:, None].astype(np.float64)
    right = normed / (1 + np.exp(-gate.astype(np.float64)))
    assert np.abs(found - right).max() < 20 * element.unit_roundoff * np.abs(right).max()
    assert np.array_equal(lse, plain_lse)
    assert_right(found, lse, q, k, v, features=Features(norm_weight=weight, norm_eps=0.5, gate=gate))


@pytest.mark.long
@STAGE
def test_a_gate_of_zeros_halves_and_an_open_one_changes_nothing(rng, stage):
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (40, 50, 50))
    plain = attention(q, k, v, stage=stage)
    half = attention(q, k, v, gate=np.zeros_like(q), stage=stage)
    assert np.abs(half.astype(float) - plain.astype(float) / 2).max() <= 2**-24  # of the least halves
    assert np.array_equal(attention(q, k, v, gate=np.full_like(q, 100), stage=stage), plain)
    assert not attention(q, k, v, gate=np.full_like(q, -np.inf), stage=stage).any()


@pytest.mark.long
@STAGE
def test_rows_that_see_no_key_are_zeros(rng, stage):
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (70, 20, 20))
    weight = np.ones(64, np.float32)
    out = attention(q, k, v, causal=True, head_norm=(weight, 1e-6), gate=draw(rng, *q.shape), stage=stage)
    assert not out[:, :, :50].any() and out[:, :, 50:].all(axis=3).all()


@STAGE
def test_what_the_weight_takes_beyond_the_type_is_infinite(rng, stage):
    """Not its largest number, by which nobody would see it. A gate alone makes a mean of V no larger."""
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (40, 50, 50))
    v[..., 7] += 40
    weight = rng.uniform(19000, 21000, 64).astype(np.float32)
    out, lse = attention(q, k, v, head_norm=(weight, 1e-5), stage=stage, return_lse=True)
    assert np.isposinf(out[..., 7]).all() and np.isfinite(np.delete(out, 7, axis=3)).all()
    features = Features(norm_weight=weight, norm_eps=1e-5)
    assert_right(out, lse, q, k, v, features=features)
    ref = bounds.reference(q, k, v, features=features)
    for wrong in (np.clip(out, -65504, 65504), -out, np.where(np.isinf(out), out, np.inf)):
        assert not bounds.judge(wrong, ref).passed

    great = np.full_like(v, 65504)
    q[:], k[:] = 0, 0
    q[..., 0], k[..., 1:, 0], scale = 1, -1, -np.log(0.5 + 0.55 * 2**-11)  # rounding P adds to all but one
    closed = attention(q, k, great, gate=np.full_like(q, 20), scale=scale, stage=stage)
    assert (closed >= 65000).all() and np.isfinite(closed).all()


@pytest.mark.long
@STAGE
def test_packed_sequences(rng, stage):
    q, k, v = draw(rng, 108, 4, 64), draw(rng, 119, 2, 64), draw(rng, 119, 2, 64)
    gate, weight = draw(rng, 108, 4, 64), rng.standard_normal((4, 64)).astype(np.float32)
    lengths = [np.cumsum([0, *each], dtype=np.int32) for each in ((5, 0, 70, 33), (9, 20, 0, 90))]
    out, lse = attention_varlen(
        q, k, v, *lengths, causal=True, head_norm=(weight, 0.1), gate=gate, stage=stage, return_lse=True
    )
    out, q, k, v, gate = (x.swapaxes(0, 1)[None] for x in (out, q, k, v, gate))
    bounds_q, bounds_k = lengths
    features = Features(
        cu_seqlens_q=bounds_q, cu_seqlens_k=bounds_k, norm_weight=weight, norm_eps=0.1, gate=gate
    )
    assert_right(out, lse[None], q, k, v, True, features)


@pytest.mark.long
def test_the_last_of_several_parts_takes_norm_and_gate(rng):
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (40, 90, 90))
    o, after = (
        np.empty(q.shape, np.float32),
        {"head_norm": (draw(rng, 64), 1e-5), "gate": draw(rng, *q.shape)},
    )
    _, lse = attention(q, k[:, :, :30], v[:, :, :30], out=o, stage=15, return_lse=True)
    rest = k[:, :, 30:], v[:, :, 30:]
    out, lse = attention(q, *rest, prior=(o, lse), out=o, stage=15, return_lse=True, **after)
    weight, eps = after["head_norm"]
    features = Features(float32_out=True, norm_weight=weight, norm_eps=eps, gate=after["gate"])
    assert_right(out, lse, q, k, v, features=features)


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize(
    ("stage", "variant"),
    few([(STAGES[0], None), (STAGES[1], "one_block"), (STAGES[1], "two_blocks")], (STAGES[1], "two_blocks")),
    ids=lambda x: getattr(x, "label", str(x)),
)
def test_formula_is_what_is_counted(stage, variant, head_dim, rng):
    rows, keys = (int(n) for n in rng.integers(1, 300, 2))
    shape, type_ = (2, 2, rows, head_dim), (np.float16, np.float32)[rng.integers(2)]
    features = Features(
        norm_weight=np.ones((2, head_dim)[rng.integers(2) :], type_),
        norm_eps=1e-5,
        gate=np.ones(shape, np.float16),
    )
    p = problem(rng, *shape[:3], keys, head_dim, bool(rng.integers(2)), features=features)
    assert predict(stage, variant, p, 132) == counted(stage, variant, p, 132), (rows, keys, type_)


Q = np.ones((2, 4, 8, 64), np.float16)
WEIGHT = np.ones(64, np.float32)
BAD = {
    "a number": ({"head_norm": 5}, ["head_norm is 5", "(weight, eps)"]),
    "a weight alone": ({"head_norm": WEIGHT}, ["head_norm is array", "(weight, eps)"]),
    "no weight": ({"head_norm": (None, 1e-5)}, ["head_norm is (None", "(weight, eps)"]),
    "eps of zero": ({"head_norm": (WEIGHT, 0)}, ["head_norm[1], eps, is 0", "above 0"]),
    "eps that is none": ({"head_norm": (WEIGHT, True)}, ["head_norm[1], eps, is True", "above 0"]),
    "a weight in float64": (
        {"head_norm": (WEIGHT.astype(float), 1e-5)},
        ["head_norm[0] has dtype float64", "float16 and float32"],
    ),
    "a weight of all columns": (
        {"head_norm": (np.ones(256, np.float32), 1e-5)},
        ["head_norm[0] has shape (256,)", "(64,) or (4, 64)"],
    ),
    "a weight with steps": (
        {"head_norm": (np.ones(128, np.float32)[::2], 1e-5)},
        ["head_norm[0] has strides", "C-contiguous"],
    ),
    "a weight at an odd address": (
        {"head_norm": (np.ones(72, np.float16)[3:67], 1e-5)},
        ["head_norm[0] must start at a multiple of 16 bytes"],
    ),
    "a list": ({"gate": [1.0]}, ["gate is of type list"]),
    "a gate in float32": ({"gate": Q.astype(np.float32)}, ["gate has dtype float32", "only float16"]),
    "a gate of each head": ({"gate": Q[..., :1]}, ["gate has shape (2, 4, 8, 1)", "(2, 4, 8, 64)"]),
    "columns of a gate apart": (
        {"gate": Q.swapaxes(2, 3).copy().swapaxes(2, 3)},
        ["gate has strides", "(D) must be contiguous"],
    ),
    "rows of a gate at odd places": (
        {"gate": np.ones((2, 4, 8, 67), np.float16)[..., :64]},
        ["gate has strides", "multiple of 16 bytes"],
    ),
}


@pytest.mark.parametrize(("options", "words"), BAD.values(), ids=BAD)
def test_a_bad_argument_is_named(options, words):
    out = np.full(Q.shape, 7, np.float16)
    with pytest.raises(ArgumentError) as raised:
        attention(Q, Q, Q, out=out, **options)
    assert all(word in str(raised.value) for word in words), raised.value
    assert (out == 7).all()


def test_an_output_over_its_gate_is_refused():
    with pytest.raises(ArgumentError, match="out overlaps gate in memory"):
        attention(Q, Q, Q, gate=(gate := Q.copy()), out=gate)


@pytest.mark.parametrize("stage", [1, 5, 12, 13, 14])
def test_other_stages_refuse(stage):
    for options, what in (({"gate": Q}, "gate"), ({"head_norm": (WEIGHT, 1e-5)}, "head_norm")):
        with pytest.raises(UnsupportedError, match=rf"does not serve {what}; stage 15 ping_pong can"):
            attention(Q, Q, Q, stage=stage, **options)
