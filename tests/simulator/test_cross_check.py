"""The simulator against an independent one, against itself under every schedule, and against NumPy."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba.simulator import simulate

from .cases import cases, expected
from .greenlet_oracle import Oracle

CASES = cases()
HEAVY = ("attention", "matmul")
LIGHT = [name for name in CASES if not name.startswith(HEAVY)]
INDEPENDENT = [
    name for name, case in CASES.items() if not (case.wide or case.shared_bytes or "128x64" in name)
]
SCHEDULES = ({"max_lanes": 1}, {"order": "forward"}, {"order": "reverse"}, {"order": "random:3"})


def run(case, **options):
    args = case.copy_args()
    return simulate(
        case.kernel, case.grid, case.block, *args, shared_bytes=case.shared_bytes, **options
    ), args


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    case = CASES[name]
    result, args = run(case)
    assert result.problems == []
    got, want = args[case.result], expected(name, case.args)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", few(INDEPENDENT, *(name for name in INDEPENDENT if name in LIGHT)))
def test_same_as_the_greenlet_oracle(name):
    case = CASES[name]
    result, args = run(case)
    oracle_args = case.copy_args()
    oracle = Oracle(case.kernel, case.grid, case.block, oracle_args)
    totals = result.totals()
    assert oracle.fault is None
    assert oracle.races == set()
    for (space, op), count in oracle.counts.items():
        cost = "sectors" if space == "global" else "wavefronts"
        if op == "atomic":
            cost = "requests"  # the cost of an atomic is no matter of addresses alone
        for what in ("requests", "lanes", cost):
            assert totals[f"{space}_{op}_{what}"] == count[what], (space, op, what)
    counted = {f"{space}_{op}_requests" for space, op in oracle.counts}
    assert {key for key, value in totals.items() if key.endswith("_requests") and value} == counted
    assert totals["barriers"] == oracle.barriers
    assert totals["shuffle"] == oracle.shuffles
    np.testing.assert_allclose(args[case.result], oracle_args[case.result], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", few(CASES, *LIGHT))
def test_same_totals_under_every_schedule_and_grouping(name):
    case = CASES[name]
    reference, args = run(case)
    for options in SCHEDULES if "128x64" not in name else SCHEDULES[2:3]:
        result, again = run(case, **options)
        assert result.totals() == reference.totals(), options
        assert result.problems == []
        np.testing.assert_allclose(again[case.result], args[case.result], rtol=1e-5, atol=1e-5)
