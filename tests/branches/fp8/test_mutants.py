"""Wrong versions of the kernels die of what their mistakes explain."""

import pytest
from matrix import few

from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.mutants import MUTANTS, QUANTISED
from flashcore_numba.checks.deletions import HARMLESS, deletions, one_of_each
from flashcore_numba.checks.mutation import kill_one
from flashcore_numba.checks.runner import KINDS

DELETED, SPARED = deletions(STAGE), deletions(STAGE, harmless=True)
TELLING = (
    "ragged 33 rows, 270 keys, two heads, two batches",
    "causal 300 rows, 700 keys, 2 heads on 1",
    "any schedule: the same bits",
    "any size of GPU: the same bits",
)


@pytest.mark.parametrize("mutant", few(MUTANTS, QUANTISED[0]), ids=lambda mutant: mutant.label)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


@pytest.mark.parametrize("mutant", few(one_of_each(DELETED)), ids=lambda mutant: mutant.mistake)
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


def test_there_are_enough():
    assert len(MUTANTS) >= 30 and len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.stage for mutant in MUTANTS} == {STAGE.key}
    assert all(set(mutant.expected) <= set(KINDS) for mutant in MUTANTS)
    assert len(SPARED) == sum(file.startswith("fp8") for file, _ in HARMLESS)
