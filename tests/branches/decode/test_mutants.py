"""Wrong versions of decoding die, each by a kind of failure that its mistake explains."""

import pytest
from matrix import a_third, few

from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.mutants import MUTANTS
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.mutation import kill_one
from flashcore_numba.checks.runner import KINDS

QUICK = ("table_past_the_end", "last_key_lost", "wrong_group", "weights_of_the_merge")
NAMED = {mutant.name: mutant for mutant in MUTANTS if mutant.stage == "decode/chunks"}
DELETED = [mutant for stage in LADDER for mutant in deletions(stage)]


@pytest.mark.parametrize(
    "mutant", a_third(few(MUTANTS, *map(NAMED.get, QUICK))), ids=lambda mutant: mutant.label
)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


def test_every_stage_has_mutants():
    for stage in LADDER:
        assert sum(mutant.stage == stage.key for mutant in (*MUTANTS, *DELETED)) >= 10
    assert len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert all(set(mutant.expected) <= set(KINDS) for mutant in MUTANTS)
