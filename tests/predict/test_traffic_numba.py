"""Stages 01 to 06: the closed formulas give what the simulator counts, in every field."""

import numpy as np
import pytest
from matrix import few, first_of_each

from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.feature_cases import feature_cases
from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import Traffic, predict
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import runs

RUNS = runs(stage for stage in LADDER if 1 <= stage.number <= 6)
LONGEST = {1: 36, 2: 40}  # else 80: the simulator is slow where every key of a row is a step


def problem(rng, run, seq_q, seq_k, head_dim, causal):
    """Random numbers of heads, grouped where the stage takes it."""
    batch, kv_heads = rng.permutation([1, 2])
    heads = kv_heads * int(rng.integers(1, 3) if run.stage.grouped_queries else 1)
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


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize("run", first_of_each(RUNS, lambda run: run.stage), ids=lambda run: run.label)
def test_formula_is_what_is_counted(run, head_dim, rng):
    """More keys than rows and fewer, with and without the mask, and a single row."""
    few, many = sorted(int(n) for n in rng.integers(2, LONGEST.get(run.stage.number, 80), 2))
    for seq_q, seq_k, causal in ((few, many, True), (many, few, True), (many, few, False), (1, many, False)):
        check(run, problem(rng, run, seq_q, seq_k, head_dim, causal))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
def test_rows_of_scores_shorter_than_a_sector(run, rng):
    """Then several rows share a sector, and heads start in the middle of one."""
    seq_q, seq_k = int(rng.integers(2, 40)), int(rng.integers(1, 8))
    check(run, problem(rng, run, seq_q, seq_k, 64, bool(rng.integers(2))))


@pytest.mark.parametrize(
    "case",
    first_of_each(feature_cases(find(5), normal), lambda case: case.name.partition(":")[0]),
    ids=lambda case: case.name,
)
def test_formula_with_features(case, rng):
    inputs = case.make(rng)
    (run,) = runs([find(5)])
    check(run, inputs.problem(inputs.arrays))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
def test_heads_of_a_recorded_shape_cost_the_same(run):
    """Too long to count; where heads start with a sector, B x H heads are so many times one."""
    rows = np.zeros((4, 32, 1, 64), np.float16)
    many = np.broadcast_to(rows, (4, 32, 4096, 64))
    one = many[:1, :1]
    predicted = predict(run.stage, run.variant, Problem(many, many, many, causal=True), 132)
    assert predicted == 4 * 32 * predict(run.stage, run.variant, Problem(one, one, one, causal=True), 132)
    assert predicted.global_load_sectors * 32 >= 3 * many.size * many.itemsize
