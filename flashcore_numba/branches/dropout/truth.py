"""The right answer to what is counted or timed: of some K/V heads where there are many."""

from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.branches.dropout.inputs import DropoutInputs
from flashcore_numba.checks.truth import MOST_PARTS, Part, Whole, side_by_side, some_heads
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import Output


class HeadTruth(Whole):
    """The answer to random K/V heads, each with all its query heads, an input of its own."""

    def __init__(self, operation: Operation, inputs: Any, rng: np.random.Generator) -> None:
        """inputs: `DropoutInputs`, or `BackwardInputs` of one."""
        self.operation = operation
        f: Any = inputs.forward if isinstance(inputs, BackwardInputs) else inputs
        heads, group = f.k.shape[1], f.q.shape[1] // f.k.shape[1]
        self.heads_total = len(f.q) * heads
        pairs = np.full(len(f.q), group * f.q.shape[2] * f.k.shape[2])
        self.chosen = some_heads(pairs, heads, rng)[:MOST_PARTS]
        self.parts = side_by_side(
            lambda n: _part(operation, inputs, f, divmod(int(n), heads), group), self.chosen
        )

    def judge(self, answers: Any, peer: bool = False) -> dict[str, Any]:
        return super().judge(answers, peer) | {"heads_checked": len(self.chosen), "heads": self.heads_total}


def _part(operation: Operation, x: Any, f: DropoutInputs, at: tuple[int, int], group: int) -> Part:
    batch, head = at
    rows = slice(batch, batch + 1), slice(head * group, (head + 1) * group)
    keys = slice(batch, batch + 1), slice(head, head + 1)
    one: Any = replace(f, q=f.q[rows], k=f.k[keys], v=f.v[keys], first=(batch, head * group))
    if isinstance(x, BackwardInputs):
        dlse = None if x.dlse is None else x.dlse[rows]
        one = BackwardInputs(one, x.out[rows], x.lse[rows], x.dout[rows], dlse)

    def cut(output: Output, value: np.ndarray) -> np.ndarray:
        return value[keys if output.name in ("dk", "dv") else rows]

    return Part(cut, operation.reference(one))
