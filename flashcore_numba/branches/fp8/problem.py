"""The validated input of attention in 8 bits: that of attention, whose products take half the time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Fp8Problem(Problem):
    """As `Problem`; tensor cores multiply e4m3 twice as fast as 16 bits, so `limits` halves their time."""

    tensor_speed: ClassVar[int] = 2


@dataclass(frozen=True)
class Fp8Inputs(Inputs):
    """As `Inputs`, for an `Fp8Problem`."""

    def problem(self, arrays: Mapping[str, Any]) -> Fp8Problem:
        return Fp8Problem(arrays["q"], arrays["k"], arrays["v"], self.causal, self.scale)
