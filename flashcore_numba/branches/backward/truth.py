"""The right gradients for the arrays that are counted or timed: of some K/V heads where there are many."""

from dataclasses import replace
from typing import Any

import numpy as np

from flashcore_numba.branches.backward import bounds
from flashcore_numba.branches.backward.inputs import BackwardInputs
from flashcore_numba.checks.truth import MOST_PARTS, Part, Whole, side_by_side, some_heads
from flashcore_numba.core.features import Features, Sequence
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import Output


class HeadTruth(Whole):
    """The answer to random K/V heads of sequences, each with all its query heads, an input of its own."""

    def __init__(self, operation: Operation, inputs: BackwardInputs, rng: np.random.Generator) -> None:
        self.operation = operation
        f = inputs.forward
        sequences = f.features.sequences(f.q, f.k, f.causal)
        heads, group = f.k.shape[1], f.q.shape[1] // f.k.shape[1]
        self.heads_total = len(sequences) * heads
        pairs = np.array([group * each.mask.seq_q * each.mask.seq_k for each in sequences])
        self.chosen = some_heads(pairs, heads, rng)[:MOST_PARTS]
        self.parts = side_by_side(
            lambda n: _part(inputs, sequences[n // heads], int(n % heads), group), self.chosen
        )

    def reference(self, part: Part, peer: bool) -> Any:
        return part.reference.of_peers if peer else part.reference

    def judge(self, answers: Any, peer: bool = False) -> dict[str, Any]:
        return super().judge(answers, peer) | {"heads_checked": len(self.chosen), "heads": self.heads_total}


def _part(x: BackwardInputs, of: Sequence, head: int, group: int) -> Part:
    """One K/V head of one sequence, its keys cut to those that count."""
    f, heads = x.forward, slice(head * group, (head + 1) * group)
    rows = (slice(of.batch, of.batch + 1), heads, of.rows)
    keys = (rows[0], slice(head, head + 1), of.keys)
    given = f.features
    own = Features(
        given.window,
        given.softcap,
        sinks=None if given.sinks is None else given.sinks[heads],
        alibi_slopes=given.slopes(of.number, f.q.shape[1])[heads].astype(np.float32),
    )
    forward = replace(f, q=f.q[rows], k=f.k[keys], v=f.v[keys], features=own)
    dlse = None if x.dlse is None else x.dlse[rows]
    one = BackwardInputs(forward, x.out[rows], x.lse[rows], x.dout[rows], dlse)

    def cut(output: Output, value: np.ndarray) -> np.ndarray:
        return value[rows if output.name == "dq" else keys]

    return Part(cut, bounds.reference(one))
