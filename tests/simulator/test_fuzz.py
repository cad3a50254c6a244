"""Random divergent kernels: the same in both simulators, equal totals under every schedule.

FLASHCORE_FUZZ=1000 runs that many instead of 60, FLASHCORE_FUZZ_FROM sets the first seed.
"""

import importlib.util
import os

import numpy as np
import pytest

from flashcore_numba.simulator import simulate

from .greenlet_oracle import Oracle
from .random_kernels import source

FIRST = int(os.environ.get("FLASHCORE_FUZZ_FROM", "20261"))
COUNT = int(os.environ.get("FLASHCORE_FUZZ", "60"))
GRID, BLOCK = 2, 48


def load(path, seed):
    path = path / f"random_kernel_{seed}.py"
    path.write_text(source(seed))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_kernel(seed, tmp_path):
    kernel = load(tmp_path, seed)
    x = np.random.default_rng(seed).integers(0, 50, GRID * BLOCK)

    def run(**options):
        y = np.zeros((GRID * BLOCK, 4), np.int64)
        return simulate(kernel, GRID, BLOCK, x, y, **options), y

    result, y = run()
    assert result.problems == []
    expected = np.zeros_like(y)
    oracle = Oracle(kernel, GRID, BLOCK, [x, expected])
    assert oracle.fault is None
    np.testing.assert_array_equal(y, expected)
    totals = result.totals()
    assert totals["barriers"] == oracle.barriers
    for (space, op), count in oracle.counts.items():
        assert totals[f"{space}_{op}_lanes"] == count["lanes"]
        if space == "shared":
            assert totals[f"shared_{op}_requests"] == count["requests"]
            assert totals[f"shared_{op}_wavefronts"] == count["wavefronts"]
    for options in ({"max_lanes": 1}, {"order": "reverse"}, {"order": f"random:{seed}"}):
        again, y = run(**options)
        np.testing.assert_array_equal(y, expected)
        assert again.totals() == totals
