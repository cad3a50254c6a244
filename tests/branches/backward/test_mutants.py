"""Wrong versions of the backward pass die of what their mistakes explain; no barrier stands for nothing."""

import math

import pytest
from matrix import few, first_of_each

from flashcore_numba import cli
from flashcore_numba.branches.backward.ladder import LADDER
from flashcore_numba.branches.backward.mutants import MUTANTS
from flashcore_numba.branches.backward.properties import same_bits
from flashcore_numba.checks import KINDS, Edit, Mutant, kill_one
from flashcore_numba.checks.deletions import HARMLESS, deletions, one_of_each
from flashcore_numba.checks.mutation import Kill, loaded
from flashcore_numba.checks.trial import Failed, Trial
from flashcore_numba.stages import files
from flashcore_numba.stages.edited import original

CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]
DELETED = [mutant for stage in CUDA for mutant in deletions(stage)]
OF_EACH = one_of_each(DELETED)
SPARED = [mutant for stage in CUDA for mutant in deletions(stage, harmless=True)]
TELLING = (
    "ragged 33 rows, 70 keys, two heads, two batches",
    "causal ragged 70 rows, 33 keys",
    "260 rows, 130 keys",
    "causal 300 rows and keys",
    "causal, 8 query heads on 1",
    "every schedule of warps gives the same gradients",
)


@pytest.mark.parametrize(
    "mutant", first_of_each(MUTANTS, lambda mutant: mutant.stage), ids=lambda mutant: mutant.label
)
def test_it_dies(mutant):
    fate = kill_one(mutant)
    assert fate.status == "killed", f"{mutant.label} survives: {mutant.mistake}"
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


@pytest.mark.parametrize("mutant", few(OF_EACH), ids=lambda mutant: mutant.mistake)
def test_what_is_left_out_is_reported(mutant):
    fate = kill_one(mutant, names=TELLING)
    if fate.status == "survived":
        fate = kill_one(mutant)
    assert fate.status == "killed", (
        f"{mutant.mistake} Nothing reports it: leave it out, or say in HARMLESS why it must stay"
    )
    assert fate.as_expected, f"killed by {fate.kind} in {fate.case}: {fate.message}"


@pytest.mark.long
@pytest.mark.parametrize("mutant", SPARED, ids=lambda mutant: mutant.mistake)
def test_an_exception_is_needed(mutant):
    assert kill_one(mutant, names=TELLING).status == "survived", f"{mutant.mistake} It is reported"


def test_every_exception_is_used():
    assert len(SPARED) >= sum(file.startswith("backward") for file, _ in HARMLESS) > 0


def test_every_stage_has_mutants():
    for stage in LADDER:
        assert sum(mutant.stage == stage.key for mutant in (*MUTANTS, *DELETED)) >= 20
    assert len({mutant.label for mutant in MUTANTS}) == len(MUTANTS)
    assert all(set(mutant.expected) <= set(KINDS) for mutant in MUTANTS)
    assert {mutant.stage for mutant in DELETED} == {stage.key for stage in CUDA}


def test_a_statement_is_left_out_once():
    """Of what stages share, the first that has it is asked."""
    edits = [(edit.file, edit.old) for mutant in DELETED for edit in mutant.edits]
    assert len(set(edits)) == len(edits)
    spine = {path.name for number in range(7, 17) for path in files.kernels_of(number)}
    assert not spine & {file for file, _ in edits}


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.label)
def test_the_files_of_a_stage(stage):
    assert original(stage.key) is stage
    own = [path.name for path in files.kernels_of(stage.key)]
    shared = ["backward_rows.cu"] if stage.name in ("mma_sync", "wgmma") else []
    second = {"mma_sync": ["backward_mma_sync_split.cu"], "one_launch": ["backward_resident.cu"]}
    assert (
        own == ([f"backward_{stage.name}.cu"] if stage in CUDA else []) + second.get(stage.name, []) + shared
    )


@pytest.mark.long
def test_modules_are_copied_together():
    """An unedited copy imports its own modules, whole or names of them, and computes what the stage does."""
    same = Edit("\nSTAGE = ", "\nSTAGE = ")
    mutant = Mutant("backward/recompute", "unedited", "nothing", (same,))
    with loaded(mutant) as copy:
        assert copy.key == "backward/recompute" and copy is not original(copy.key)
        used = copy.launch.__globals__
        package = used["__package__"]
        assert used["by_rows"].__name__ == f"{package}.backward_recompute_rows"
        assert used["delta_kernel"].__module__ == f"{package}.backward_recompute_delta"
    assert kill_one(mutant, names=TELLING[:2]).status == "survived"


@pytest.mark.long
def test_the_real_kernels_survive():
    text = "#pragma once"
    same = Mutant("backward/mma_sync", "unedited", "nothing", (Edit(text, text, "gradient_rows.cuh"),))
    assert kill_one(same, names=TELLING[:2]).status == "survived"


@pytest.mark.parametrize("file", ["backward_rows.cu", "gradient_rows.cuh"])
def test_an_edit_of_what_is_shared_reaches_the_kernel(file):
    begin = '#include "params.cuh"' if file.endswith(".cuh") else '#include "ragged.cuh"'
    broken = Edit(begin, f"{begin}\n#error the copy is read", file)
    fate = kill_one(Mutant("backward/mma_sync", "broken", "It does not compile.", (broken,)))
    assert fate.kind == "error"
    assert "the copy is read" in fate.message


@pytest.mark.long
def test_who_comes_first_shows_in_the_bits(rng):
    """The property of deterministic variants has teeth: atomics fail it, the tiles pass."""
    for variant in ("tiles", "atomics"):
        run = Trial(original("backward/recompute"), variant)
        assert same_bits(run, rng, "a variant that promises something") == math.inf
        if variant == "tiles":
            assert same_bits(run, rng, variant) == math.inf
        else:
            with pytest.raises(Failed, match="other bits"):
                same_bits(run, rng, variant)


@pytest.mark.long
def test_the_command_takes_a_branch(monkeypatch, capsys):
    from flashcore_numba.cli import mutants as command

    def survived(chosen, progress):
        return [Kill(m.stage, m.name, m.mistake, "simulator", "survived") for m in chosen]

    monkeypatch.setattr(command, "kill", survived)
    monkeypatch.setenv("COLUMNS", "300")
    every = [*MUTANTS, *DELETED]
    own = [mutant for mutant in every if mutant.stage == "backward/mma_sync"]
    for name, wanted in (("backward/mma_sync", own), ("backward", every)):
        assert cli.main(["mutants", name]) == 1
        out = capsys.readouterr().out
        assert f"0 of {len(wanted)} mutants killed" in out
        assert "backward/mma_sync" in out
