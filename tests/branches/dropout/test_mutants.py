"""Wrong versions of the kernels with dropout die of what their mistakes explain."""

import pytest
from matrix import few

from flashcore_numba.branches.dropout.ladder import BACKWARD, FORWARD
from flashcore_numba.branches.dropout.mutants import BACKWARD as WRONG_BACK
from flashcore_numba.branches.dropout.mutants import FORWARD as WRONG
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.mutation import kill_one
from flashcore_numba.checks.runner import KINDS

EVERY = (*WRONG, *WRONG_BACK)
QUICK = [
    next(m for m in WRONG if m.name == "kept_is_dropped"),
    next(m for m in WRONG_BACK if m.name == "ds_dropped"),
]


@pytest.mark.parametrize("mutant", few(EVERY, *QUICK), ids=lambda mutant: mutant.label)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


def test_there_are_enough():
    for mutants, (stage,) in ((WRONG, FORWARD), (WRONG_BACK, BACKWARD)):
        assert len(mutants) >= 20 and {mutant.stage for mutant in mutants} == {stage.key}
        assert all(set(mutant.expected) <= set(KINDS) for mutant in mutants)
        assert not deletions(stage), "stage 12 and backward/mma_sync have these barriers, and their mutants"
    assert len({mutant.label for mutant in EVERY}) == len(EVERY)
