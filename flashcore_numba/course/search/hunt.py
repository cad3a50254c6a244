"""The two halves of a search for kernels: an operator that proposes, and an evaluator that refuses.

A candidate is stage 04 with other lines in the region that lesson 04 asks for.
"""

import numpy as np

from flashcore_numba.course.search.bench import (
    Candidate,
    allowed,
    draw,
    empty,  # noqa: F401 (an answer may ask for it)
    exact,
    launch,
)


# fmt: off
# <exercise>
def mutate(lines: list[str], rng: np.random.Generator) -> list[str]:
    """Another version of a kernel's lines, one edit away."""
    child, at = list(lines), int(rng.integers(len(lines) - 1))
    edit = rng.integers(3)
    if edit == 0:
        child.insert(at, lines[at])  # a line twice
    elif edit == 1:
        del child[at]
    else:
        child[at], child[at + 1] = lines[at + 1], lines[at]
    return child


def evaluate(candidate: Candidate, rng: np.random.Generator) -> str:
    """Why a candidate is refused, in a sentence; "" where it may live."""
    for heads, rows, keys, causal in (1, 16, 32, False), (1, 16, 38, False), (2, 41, 38, True):
        x = draw(rng, heads, rows, keys, causal)
        out = np.full_like(x.q, np.nan)
        reports = launch(candidate, x, out)
        if reports:
            return reports[0]
        if not (np.abs(out - exact(x)) <= allowed(x)).all():  # a NaN is never <=
            return f"off by more than allowed on {x.label}"
    return ""
# </exercise>
# fmt: on
