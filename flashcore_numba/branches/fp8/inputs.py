"""Host arrays for attention in 8 bits, for counts and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashcore_numba.branches.fp8.problem import Fp8Problem
from flashcore_numba.checks.trial import Inputs


@dataclass(frozen=True)
class Fp8Inputs(Inputs):
    """As `Inputs`, for an `Fp8Problem`."""

    def problem(self, arrays: Mapping[str, Any]) -> Fp8Problem:
        return Fp8Problem(arrays["q"], arrays["k"], arrays["v"], self.causal, self.scale)
