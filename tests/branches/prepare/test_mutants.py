"""Wrong versions of the kernel die of what their mistakes explain."""

import pytest
from matrix import few

from flashcore_numba.branches.find import BRANCHES, select
from flashcore_numba.branches.prepare.mutants import MUTANTS, NORM, PAGES, ROPE
from flashcore_numba.branches.prepare.prepare_pages import STAGE
from flashcore_numba.checks import kill_one
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.stages.edited import original


@pytest.mark.parametrize("mutant", few(MUTANTS, NORM[0], ROPE[0], PAGES[2]), ids=lambda mutant: mutant.label)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


def test_there_are_enough():
    assert len(MUTANTS) >= 20 and len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.stage for mutant in MUTANTS} == {STAGE.key}
    assert not deletions(STAGE)  # no barrier, wait or fence
    assert original(STAGE.key) is STAGE and list(BRANCHES["prepare"].mutants()) == list(MUTANTS)
    assert select("prepare") == [STAGE]
