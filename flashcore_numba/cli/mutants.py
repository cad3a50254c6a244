"""`flashcore mutants`: wrong versions of the stages, each of which must be caught."""

from argparse import Namespace

from flashcore_numba.branches.find import BRANCHES
from flashcore_numba.branches.ring import mutants as ring
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.library import MUTANTS
from flashcore_numba.checks.mutation import kill
from flashcore_numba.checks.render import render_kills
from flashcore_numba.cli.output import console, give_json, parts, progress_bar
from flashcore_numba.cli.selection import runnable
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.report.trust_tables import save_mutants
from flashcore_numba.stages.files import place_of


def run(args: Namespace) -> int:
    """Put the mutants through their checks. Returns 1 where one survives or a stage did not run."""
    if "ring" in args.stages:
        return _mutants_of_the_ring(args)
    stages, not_run = runnable(args)
    if args.save and (args.stages or not_run):
        raise ArgumentError("--save: takes all stages of the ladder, on a machine that can run them")
    every = [*MUTANTS, *(mutant for branch in BRANCHES.values() for mutant in branch.mutants())]
    written = [mutant for stage in stages for mutant in every if mutant.stage == place_of(stage)]
    chosen = [*written, *(mutant for stage in stages for mutant in deletions(stage))]
    with progress_bar() as progress:
        kills = kill(chosen, progress=parts(progress, "mutants"))
    if args.save:
        print(f"Wrote {save_mutants(kills[: len(written)], kills[len(written) :])}")
    if not give_json(args, lambda: [item.as_dict() for item in kills]) and kills:
        render_kills(kills, console())
    return 1 if not_run or any(item.status == "survived" for item in kills) else 0


def _mutants_of_the_ring(args: Namespace) -> int:
    """The ring is no ladder of stages: its mutants go through its own check."""
    if len(args.stages) > 1:
        raise ArgumentError("ring is checked by itself: name no other stage beside it")
    if args.save:
        raise ArgumentError("--save: takes all stages of the ladder, and ring is none")
    with progress_bar() as progress:
        report = parts(progress, "mutants")
        kills = []
        for mutant in ring.MUTANTS:
            kills.append(ring.kill_one(mutant))
            report(len(kills), len(ring.MUTANTS), mutant.label)
    if not give_json(args, lambda: [item.as_dict() for item in kills]):
        render_kills(kills, console())
    return 1 if any(item.status == "survived" for item in kills) else 0
