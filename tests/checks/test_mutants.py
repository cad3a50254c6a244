"""The kill table: every mutant dies, and of what its mistake explains."""

import dataclasses
import io
import json

import pytest
from matrix import first_of_each
from rich.console import Console

from flashcore_numba.checks import KINDS, MUTANTS, Edit, EditError, Mutant, kill, kill_one, render_kills
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.mutation import NOT_VISIBLE, loaded
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find

SAME = Edit("\nSTAGE = ", "\nSTAGE = ")

NUMBA = [stage for stage in LADDER if stage.language == "Numba"]


@pytest.mark.parametrize(
    "mutant",
    first_of_each(MUTANTS, lambda mutant: find(mutant.stage).language),
    ids=lambda mutant: mutant.label,
)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


def test_the_library_is_large_enough():
    for stage in LADDER:
        mutants = [mutant for mutant in MUTANTS if mutant.stage == stage.number] + deletions(stage)
        assert len(mutants) >= 4
    assert len(MUTANTS) >= 24
    assert len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert all(set(mutant.expected) <= set(KINDS) for mutant in MUTANTS)


@pytest.mark.long
def test_the_real_source_survives():
    """What kills a mutant is its edit: an unedited copy of every stage lives."""
    for stage in NUMBA:
        with loaded(Mutant(stage.number, "unedited", "nothing", (SAME,))) as copy:
            assert copy is not stage
            assert (copy.number, copy.name) == (stage.number, stage.name)
    some = ("causal ragged 127", "grouped queries, 4 heads on 2", "a factor moves between q and scale")
    assert kill_one(Mutant(5, "unedited", "nothing", (SAME,)), names=some).status == "survived"


@pytest.mark.parametrize(
    "edit", [Edit("no such text", ""), Edit("float32", "float64"), Edit("x", "y", "no_file")]
)
def test_an_edit_that_does_not_match_once_is_an_error(edit):
    with pytest.raises(EditError, match=r"01 broken.*(occurs (0|[0-9]{2,}) times|no_file)"):
        kill([Mutant(1, "broken", "", (edit,))], backend="simulator", workers=1)


def test_every_edit_that_no_longer_fits_is_named_at_once():
    broken = [Mutant(1, name, "", (Edit("no such text", ""),)) for name in ("first", "second")]
    with pytest.raises(EditError, match=r"01 first(.|\n)*01 second"):
        kill(broken, backend="simulator", workers=1)


def test_an_edit_that_does_not_import_is_an_error():
    with pytest.raises(EditError, match="does not import"):
        kill_one(Mutant(1, "broken", "", (Edit("import math", "import no_such_module"),)))


@pytest.mark.long
def test_a_mutant_that_never_ends_is_reported():
    endless = Mutant(
        3,
        "endless",
        "The offset of the butterfly is never halved.",
        (Edit("value += cuda.shfl_xor_sync(ALL_LANES, value, offset)\n        offset //= 2",
              "value += cuda.shfl_xor_sync(ALL_LANES, value, offset)\n        offset = 16", "common"),),
        ("hang",),
    )  # fmt: skip
    assert kill_one(endless).as_expected


def test_a_race_is_not_claimed_on_a_gpu():
    race = next(mutant for mutant in MUTANTS if mutant.expected == ("race",))
    fate = kill_one(race, backend="gpu")
    assert fate.status == NOT_VISIBLE
    assert not fate.as_expected


@pytest.mark.long
def test_the_kill_table_shows_survivors():
    two = [mutant for mutant in MUTANTS if mutant.stage == 12][:2]
    fates = kill(two, backend="simulator", workers=2)
    json.dumps([fate.as_dict() for fate in fates], allow_nan=False)
    survivor = dataclasses.replace(fates[0], status="survived", kind="", case="")
    out = io.StringIO()
    render_kills([*fates, survivor], Console(file=out, width=200))
    assert "2 of 3 mutants killed" in out.getvalue()
    assert "survived" in out.getvalue()
