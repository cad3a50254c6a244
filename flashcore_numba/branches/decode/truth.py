"""The right output for the arrays that are counted or timed: of some heads where there are many keys."""

from typing import Any

import numpy as np

from flashcore_numba.branches.decode.inputs import DecodeInputs
from flashcore_numba.checks import bounds
from flashcore_numba.checks.truth import Part, Whole
from flashcore_numba.core.element import of
from flashcore_numba.core.features import OFF
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import Output

MOST_KEYS = 2**20  # that NumPy turns into float64, in a few seconds
MOST_ROUNDINGS = 8  # of the element type: the relative error of an output, by their norms
MOST_PARTS = 256  # heads of requests with few keys: each is judged by itself


class RequestTruth(Whole):
    """The answer to random K/V heads of random requests, with all query heads that share one: of `MOST_KEYS`
    keys at most, or of a single one.

    The bound of an element allows for a sum of all keys in any order, and an output is an average that
    becomes smaller with every key: of 100,000 keys zeros would be within it. So the error of all outputs
    together has a bound of its own, which random roundings keep.
    """

    def __init__(self, operation: Operation, inputs: DecodeInputs, rng: np.random.Generator) -> None:
        self.operation, self.most = operation, MOST_ROUNDINGS * of(inputs.q.dtype).unit_roundoff
        kv_heads, heads = inputs.k_pool.shape[2], inputs.q.shape[1]
        self.group, self.heads = heads // kv_heads, heads * len(inputs.lengths)
        given = inputs.features
        # Then rows of one head stand for the query heads, and its keys are turned into float64 only once.
        self.as_rows = inputs.q.shape[2] == 1 and given.sinks is None and given.window == OFF.window
        order = rng.permutation(len(inputs.lengths) * kv_heads)
        times = 1 if self.as_rows else self.group
        keys = np.cumsum(inputs.lengths[order // kv_heads].astype(np.int64) * times)
        count = min(MOST_PARTS, max(1, int((keys <= MOST_KEYS).sum())))
        self.chosen = [divmod(int(n), kv_heads) for n in np.sort(order[:count])]
        # In turn: NumPy's own threads and ours would wait for each other.
        self.parts = [self._part(inputs, *each) for each in self.chosen]

    def _part(self, inputs: DecodeInputs, number: int, kv_head: int) -> Part:
        heads = slice(kv_head * self.group, (kv_head + 1) * self.group)

        def cut(output: Output, value: np.ndarray) -> np.ndarray:
            own = value[number : number + 1, heads]
            return own.swapaxes(1, 2) if self.as_rows else own

        x = inputs.head(number, kv_head)
        q, causal = (x.q.swapaxes(1, 2), False) if self.as_rows else (x.q, x.causal)
        return Part(cut, bounds.reference(q, x.k, x.v, causal, x.scale, x.features))

    def judge(self, answers: Any, peer: bool = False) -> dict[str, Any]:
        heads = {"heads_checked": len(self.chosen) * self.group, "heads": self.heads}
        found = super().judge(answers, peer) | heads
        if found["right"] and found["relative"] > self.most:
            reason = f"the relative error is {found['relative']:.3g}: at most {self.most:.3g} is accepted"
            return found | {"right": False, "reason": reason}
        return found
