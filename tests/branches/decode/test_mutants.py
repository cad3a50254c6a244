"""Wrong versions of decoding die, each by a kind of failure that its mistake explains."""

import pytest
from matrix import few

from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.mutants import MUTANTS
from flashcore_numba.checks.deletions import HARMLESS, deletions
from flashcore_numba.checks.mutation import kill_one
from flashcore_numba.checks.runner import KINDS

CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]
DELETED = [mutant for stage in CUDA for mutant in deletions(stage)]
SPARED = [mutant for stage in CUDA for mutant in deletions(stage, harmless=True)]
TELLING = (
    "lengths around pages of 16",
    "100 times as many keys",
    "8 query heads on 1, 5 tokens: 40 rows",
    "8 query heads on 1, 8 tokens: 64 rows, 5000 keys",
    "any schedule: the same bits",
)
QUICK = ("table_past_the_end", "last_key_lost", "wrong_group", "weights_of_the_merge")
NAMED = {mutant.name: mutant for mutant in MUTANTS if mutant.stage == "decode/chunks"}


@pytest.mark.parametrize("mutant", few(MUTANTS, *map(NAMED.get, QUICK)), ids=lambda mutant: mutant.label)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


@pytest.mark.parametrize("mutant", few(DELETED, DELETED[0]), ids=lambda mutant: mutant.mistake)
def test_what_is_left_out_is_reported(mutant):
    fate = kill_one(mutant, names=TELLING)
    assert fate.status == "killed", (
        f"{mutant.mistake} Nothing reports it: leave it out, or say in HARMLESS why it must stay"
    )
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


@pytest.mark.long
@pytest.mark.parametrize("mutant", SPARED, ids=lambda mutant: mutant.mistake)
def test_an_exception_is_needed(mutant):
    assert kill_one(mutant, names=TELLING[:1]).status == "survived", f"{mutant.mistake} It is reported"


def test_every_exception_is_used():
    assert len(SPARED) >= sum(file.startswith("decode") for file, _ in HARMLESS) > 0


def test_every_stage_has_mutants():
    for stage in LADDER:
        assert sum(mutant.stage == stage.key for mutant in (*MUTANTS, *DELETED)) >= 10
    assert len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert all(set(mutant.expected) <= set(KINDS) for mutant in MUTANTS)
