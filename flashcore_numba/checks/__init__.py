"""Is a stage right? Samples, properties and mutants, on a GPU or on the simulator."""

from flashcore_numba.checks.library import MUTANTS
from flashcore_numba.checks.mutation import Kill, Mutant, kill, kill_one
from flashcore_numba.checks.render import render, render_kills
from flashcore_numba.checks.runner import KINDS, CaseResult, CheckReport, check, check_stage
from flashcore_numba.stages.edited import Edit, EditError

__all__ = [
    "KINDS",
    "MUTANTS",
    "CaseResult",
    "CheckReport",
    "Edit",
    "EditError",
    "Kill",
    "Mutant",
    "check",
    "check_stage",
    "kill",
    "kill_one",
    "render",
    "render_kills",
]
