"""Stage 00: attention in NumPy, one query row at a time, in float64.

Three loops over the keys make one output row: the scores, their softmax, the weighted sum of the rows of V.
It is no kernel and not on the ladder; it is what every kernel of the ladder computes, written so that it can
be read. Two numbers follow from it: the multiply-adds that nobody can avoid, and the bytes.
"""

import numpy as np

from flashcore_numba.stages.parts.mask import interval
from flashcore_numba.stages.stage import Stage


def three_loops(q, k, v, out, scale, causal):
    """out[:] = softmax(scale * Q K^T) V for one head; q, out: [S_q, D]   k, v: [S_k, D]"""
    for row in range(q.shape[0]):
        _, visible = interval.py_func(row, q.shape[0], k.shape[0], causal)
        # <exercise>
        scores = np.zeros(visible)
        for j in range(visible):
            scores[j] = scale * np.dot(q[row], k[j])

        row_max = scores.max(initial=-np.inf)
        p = np.zeros(visible)
        for j in range(visible):
            p[j] = np.exp(scores[j] - row_max)
        row_sum = p.sum()

        o = np.zeros(q.shape[1])
        for j in range(visible):
            o += p[j] * v[j]
        # A row that sees no key has an empty sum: its output is zero, not 0 / 0.
        out[row] = o / row_sum if visible > 0 else 0
        # </exercise>


def launch(problem, out, executor, lse=None, variant=None):
    p = problem
    for b in range(p.batch):
        for h in range(p.heads):
            q, k, v = (x[b, h].astype(np.float64) for x in (p.q, p.k, p.v))
            three_loops(q, k, v, out[b, h], p.scale, p.causal)


STAGE = Stage(
    number=0,
    name="three_loops",
    title="Attention is three loops",
    idea="One output row is three loops over the keys: scores, softmax, weighted sum.",
    launch=launch,
    language="NumPy",
)
