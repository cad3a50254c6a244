"""attention_dropout() and its backward: arguments, what they refuse, and the identities of p = 0."""

from dataclasses import replace

import numpy as np
import pytest

from branches.dropout.running import seen_by_a_call
from flashcore_numba import (
    ArgumentError,
    UnsupportedError,
    attention,
    attention_backward,
    attention_dropout,
    attention_dropout_backward,
    dropout_mask,
)
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.backward.ladder import find
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.dropout import oracle
from flashcore_numba.branches.dropout.dropout_mma_sync import STAGE
from flashcore_numba.branches.dropout.inputs import drawn, with_dropout
from flashcore_numba.branches.dropout.operation import DROPOUT, DROPOUT_BACKWARD
from flashcore_numba.branches.dropout.properties import options
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.run import plans

BAD = [
    ({"q": np.zeros((1, 2, 8, 64), np.float32)}, "q has dtype float32"),
    ({"k": np.zeros((1, 3, 8, 64), np.float16), "v": np.zeros((1, 3, 8, 64), np.float16)}, "k has 3 heads"),
    ({"v": np.zeros((1, 2, 9, 64), np.float16)}, "v has length 9"),
    ({"causal": 1}, "causal is 1"),
    ({"scale": float("nan")}, "scale is nan"),
    ({"time_limit": 0}, "time_limit is 0"),
    ({"p": 1.0}, "p is 1.0: it must be a number from 0 up to, but not, 1"),
    ({"p": -0.5}, "p is -0.5"),
    ({"seed": -3}, "seed is -3"),
    ({"offset": 6}, "offset is 6: .* a multiple of 4"),
    ({"stage": "mma"}, "accepted are dropout(_backward)?/mma_sync"),
]
FORWARD_ONLY = [({"out": np.zeros((1, 2, 8, 32), np.float16)}, "out has shape")]
BACKWARD_ONLY = [
    ({"lse": np.zeros((1, 2, 9), np.float32)}, "lse has shape"),
    ({"dout": np.zeros((1, 2, 8, 64), BFLOAT16.dtype)}, "dout has dtype bfloat16"),
    ({"dlse": np.zeros((1, 2, 8), np.float16)}, "dlse has dtype float16"),
    ({"dk": np.zeros((1, 2, 7, 64), np.float16)}, "dk has shape"),
]


def zeros(d=64):
    return {name: np.zeros((1, 2, 8, d), np.float16) for name in "qkv"} | {"p": 0.1, "seed": 0}


def zeros_back(d=64):
    others = {name: np.zeros((1, 2, 8, d), np.float16) for name in ("dout", "out")}
    return zeros(d) | others | {"lse": np.zeros((1, 2, 8), np.float32)}


@pytest.mark.parametrize(("wrong", "message"), [*BAD, *FORWARD_ONLY])
def test_bad_arguments(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        attention_dropout(**zeros() | wrong)


@pytest.mark.parametrize(("wrong", "message"), [*BAD, *BACKWARD_ONLY])
def test_bad_arguments_of_the_backward_pass(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        attention_dropout_backward(**zeros_back() | wrong)


@pytest.mark.parametrize("stage", [None, "mma_sync"])
def test_what_is_not_served(stage):
    with pytest.raises(UnsupportedError, match=r"head dimension 96, only 64 and 128"):
        attention_dropout(**zeros(96), stage=stage)
    with pytest.raises(UnsupportedError, match=r"head dimension 96, only 64 and 128"):
        attention_dropout_backward(**zeros_back(96), stage=stage)


@pytest.mark.parametrize("stage", [None, "dropout/mma_sync", STAGE], ids=["chosen", "by key", "a stage"])
def test_outputs(stage, rng):
    """Into the caller's memory, of transposed views."""
    x = with_dropout(normal(rng, 2, 4, 40, 90, 64, 2, causal=True, element=BFLOAT16), drawn(rng, 0.3))
    turned = {n: np.ascontiguousarray(getattr(x, n).swapaxes(1, 2)).swapaxes(1, 2) for n in "qkv"}
    out = np.full((2, 40, 4, 64), np.nan, BFLOAT16.dtype).swapaxes(1, 2)
    found, lse = attention_dropout(**turned, **options(x.dropout), causal=True, out=out, stage=stage)
    assert found is out and lse.dtype == np.float32
    reference = DROPOUT.reference(x)
    assert all(DROPOUT.judge(o, value, reference, None).passed for o, value in ((OUT, out), (LSE, lse)))


def test_gradients(rng):
    """From what the forward call returned, into the caller's memory, with a gradient of the LSE."""
    x = with_dropout(normal(rng, 1, 4, 70, 90, 64, 2, causal=True), drawn(rng, 0.3))
    given = oracle.backward_inputs(x, rng, dlse=True)
    how = options(x.dropout) | {"causal": True}
    dv = np.full_like(x.v, np.nan)
    found = attention_dropout_backward(
        given.dout, x.q, x.k, x.v, given.out, given.lse, **how, dlse=given.dlse, dv=dv
    )
    assert found[2] is dv
    reference = DROPOUT_BACKWARD.reference(given)
    for each, value in zip(GRADIENTS, found, strict=True):
        assert DROPOUT_BACKWARD.judge(each, value, reference, None).passed, each.name


@pytest.mark.long
@pytest.mark.parametrize("d", [64, 128])
def test_nothing_dropped_is_attention(d, rng):
    """p = 0, and p that rounds to it: out, LSE and gradients to the bit."""
    x = normal(rng, 1, 4, 70, 150, d, 2, causal=True)
    plain, plain_lse = attention(x.q, x.k, x.v, causal=True, return_lse=True, stage="mma_sync")
    dout = np.roll(plain, 1, axis=3)
    large = attention_backward_of(x, plain, plain_lse, dout)
    for p in (0, 2.0**-20):
        how = {"p": p, "seed": int(rng.integers(100)), "offset": 8, "causal": True}
        out, lse = attention_dropout(x.q, x.k, x.v, **how)
        assert np.array_equal(out.view(np.uint16), plain.view(np.uint16)) and np.array_equal(lse, plain_lse)
        found = attention_dropout_backward(dout, x.q, x.k, x.v, out, lse, **how)
        for one, other in zip(found, large, strict=True):
            assert np.array_equal(one.view(np.uint16), other.view(np.uint16))


def attention_backward_of(x, out, lse, dout):
    """By the kernel whose warps own keys, which the call would take for larger problems."""
    stage = replace(find("mma_sync"), called="large")
    return attention_backward(dout, x.q, x.k, x.v, out, lse, causal=True, stage=stage)


def test_what_the_factor_takes_beyond_the_type_is_infinite(rng):
    """Not its largest number, by which a scaler of gradients would not see it."""
    x = with_dropout(normal(rng, 1, 2, 200, 12, 64), drawn(rng, 0.9))
    x = x.but(v=(20000 + 1000 * x.v.astype(np.float32)).astype(np.float16))
    out, lse = attention_dropout(x.q, x.k, x.v, **options(x.dropout))
    reference = DROPOUT.reference(x)
    assert all(DROPOUT.judge(o, value, reference, None).passed for o, value in ((OUT, out), (LSE, lse)))
    beyond = reference.out > 66000
    assert beyond.any() and np.isposinf(out[beyond]).all() and np.isfinite(out[reference.out < 65000]).all()
    for wrong in (np.clip(out, -65504, 65504), np.where(beyond, -out, out), np.full_like(out, np.inf)):
        assert not DROPOUT.judge(OUT, wrong, reference, None).passed
    kept = with_dropout(x, drawn(rng, 0.0))  # a mean of V, which is within its range
    right = DROPOUT.reference(kept)
    assert not DROPOUT.judge(OUT, np.full_like(out, np.inf), right, None).passed


def test_the_mask_of_a_call(rng):
    shape, dropout = (1, 3, 33, 70), drawn(rng, 0.6)
    assert np.array_equal(seen_by_a_call(shape, dropout), dropout_mask(shape, **options(dropout)))


def test_a_step_in_the_direction_of_the_gradient(rng):
    """The float64 answer with a fixed mask, differentiated by finite differences, is what the oracle says."""
    x = with_dropout(normal(rng, 1, 2, 12, 20, 64, 1, causal=True), drawn(rng, 0.4))
    x = x.but(**{name: getattr(x, name).astype(np.float64) for name in "qkv"})
    out, lse = oracle.attention(x)
    dout = rng.standard_normal(out.shape)
    found = oracle.gradients(BackwardInputs(x, out, lse, dout))
    for name in "qkv":
        step = rng.standard_normal(getattr(x, name).shape)
        ends = [
            (oracle.attention(x.but(**{name: getattr(x, name) + h * step}))[0] * dout).sum()
            for h in (1e-5, -1e-5)
        ]
        slope = (getattr(found, f"d{name}") * step).sum()
        assert abs((ends[0] - ends[1]) / 2e-5 - slope) < 1e-5 * max(1, abs(slope))


@pytest.mark.long
def test_the_mean_over_seeds_is_attention(rng):
    """Over 400 seeds every output is within 6 standard deviations of the one without dropout."""
    x = normal(rng, 1, 1, 16, 40, 64)
    right = oracle.attention(with_dropout(x, drawn(rng, 0.0)))[0]
    outs = np.stack([oracle.attention(with_dropout(x, drawn(rng, 0.3)))[0] for _ in range(400)])
    error = (outs.mean(axis=0) - right) / (outs.std(axis=0) / 20)
    assert np.abs(error).max() < 6


def test_each_call_on_a_gpu_has_its_own_seed_and_offset(stub):
    """No plan is kept: it would drop the same elements again."""
    q, k, v = (stub.array((2, 8, 512, 64)) for _ in range(3))
    for seed, offset in ((5, 8), ((1 << 64) - 1, 12)):
        stub.long_way.clear()
        out, lse = attention_dropout(q, k, v, p=0.25, seed=seed, offset=offset)
        attention_dropout_backward(out, q, k, v, out, lse, p=0.25, seed=seed, offset=offset)
        assert not plans._plans
        for each in (stub.long_way[0], stub.long_way[2]):
            threshold, _, *words = each[3][-5:-1]
            given = [int.from_bytes(x, "little") for x in (threshold, *words)]
            assert given == [1 << 30, seed, offset // 4], each[0]
