"""The bound: just inside passes, just outside fails, and a NaN never passes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba.checks.bounds import EXTREME, PLAN, judge, judge_lse, reference
from flashcore_numba.core import oracle
from flashcore_numba.core.element import ACCEPTED, BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features

EACH_TYPE = pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)


def drawn(rng, element):
    return [element.round(rng.standard_normal((2, 2, s, 64))) for s in (17, 40, 40)]


@pytest.fixture
def inputs(rng):
    return drawn(rng, FLOAT16)


@EACH_TYPE
def test_the_float64_answer_rounded_once_passes_with_a_margin_of_two(element, rng):
    ref = reference(*drawn(rng, element))
    verdict = judge(element.round(ref.out), ref)
    assert verdict.passed
    assert verdict.margin >= 2


def test_what_bfloat16_may_lose_is_too_much_for_float16(rng):
    """The bound follows from the type of q, k and v, of numbers that both types have."""
    coarse = drawn(rng, BFLOAT16)
    fine = [x.astype(np.float16) for x in coarse]
    out = BFLOAT16.round(reference(*coarse).out)
    assert judge(out, reference(*coarse)).passed
    assert not judge(out, reference(*fine)).passed


def test_a_float32_kernel_passes_with_a_margin_of_two(inputs):
    """What the floor promises, on attention computed in float32 with the sums in another order."""
    q, k, v = (x.astype(np.float32) for x in inputs)
    scores = (q @ k.swapaxes(2, 3)) * np.float32(1 / 8)
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    out = (p[..., ::-1] @ v[:, :, ::-1] / p.sum(axis=3, keepdims=True)).astype(np.float16)
    assert judge(out, reference(*inputs)).margin >= 2


def merged(inputs, rng, offset=4.0):
    q, _, v = inputs
    prior_lse = (offset + 2 * rng.standard_normal(q.shape[:3])).astype(np.float32)
    prior_out = rng.standard_normal((*q.shape[:3], v.shape[3])).astype(np.float32)
    return Features(float32_out=True, prior_out=prior_out, prior_lse=prior_lse)


@pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)
def test_a_kernel_that_merges_passes_with_a_margin_of_two(element, rng):
    """In float32, the weights by the LSE of each part, P in the element type, the output as it is."""
    inputs = drawn(rng, element)
    features = merged(inputs, rng)
    q, k, v = (x.astype(np.float32) for x in inputs)
    scores = (q @ k.swapaxes(2, 3)) * np.float32(1 / 8)
    greatest = np.maximum(scores.max(axis=3), features.prior_lse)[..., None]
    p, before = np.exp(scores - greatest), np.exp(features.prior_lse[..., None] - greatest)
    total = p.sum(axis=3, keepdims=True) + before
    out = (element.round(p).astype(np.float32) @ v + before * features.prior_out) / total
    ref = reference(*inputs, features=features)
    assert judge(out, ref).margin >= 2
    assert judge_lse((greatest + np.log(total))[..., 0], ref).margin >= 2


def test_what_was_merged_must_not_pass_through_a_half(inputs, rng):
    """Where what is new has next to no weight, a float32 output is what it was before."""
    features = merged(inputs, rng, offset=30.0)
    ref = reference(*inputs, features=features)
    assert judge(ref.out.astype(np.float32), ref).passed
    assert not judge(ref.out.astype(np.float16), ref).passed
    in_type = reference(*inputs, features=replace(features, float32_out=False))
    assert judge(ref.out.astype(np.float16), in_type).margin >= 2


@pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)
def test_norm_and_gate_in_float32_pass_with_a_margin_of_two(element, rng):
    """Of attention that nothing has rounded; in the other order, or of halves without eps, they do not."""
    inputs = drawn(rng, element)
    q, k, v = (x.astype(np.float32) for x in inputs)
    weight, gate = rng.standard_normal(64).astype(np.float32), element.round(3 * rng.standard_normal(q.shape))
    scores = (q @ k.swapaxes(2, 3)) * np.float32(1 / 8)
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    x = element.round(p).astype(np.float32) @ v / p.sum(axis=3, keepdims=True)
    opened = 1 / (1 + np.exp(-gate.astype(np.float32)))

    def normed(x, eps=0.05):
        return x / np.sqrt((x**2).mean(axis=3, keepdims=True) + eps) * weight

    ref = reference(*inputs, features=Features(norm_weight=weight, norm_eps=0.05, gate=gate))
    assert judge(element.round(normed(x) * opened), ref).margin >= 2
    assert judge_lse(scores.max(axis=3) + np.log(p.sum(axis=3)), ref).margin >= 2
    for wrong in (normed(x * opened), normed(x, 0) * opened, normed(x), x * opened, normed(x) * gate):
        assert not judge(element.round(wrong), ref).passed


@pytest.mark.parametrize(("factor", "passes"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_bound_is_where_it_says(inputs, rng, factor, passes, sign):
    ref = reference(*inputs)
    out = ref.out.copy()
    at = tuple(int(rng.integers(n)) for n in out.shape)
    out[at] += sign * factor * ref.allowed[at]
    verdict = judge(out, ref)
    assert verdict.passed is passes
    assert verdict.where == at
    assert verdict.margin == pytest.approx(1 / factor, rel=1e-6)
    assert verdict.wrong.sum() == (0 if passes else 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("gate", [PLAN, EXTREME])
def test_one_value_that_is_not_finite_fails(inputs, rng, value, gate):
    ref = reference(*inputs)
    out = ref.out.copy()
    at = tuple(int(rng.integers(n)) for n in out.shape)
    out[at] = value
    verdict = judge(out, ref, gate)
    assert not verdict.passed
    assert verdict.where == at


def test_the_plan_gate_is_stricter_than_a_loose_bound(inputs):
    """Large values of V widen the relative bound; the absolute gate of 1e-3 stays."""
    q, k, v = inputs
    ref = reference(q, k, 100 * v.astype(np.float32))
    out = ref.out + 1.5e-3
    assert judge(out, ref).passed
    verdict = judge(out, ref, PLAN)
    assert not verdict.passed
    assert "0.0015" in verdict.reason
    assert "0.001" in verdict.reason


def test_the_extreme_gate_counts_outliers_and_the_mean(inputs):
    q, k, v = inputs
    ref = reference(q * np.float16(300), k, 1000 * v.astype(np.float32))  # a bound of about a hundred
    few, many, shifted = (ref.out.copy() for _ in range(3))
    few.flat[:: few.size // 10] += 0.2
    many.flat[::50] += 0.2
    shifted += 0.03
    assert judge(few, ref, EXTREME).passed
    assert "share" in judge(many, ref, EXTREME).reason
    assert "mean" in judge(shifted, ref, EXTREME).reason


def test_lse_of_a_row_that_sees_no_key_is_minus_infinity_and_nothing_else(rng):
    q, k, v = (rng.standard_normal((1, 1, s, 64)).astype(np.float16) for s in (6, 3, 3))
    ref = reference(q, k, v, causal=True)
    lse = ref.lse.astype(np.float32)
    assert np.isneginf(lse[0, 0, :3]).all()
    assert judge_lse(lse, ref).passed
    for wrong in (0.0, -1e30, np.nan, np.inf):
        lse[0, 0, 1] = wrong
        assert not judge_lse(lse, ref).passed


def test_lse_in_float32_passes_and_a_wrong_base_fails(inputs):
    ref = reference(*inputs)
    assert judge_lse(ref.lse.astype(np.float32), ref).margin >= 2
    assert not judge_lse(ref.lse / math.log(2), ref).passed


@EACH_TYPE
def test_accumulation_in_the_element_type_is_beyond_the_bound(element, rng):
    """The precision gate: O summed in it is what the bound must not forgive."""
    q, k, v = drawn(rng, element)
    out, _ = oracle.attention(q, k, v)
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)) / 8
    p = np.exp(scores - scores.max(axis=3, keepdims=True))
    total = np.zeros(out.shape)
    for j in range(k.shape[2]):
        total = element.round(total + p[..., j, None] * v[:, :, None, j].astype(np.float64)).astype(
            np.float64
        )
    assert not judge(total / p.sum(axis=3, keepdims=True), reference(q, k, v)).passed
