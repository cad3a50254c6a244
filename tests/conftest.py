"""Fixtures for every test: fresh random numbers, and no silent skip of a GPU test."""

import os
import secrets

import numpy as np
import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `gpu` that was asked for on a machine without a GPU is an error, never a skip."""
    if item.get_closest_marker("gpu"):
        from flashcore_numba import gpu

        if not gpu.available():
            pytest.fail(f"selected with -m gpu, but {gpu.why_not()}", pytrace=False)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator with a fresh seed; a failure names it, and FLASHCORE_SEED repeats it."""
    seed = int(os.environ.get("FLASHCORE_SEED") or secrets.randbits(32))
    request.node.add_report_section("setup", "seed", f"repeat with FLASHCORE_SEED={seed}")
    return np.random.default_rng(seed)
