"""The right answer for the arrays that are counted or timed, and how far an output is from it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flashcore_numba.core import features
from flashcore_numba.core.operation import Operation
from flashcore_numba.core.output import Output

# (query row, key) pairs: float64 attention of more takes NumPy longer than the timing itself
MOST_PAIRS = 2**27
MOST_PARTS = 64  # heads of sequences that are short: each is judged by itself


class Part(NamedTuple):
    """Some of an input, and the answer to it; `of` cuts out of an output what belongs to it."""

    of: Callable[[Output, np.ndarray], np.ndarray]
    reference: Any


class Whole:
    """The answer to the whole of an input, for any operation."""

    def __init__(self, operation: Operation, inputs: Any) -> None:
        self.operation = operation
        self.parts = [Part(lambda output, value: value, operation.reference(inputs))]

    def reference(self, part: Part, peer: bool) -> Any:
        """What an answer to a part is judged by."""
        return part.reference

    def judge(self, answers: Sequence[Mapping[str, np.ndarray]], peer: bool = False) -> dict[str, Any]:
        """Errors over all answers, each with the outputs by name: max, mean, relative |out - ref| / |ref|,
        verdict.

        peer: the answers are another library's, which may lose what it does beside the operation.
        An error that is not finite (a NaN, an element never written) is given as None. It passes only where
        the right answer is beyond the type, and an infinity stands for it.
        """
        errors, relative, verdicts = [], [], []
        for answer in answers:
            for output in self.operation.outputs:
                if output.name not in answer:
                    continue
                right, wrong = [], []
                for part in self.parts:
                    reference = self.reference(part, peer)
                    expected = self.operation.expected(output, reference)
                    value = np.asarray(part.of(output, answer[output.name]), np.float64)
                    with np.errstate(invalid="ignore"):
                        error = np.where(value == expected, 0, np.abs(value - expected))
                    right.append(expected[np.isfinite(expected)])
                    wrong.append(error.ravel())
                    verdict = self.operation.judge(output, value, reference, None)
                    if verdict.reason and len(answer) > 1:
                        verdict = replace(verdict, reason=f"{output.symbol}: {verdict.reason}")
                    verdicts.append(verdict)
                errors += wrong
                relative.append(np.linalg.norm(np.concatenate(wrong)) / np.linalg.norm(np.concatenate(right)))
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


def truth(operation: Operation, inputs: Any, rng: np.random.Generator) -> Whole:
    """The answer to `inputs`, or to a part of it that `rng` chooses where the operation takes a part."""
    return operation.truth(inputs, rng) if operation.truth else Whole(operation, inputs)


def some_heads(pairs: np.ndarray, heads: int, rng: np.random.Generator) -> np.ndarray:
    """Heads of sequences, numbered together, in random order: of `MOST_PAIRS` pairs at most, or a single one.

    pairs: [sequences], of one head of each.
    """
    order = rng.permutation(len(pairs) * heads)
    return order[: max(1, int((np.cumsum(pairs[order // heads]) <= MOST_PAIRS).sum()))]


def side_by_side(answer: Callable[[Any], Part], numbers: Iterable[Any]) -> list[Part]:
    """`answer` for each number, in threads: NumPy works without Python's lock."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(answer, numbers))


class Truth(Whole):
    """The answer to all heads of an attention problem, or to a random choice of them when there are too many.

    inputs: with q [B, H, S_q, D] and k and v [B, H_kv, S_k, D] among its fields, NumPy arrays. Features that
    are arrays differ from head to head or from sequence to sequence: each chosen head of a sequence is an
    input of its own then.
    """

    def __init__(self, operation: Operation, inputs: Any, rng: np.random.Generator) -> None:
        self.operation = operation
        sequences = inputs.features.sequences(inputs.q, inputs.k, inputs.causal)
        heads = inputs.q.shape[1]
        self.heads_total = len(sequences) * heads
        pairs = np.array([each.mask.seq_q * each.mask.seq_k for each in sequences])
        chosen = some_heads(pairs, heads, rng)
        if inputs.features.arrays:
            chosen = chosen[:MOST_PARTS]
            self.at = chosen // heads, chosen % heads
            self.parts = side_by_side(
                lambda n: self._one(inputs, sequences[n // heads], int(n % heads)), chosen
            )
            return
        chosen = np.sort(chosen)
        self.at = chosen // heads, chosen % heads
        kv_at = self.at[0], self.at[1] // (heads // inputs.k.shape[1])
        q, k, v = (x[at][:, None] for x, at in ((inputs.q, self.at), (inputs.k, kv_at), (inputs.v, kv_at)))
        some = replace(inputs, q=q, k=k, v=v)
        self.parts = [Part(lambda output, value: value[self.at][:, None], operation.reference(some))]

    def judge(self, answers: Sequence[Mapping[str, np.ndarray]], peer: bool = False) -> dict[str, Any]:
        return super().judge(answers, peer) | {"heads_checked": len(self.at[0]), "heads": self.heads_total}

    def _one(self, inputs: Any, of: features.Sequence, head: int) -> Part:
        """One head of one sequence, its keys cut to those that count."""
        kv_head = head // (inputs.q.shape[1] // inputs.k.shape[1])
        at, kv_at = (of.batch, head, of.rows), (of.batch, kv_head, of.keys)
        q, k, v = (
            x[place][None, None] for x, place in ((inputs.q, at), (inputs.k, kv_at), (inputs.v, kv_at))
        )
        given, weight = inputs.features, inputs.features.norm_weight
        own = features.Features(
            given.window,
            given.softcap,
            sinks=None if given.sinks is None else given.sinks[head : head + 1],
            alibi_slopes=given.slopes(of.number, inputs.q.shape[1])[head : head + 1],
            float32_out=given.float32_out,
            **{name: array[at][None, None] for name, array in given.prior.items()},
            norm_weight=given.norm_weight if weight is None or weight.ndim == 1 else weight[head],
            norm_eps=given.norm_eps,
            gate=None if given.gate is None else given.gate[at][None, None],
        )
        reference = self.operation.reference(replace(inputs, q=q, k=k, v=v, features=own))
        return Part(lambda output, value: value[at][None, None], reference)
