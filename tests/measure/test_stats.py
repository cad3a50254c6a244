import math

import numpy as np
import pytest

from flashcore_numba.measure.stats import of_rounds, ratio_interval, summary


def test_known_data():
    got = summary([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (got["p50"], got["mean"], got["min"], got["max"], got["n"]) == (3.0, 3.0, 1.0, 5.0, 5)
    assert got["p90"] == pytest.approx(4.6)
    assert got["p99"] == pytest.approx(4.96)
    assert got["std"] == pytest.approx(math.sqrt(2.5))


def test_one_sample_has_no_spread():
    got = summary([7.0])
    assert (got["p50"], got["p90"], got["p99"], got["std"]) == (7.0, 7.0, 7.0, 0.0)


def test_agrees_with_numpy(rng):
    samples = rng.exponential(size=int(rng.integers(2, 200))) + 1e-3
    got = summary(samples)
    for field, expected in (
        ("p50", np.percentile(samples, 50)),
        ("p90", np.percentile(samples, 90)),
        ("p99", np.percentile(samples, 99)),
        ("mean", samples.mean()),
        ("std", samples.std(ddof=1)),
    ):
        assert got[field] == pytest.approx(expected, rel=1e-12), field


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_broken_clock_is_refused(bad):
    with pytest.raises(ValueError, match="positive and finite"):
        summary([1.0, bad])


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="samples is empty"):
        summary([])


def test_rounds_give_medians_an_interval_and_outliers():
    rounds = [[10.0, 10.1, 10.2], [10.3, 10.1, 10.2], [10.0, 10.2, 50.0], [10.1] * 3, [10.2] * 3]
    got = of_rounds(rounds)
    assert got["rounds_us"] == [10.1, 10.2, 10.2, 10.1, 10.2]
    assert got["ci"] == {"low": 10.1, "high": 10.2}
    assert (got["n"], got["outliers"], got["max"]) == (15, 1, 50.0)
    assert got == of_rounds(rounds), "the same times give the same interval"


@pytest.mark.long
def test_intervals_hold_the_truth_as_often_as_they_say(rng):
    """Replays of a round share its state: an interval from single replays would be much too narrow."""
    held = ratios = 0
    for _ in range(200):
        a, b = ([list(5 * x + rng.normal(0, 0.001, 3)) for x in 1 + rng.normal(0, 0.02, 20)] for _ in "ab")
        a, b = of_rounds(a), of_rounds(b)
        held += a["ci"]["low"] <= 5 <= a["ci"]["high"]
        both = ratio_interval(a["rounds_us"], b["rounds_us"])
        ratios += both["low"] <= 1 <= both["high"]
    assert held > 165
    assert ratios > 165


def test_twice_the_time_is_a_ratio_of_two(rng):
    rounds = rng.normal(5, 0.01, 20)
    got = ratio_interval(2 * rounds, rounds)
    assert got["low"] < 2 < got["high"]
    assert got["high"] - got["low"] < 0.02
