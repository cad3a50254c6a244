"""The right answer for the arrays that are counted or timed, and how far an output is from it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.core.operation import Operation

# (query row, key) pairs: float64 attention of more takes NumPy longer than the timing itself
MOST_PAIRS = 2**27


class Whole:
    """The answer to the whole of an input, for any operation."""

    def __init__(self, operation: Operation, inputs: Any) -> None:
        self.operation, self.reference = operation, operation.reference(inputs)

    def judge(self, answers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """Errors over all answers, each with the outputs by name: max, mean, relative |out - ref| / |ref|,
        verdict.

        An error that is not finite (a NaN, an element never written) is given as None, and never passes.
        """
        errors, relative, verdicts = [], [], []
        for answer in answers:
            for output in self.operation.outputs:
                if output.name not in answer:
                    continue
                expected = self.operation.expected(output, self.reference)
                value = np.asarray(self._part(answer[output.name]), np.float64)
                with np.errstate(invalid="ignore"):
                    error = np.where(value == expected, 0, np.abs(value - expected))
                errors.append(error.ravel())
                relative.append(np.linalg.norm(error) / np.linalg.norm(expected[np.isfinite(expected)]))
                verdicts.append(self.operation.judge(output, value, self.reference, None))
        every = np.concatenate(errors)
        worst = min(verdicts, key=lambda verdict: verdict.margin)
        figures = {
            "max": every.max(),
            "mean": every.mean(),
            "relative": max(relative),
            "margin": worst.margin,
        }
        return {
            **{name: float(value) if np.isfinite(value) else None for name, value in figures.items()},
            "right": all(verdict.passed for verdict in verdicts),
            "reason": worst.reason,
        }

    def _part(self, value: np.ndarray) -> np.ndarray:
        """What of an output is judged."""
        return value


def truth(operation: Operation, inputs: Any, rng: np.random.Generator) -> Whole:
    """The answer to `inputs`, or to a part of it that `rng` chooses where the operation takes a part."""
    return operation.truth(inputs, rng) if operation.truth else Whole(operation, inputs)


class Truth(Whole):
    """The answer to all heads of an attention problem, or to a random choice of them when there are too many.

    inputs: with q [B, H, S_q, D] and k and v [B, H_kv, S_k, D] among its fields, NumPy arrays.
    """

    def __init__(self, operation: Operation, inputs: Any, rng: np.random.Generator) -> None:
        batch, heads, seq_q, _ = inputs.q.shape
        kv_heads, seq_k = inputs.k.shape[1:3]
        most = max(1, MOST_PAIRS // (seq_q * seq_k))
        self.heads_total = batch * heads
        chosen = np.sort(rng.permutation(self.heads_total)[:most])
        self.at = chosen // heads, chosen % heads
        kv_at = self.at[0], self.at[1] // (heads // kv_heads)
        k, v = (x[kv_at][:, None] for x in (inputs.k, inputs.v))
        super().__init__(operation, replace(inputs, q=self._part(inputs.q), k=k, v=v))

    def judge(self, answers: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        return super().judge(answers) | {"heads_checked": len(self.at[0]), "heads": self.heads_total}

    def _part(self, value: np.ndarray) -> np.ndarray:
        return value[self.at][:, None]
