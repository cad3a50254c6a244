"""The validated input of attention with dropout."""

from dataclasses import dataclass

from flashcore_numba.branches.dropout.dropout import NOTHING, Dropout
from flashcore_numba.core.problem import Problem


@dataclass(frozen=True, eq=False)
class DropoutProblem(Problem):
    """As `Problem`; `dropout` says what of P is dropped."""

    dropout: Dropout = NOTHING
