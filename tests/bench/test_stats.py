import math

import numpy as np
import pytest

from flashcore_numba.bench.stats import summary


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
