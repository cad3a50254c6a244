"""The right output for the arrays that are counted or timed: of some requests where there are many keys."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs
from flashcore_numba.checks.truth import MOST_PAIRS, Part, Whole
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import Output


class RequestTruth(Whole):
    """The answer to random requests, of `MOST_PAIRS` (row, key) pairs at most, or to a single one."""

    def __init__(self, operation: Operation, inputs: DecodeInputs, rng: np.random.Generator) -> None:
        self.operation = operation
        self.heads, self.requests = inputs.q.shape[1], len(inputs.lengths)
        order = rng.permutation(self.requests)
        pairs = np.cumsum(inputs.lengths[order].astype(np.int64) * inputs.q.shape[2] * self.heads)
        self.chosen = sorted(order[: max(1, int((pairs <= MOST_PAIRS).sum()))].tolist())

        def cut(output: Output, value: np.ndarray) -> np.ndarray:
            return value[self.chosen]

        self.parts = [Part(cut, operation.reference(inputs.only(self.chosen)))]

    def judge(self, answers: Any, peer: bool = False) -> dict[str, Any]:
        heads = {"heads_checked": len(self.chosen) * self.heads, "heads": self.requests * self.heads}
        return super().judge(answers, peer) | heads
