"""Is a stage right? Samples, properties and mutants, on a GPU or on the simulator."""

from .library import MUTANTS
from .mutation import Edit, Kill, Mutant, MutationError, kill, kill_one
from .report import render, render_kills
from .runner import KINDS, CaseResult, CheckReport, check, check_stage

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
