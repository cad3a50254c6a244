import numpy as np
import pytest

from flashcore_numba.checks import truth
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.features import Features
from flashcore_numba.core.shapes import Shape


@pytest.fixture
def problem(rng):
    return Shape(2, 3, 40, 64).inputs(rng)


def test_a_good_output_is_right_and_its_error_is_measured(problem, rng):
    right = truth.truth(FORWARD, Inputs(*problem, True, 0.125), rng)
    out, _ = oracle.attention(*problem, True, 0.125)
    judged = right.judge([{"out": out.astype(np.float16)}])
    assert judged["right"]
    assert judged["heads_checked"] == judged["heads"] == 6
    assert judged["max"] == np.abs(out.astype(np.float16) - out).max()
    assert 0 < judged["relative"] < 1e-3


@pytest.mark.parametrize("spoil", [lambda x: np.nan, lambda x: x + 0.05, lambda x: np.inf])
def test_one_wrong_element_in_one_of_two_outputs_is_seen(problem, rng, spoil):
    right = truth.truth(FORWARD, Inputs(*problem, False, 0.125), rng)
    good = oracle.attention(*problem, False, 0.125)[0].astype(np.float16)
    bad = good.copy()
    at = tuple(rng.integers(0, n) for n in bad.shape)
    bad[at] = spoil(bad[at])
    judged = right.judge([{"out": good}, {"out": bad}])
    assert not judged["right"]
    assert judged["reason"]
    assert judged["max"] is None or judged["max"] >= 0.04


def test_a_large_problem_is_judged_on_a_random_choice_of_heads(problem, rng, monkeypatch):
    monkeypatch.setattr(truth, "MOST_PAIRS", 2 * 40 * 40)
    out = oracle.attention(*problem, False, 0.125)[0].astype(np.float16)
    chosen = set()
    for _ in range(40):
        right = truth.truth(FORWARD, Inputs(*problem, False, 0.125), rng)
        judged = right.judge([{"out": out}])
        assert judged["right"]
        assert (judged["heads_checked"], judged["heads"]) == (2, 6)
        chosen |= set(zip(*(index.tolist() for index in right.at), strict=True))
    assert len(chosen) == 6


def ragged(rng):
    lengths = [5, 33, 12]
    arrays = Shape(1, 4, sum(lengths), 64, kv_heads=2).inputs(rng)
    bounds = np.cumsum([0, *lengths], dtype=np.int32)
    return arrays, {
        "cu_seqlens_q": bounds,
        "cu_seqlens_k": bounds,
        "seqused_k": np.array([4, 30, 12], np.int32),
    }


def batches(rng):
    return Shape(3, 4, 40, 64, kv_heads=2).inputs(rng), {"seqused_k": np.array([40, 7, 21], np.int32)}


@pytest.mark.long
@pytest.mark.parametrize("make", [ragged, batches])
def test_features_of_the_chosen_heads_and_sequences_are_those_of_the_whole(rng, monkeypatch, make):
    """Each chosen head of a sequence has its own sink, slope, keys, length, prior, weight and gate."""
    arrays, lengths = make(rng)
    slopes = rng.uniform(0, 0.3, (3, 4)).astype(np.float32)
    q = arrays[0]
    prior = {"prior_out": rng.standard_normal(q.shape), "prior_lse": 4 + rng.standard_normal(q.shape[:3])}
    prior = {name: array.astype(np.float32) for name, array in prior.items()}
    after = {"norm_weight": rng.standard_normal((4, 64)), "gate": rng.standard_normal(q.shape)}
    after = {name: array.astype(np.float16) for name, array in after.items()}
    sinks = rng.standard_normal(4).astype(np.float32)
    features = Features((20, 3), 4.0, sinks, slopes, **lengths, **prior, **after, norm_eps=0.1)
    inputs = Inputs(*arrays, True, 0.3, features)
    out, lse = oracle.attention(*arrays, True, 0.3, features=features)
    answer = {"out": out.astype(np.float16), "lse": lse.astype(np.float32)}
    judged = truth.truth(FORWARD, inputs, rng).judge([answer])
    assert judged["right"] and judged["heads_checked"] == judged["heads"] == 12
    assert judged["max"] <= 2**-11 * np.abs(out).max()
    wrong = answer["out"].copy()
    wrong[tuple(rng.integers(0, n) for n in wrong.shape)] += 0.1
    assert not truth.truth(FORWARD, inputs, rng).judge([answer, answer | {"out": wrong}])["right"]

    monkeypatch.setattr(truth, "MOST_PAIRS", 1700)
    chosen = set()
    for _ in range(60):
        right = truth.truth(FORWARD, inputs, rng)
        judged = right.judge([answer])
        assert judged["right"] and judged["heads"] == 12
        assert 1 <= judged["heads_checked"] == len(right.parts) < 12
        chosen |= set(zip(*(index.tolist() for index in right.at), strict=True))
    assert len(chosen) == 12


def test_many_short_sequences_are_judged_on_a_few(rng):
    bounds = np.arange(0, 201, dtype=np.int32)
    arrays = Shape(1, 2, 200, 32).inputs(rng)
    inputs = Inputs(*arrays, features=Features(cu_seqlens_q=bounds, cu_seqlens_k=bounds))
    judged = truth.truth(FORWARD, inputs, rng).judge([{"out": arrays[2]}])  # of one key, its value
    assert judged["right"] and (judged["heads_checked"], judged["heads"]) == (truth.MOST_PARTS, 400)
