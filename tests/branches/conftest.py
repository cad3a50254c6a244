"""What the tests of all branches share: the random cases of a run."""

import secrets
from collections.abc import Iterator

import pytest

from flashcore_numba.checks import runner


@pytest.fixture(scope="package", autouse=True)
def seed_of_the_run() -> Iterator[None]:
    """Checks without a seed draw the same cases, others in each run: stages share what is right for them."""
    seed = secrets.randbits(31)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "fresh_seed", lambda: seed)
        yield
