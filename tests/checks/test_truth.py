import numpy as np
import pytest

from flashcore_numba.checks import truth
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
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
