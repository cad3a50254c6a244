"""The checks of the backward pass: the reference is right, right gradients pass, wrong ones do not."""

import numpy as np
import pytest

from flashcore_numba.branches.backward import oracle
from flashcore_numba.branches.backward.inputs import backward_inputs
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.feature_cases import MADE
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import oracle as forward
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.shapes import Shape

from .numpy_stage import WRONG, stage

STEP = 1e-5
FEATURES = ("window: 40 keys before, 10 after", "softcap: 3", "sinks: two batches", "ALiBi and softcap: 4",
            "ragged and window and sinks: causal", "ragged and seqused_k: NaN behind, causal")  # fmt: skip


def drawn(name, rng):
    if name in FEATURES:
        return MADE[name](rng, normal, 64)
    options = {"causal": {"causal": True}, "more rows than keys": {"causal": True}, "scale": {"scale": -0.7}}
    rows, keys = (30, 12) if name == "more rows than keys" else (20, 30)
    return normal(rng, 1, 4, rows, keys, 64, kv_heads=2, **options.get(name, {}))


@pytest.mark.parametrize("name", ["plain", "causal", "more rows than keys", "scale", *FEATURES])
def test_the_reference_is_the_derivative(name, rng):
    """Central differences of the loss <dO, O> + <dLSE, LSE> in float64, in random directions."""
    x = drawn(name, rng)
    exact = x.but(
        **{
            n: np.where(np.isnan(a), 0, a).astype(np.float64)
            for n, a in zip("qkv", (x.q, x.k, x.v), strict=True)
        }
    )
    out, lse = forward.attention(exact.q, exact.k, exact.v, x.causal, x.scale, features=x.features)
    dout, dlse = rng.standard_normal(out.shape), rng.standard_normal(lse.shape)
    dlse[~np.isfinite(lse)] = 0
    found = oracle.gradients(oracle.BackwardInputs(exact, out, lse, dout, dlse))

    def loss(**moved):
        y = exact.but(**moved)
        out, lse = forward.attention(y.q, y.k, y.v, y.causal, y.scale, features=y.features)
        return (dout * out).sum() + (dlse * np.where(np.isfinite(lse), lse, 0)).sum()

    for of, gradient in zip("qkv", found, strict=True):
        array = getattr(exact, of)
        direction = rng.standard_normal(array.shape)
        slope = (loss(**{of: array + STEP * direction}) - loss(**{of: array - STEP * direction})) / (2 * STEP)
        right = (gradient * direction).sum()
        assert abs(slope - right) <= 1e-7 * np.sqrt((gradient**2).sum() * (direction**2).sum()), (
            of,
            slope,
            right,
        )


@pytest.mark.long
def test_right_gradients_pass_every_case_and_property():
    report = check_stage(stage())
    assert report.passed, report.failures[0]
    names = {result.name for result in report.results}
    assert {
        "a scale of 0",
        "the LSE has a gradient",
        "<Q, dQ> is <K, dK>",
        "ragged: empty sequences on both sides",
    } <= names
    assert report.margin > 1


@pytest.mark.long
def test_gradients_without_rounding_pass_too():
    report = check_stage(stage(rounded=False))
    assert report.passed, report.failures[0]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_gradients_fail(name):
    report = check_stage(stage(**WRONG[name]), stop_at_first=True)
    assert not report.passed and report.failures[0].kind in ("value", "property"), report.failures


@pytest.mark.parametrize("name", ["D left out", "scale missing in dK", "a group's last head wins"])
def test_identities_find_what_the_reference_finds(name, rng):
    """Without any comparison with a reference."""
    properties = [each.name for each in BACKWARD.properties(stage(), "simulator")]
    report = check_stage(stage(**WRONG[name]), names=properties)
    assert "property" in {result.kind for result in report.failures}


def test_the_truth_of_some_heads_is_that_of_all(rng, monkeypatch):
    lengths = np.array([0, 20, 33, 70], np.int32)
    x = normal(rng, 1, 4, 70, 70, 64, kv_heads=2).but(
        features=Features(cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    )
    x = backward_inputs(x, rng)
    whole = oracle.gradients(x)
    answer = {name: getattr(whole, name) for name in ("dq", "dk", "dv")}
    judged = truth(BACKWARD, x, rng).judge([answer])
    assert judged["right"] and judged["heads_checked"] == judged["heads"] == 6 and judged["max"] < 1e-12
    monkeypatch.setattr("flashcore_numba.checks.truth.MOST_PAIRS", 1)
    some = truth(BACKWARD, x, rng)
    assert len(some.chosen) == 1
    sequence, head = divmod(int(some.chosen[0]), 2)
    wrong = {name: array.copy() for name, array in answer.items()}
    wrong["dk"][0, head, lengths[sequence]] += 1
    assert not some.judge([wrong])["right"] and some.judge([answer])["right"]


def from_its_own_forward_pass(x, element=FLOAT16, **changes):
    """What a library returns that rounds P and O in its forward pass, and goes back from that O."""
    f = x.forward
    out = forward.standard_attention(f.q, f.k, f.v, f.causal, f.scale, features=f.features)
    found = oracle.standard_gradients(x.but(out=element.round(out), **changes))
    return {name: element.round(each) for name, each in found._asdict().items()}


@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda element: element.name)
def test_a_peer_may_go_back_from_its_own_output(element, rng):
    """Where few keys are seen, its O is most of what its dQ is off by; a scale off by a hundredth is seen."""
    x = BACKWARD.draw(Shape(2, 4, 256, 64), True, rng, element)
    right = truth(BACKWARD, x, rng)
    judged = right.judge([from_its_own_forward_pass(x, element)], peer=True)
    assert judged["right"] and judged["margin"] > 2, judged["reason"]
    other = x.forward.but(scale=1.01 / np.sqrt(64))
    judged = right.judge([from_its_own_forward_pass(x, element, forward=other)], peer=True)
    assert not judged["right"] and judged["margin"] < 0.5
    ours = oracle.standard_gradients(x)._asdict()
    assert right.judge([ours])["margin"] <= right.judge([ours], peer=True)["margin"]


def test_inputs_hold_what_the_forward_pass_makes(rng):
    q, k, v = (rng.standard_normal((1, 2, 9, 64)).astype(np.float16) for _ in range(3))
    x = backward_inputs(Inputs(q, k, v, causal=True), rng, dlse=True)
    assert x.lse.dtype == np.float32 and x.out.dtype == x.dout.dtype == np.float16
    assert set(x.arrays) == {"q", "k", "v", "out", "lse", "dout", "dlse"} and x.label.endswith("causal dlse")
    problem = x.problem(x.arrays)
    assert problem.flops == 2 * 5 * 64 * 45 * 2 and problem.min_bytes == 8 * q.nbytes + x.lse.nbytes
