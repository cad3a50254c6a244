"""Random kernels: the simulator in every order, two other simulators and the planted faults agree.

Each run draws fresh seeds; a failure names them. `make test-all` goes on for a minute. `fuzz.py` runs
thousands, on a GPU too.
"""

import time

import pytest

from .fuzz import check_all, faults
from .random_kernels import kernel, mutants

LONG = 60  # seconds


def seeds(rng, count: int) -> range:
    first = int(rng.integers(2**31))
    return range(first, first + count)


@pytest.mark.parametrize("turn", range(3))
def test_random_kernels(rng, turn):
    assert faults(check_all(seeds(rng, 4))) == []


@pytest.mark.long
@pytest.mark.timeout(10 * LONG)
@pytest.mark.parametrize("turn", range(2))
def test_many_random_kernels(rng, turn):
    until, checked = time.monotonic() + LONG, 0
    while time.monotonic() < until:
        verdicts = check_all(seeds(rng, 20))
        assert faults(verdicts) == []
        checked += len(verdicts["simulator"])
    assert checked


def test_a_seed_is_one_kernel(rng):
    seed = int(rng.integers(2**31))
    one, two = kernel(seed), kernel(seed)
    assert one == two
    assert one.source != kernel(seed + 1).source
    assert [mutant.change for mutant in mutants(one)] == [mutant.change for mutant in mutants(two)]
