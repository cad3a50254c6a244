"""Is a stage right? Samples, properties and mutants, on a GPU or on the simulator."""

from flashcore_numba.checks.library import MUTANTS
from flashcore_numba.checks.mutation import Edit, Kill, Mutant, MutationError, kill, kill_one
from flashcore_numba.checks.report import render, render_kills
from flashcore_numba.checks.runner import KINDS, CaseResult, CheckReport, check, check_stage

__all__ = [
    "KINDS",
    "MUTANTS",
    "CaseResult",
    "CheckReport",
    "Edit",
    "Kill",
    "Mutant",
    "MutationError",
    "check",
    "check_stage",
    "kill",
    "kill_one",
    "render",
    "render_kills",
]
