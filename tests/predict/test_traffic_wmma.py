"""Stages 07 to 11: the closed formulas give what the CPU executor counts, in every field."""

import numpy as np
import pytest
from matrix import first_of_each

from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import runs

RUNS = runs(stage for stage in LADDER if 7 <= stage.number <= 11)
SERVED = [(run, head_dim) for run in RUNS for head_dim in run.stage.head_dims]


def problem(rng, seq_q, seq_k, head_dim, causal):
    """Random numbers of heads, several to one head of K and V."""
    batch, kv_heads = rng.permutation([1, 2])
    heads = kv_heads * int(rng.integers(1, 3))
    shapes = [(batch, heads, seq_q, head_dim)] + 2 * [(batch, kv_heads, seq_k, head_dim)]
    return Problem(*(rng.standard_normal(shape).astype(np.float16) for shape in shapes), causal=causal)


def counted(run, problem):
    executor = Simulator(races=False)
    run.stage.launch(problem, np.empty_like(problem.q), executor, variant=run.variant)
    return sum((Traffic.of_totals(launch.totals()) for launch in executor.launches), Traffic())


def check(run, p):
    assert predict(run.stage, run.variant, p, 132) == counted(run, p), (
        f"{run.label}: q {p.q.shape}, k {p.k.shape}, causal={p.causal}"
    )


@pytest.mark.parametrize(
    ("run", "head_dim"),
    first_of_each(SERVED, lambda run, head_dim: run.stage),
    ids=[f"{run.label} D={head_dim}" for run, head_dim in SERVED],
)
def test_formula_is_what_is_counted(run, head_dim, rng):
    """More keys than rows and fewer, with and without the mask, a single row, tiles with a few rows only; of
    these some for each variant.
    """
    few, many = sorted(int(n) for n in rng.integers(2, 150, 2))
    some = int(rng.integers(1, 5))
    shapes = [
        (few, many, True),
        (many, few, True),
        (many, few, False),
        (1, many, False),
        (some, 64 + some, True),
    ]
    for seq_q, seq_k, causal in shapes if run.is_default else rng.permutation(shapes)[:2]:
        check(run, problem(rng, seq_q, seq_k, head_dim, bool(causal)))
