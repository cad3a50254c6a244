"""The validated input of attention in 8 bits: that of attention, whose products take half the time."""

from dataclasses import dataclass
from typing import ClassVar

from flashcore_numba.core.problem import Problem


@dataclass(frozen=True, eq=False)
class Fp8Problem(Problem):
    """As `Problem`; tensor cores multiply e4m3 twice as fast as 16 bits, so `limits` halves their time."""

    tensor_speed: ClassVar[int] = 2
