"""No barrier, wait or fence stands in a kernel for nothing: without it, a check on the CPU executor fails."""

import re

import numpy as np
import pytest
from matrix import few

from flashcore_numba.checks import Edit, EditError, Mutant, kill_one
from flashcore_numba.checks.deletions import HARMLESS, deletions, one_of_each
from flashcore_numba.checks.mutation import loaded
from flashcore_numba.checks.runner import names
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.wrapping import Idle
from flashcore_numba.stages import LADDER

CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]
DELETED = [mutant for stage in CUDA for mutant in deletions(stage)]
OF_EACH = one_of_each(DELETED)
SPARED = [mutant for stage in CUDA for mutant in deletions(stage, harmless=True)]


TELLING = (
    "ragged 33 rows, 70 keys, two heads, two batches",
    "causal ragged 70 rows, 33 keys",
    "ragged 127",
    "extreme: scores rise and fall",
    "20 rows, 1100 keys",
    "every size of GPU gives the same answer",
)


@pytest.mark.timeout(900)  # one that is seen late runs all checks of a ladder of variants, each compiled
@pytest.mark.parametrize(
    "mutant",
    few(OF_EACH, OF_EACH[0]),
    ids=lambda mutant: mutant.mistake,
)
def test_what_is_left_out_is_reported(mutant):
    """Of each stage one statement of each kind; `flashcore mutants` leaves out all of them in turn."""
    fate = kill_one(mutant, names=TELLING)
    if fate.status == "survived":
        fate = kill_one(mutant)
    assert fate.status == "killed", (
        f"{mutant.mistake} Nothing reports it: leave it out, or say in HARMLESS why it must stay"
    )
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


def test_every_stage_has_the_cases_that_tell_most():
    for stage in CUDA:
        assert set(TELLING) <= set(names(stage))


def test_one_of_each_kind():
    kinds = {(mutant.stage, re.search(r"(\w+)[<(][^`]*`", mutant.mistake)[1]) for mutant in DELETED}
    assert len(one_of_each(DELETED)) == len(kinds) < len(DELETED)


@pytest.mark.long
def test_an_exception_is_needed(rng):
    mutant = SPARED[rng.integers(len(SPARED))]  # another one each time
    assert kill_one(mutant, names=TELLING).status == "survived", f"{mutant.mistake} It is reported"


def test_every_exception_is_used():
    assert len(SPARED) >= sum(file.startswith("stage") for file, _ in HARMLESS) > 0
    assert all(HARMLESS.values())


def test_every_stage_orders_something():
    assert {mutant.stage for mutant in DELETED} == {stage.number for stage in CUDA}


def unedited(stage):
    """The mutant of a stage that only writes the same text again."""
    include = "#include <mma.h>"
    edit = Edit(include, include, f"stage{stage.number:02d}_{stage.name}.cu")
    return Mutant(stage.number, "unedited", "nothing", (edit,), variant=stage.default_variant)


class Paths(Idle):
    """Keeps the files of the kernels that are launched."""

    def launch(self, kernel, *args, **options):
        self.seen = kernel.path


def test_a_mutant_is_compiled_once():
    """Its files have the same names in each process, but no file of what is not to be kept stays."""

    def path_of(keep):
        with loaded(unedited(CUDA[0]), keep) as stage:
            problem = Problem(*(np.zeros((1, 1, 32, 64), np.float16) for _ in range(3)))
            executor = Paths(132)
            stage.run(problem, executor)
            assert executor.seen.exists()
        return executor.seen

    assert path_of(True) == path_of(True) and path_of(True).exists()
    assert path_of(False) != path_of(False) and not path_of(False).exists()


@pytest.mark.long
def test_the_real_source_survives():
    """What kills a mutant is its edit: an unedited copy of a kernel lives."""
    assert kill_one(unedited(CUDA[0]), names=TELLING).status == "survived"


def test_an_edit_of_a_header_reaches_the_kernel():
    header = Edit("#pragma once", "#pragma once\n#error the copy is read", "tile.cuh")
    fate = kill_one(Mutant(CUDA[0].number, "header", "It does not compile.", (header,)))
    assert fate.kind == "error"
    assert "the copy is read" in fate.message


def test_a_kernel_that_is_not_there_is_an_error():
    missing = Mutant(CUDA[0].number, "missing", "", (Edit("x", "y", "no_such_kernel.cu"),))
    with pytest.raises(EditError, match=r"there is no no_such_kernel\.cu"), loaded(missing):
        pass
