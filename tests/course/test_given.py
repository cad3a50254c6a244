"""The wrong kernels of lesson 05 that the reader must kill: random input cannot, a chosen input does."""

import numpy as np
import pytest

from flashcore_numba.checks.bounds import judge, reference
from flashcore_numba.checks.mutation import Mutant, loaded
from flashcore_numba.course.lessons.lesson05 import LESSON
from flashcore_numba.executor import Simulator
from flashcore_numba.problem import Problem
from flashcore_numba.stages import LADDER

GIVEN = {given.name: given for given in LESSON.given}
STAGE = LADDER[LESSON.exercise.stage - 1]


def half(x):
    return np.asarray(x).astype(np.float16)


def normal(rng, rows, keys):
    """q [1, 1, rows, 64], k and v [1, 1, keys, 64]: standard normal."""
    return tuple(half(rng.standard_normal((1, 1, n, 64))) for n in (rows, keys, keys))


def very_negative(rng):
    q, k, v = normal(rng, 32, 64)
    return half(np.abs(q) + 5), half(-np.abs(k) - 5), v, False


def one_large_score(rng):
    q, k, v = normal(rng, 32, 64)
    k[0, 0, rng.integers(64)] = 4 * q[0, 0, rng.integers(32)]
    return q, k, v, False


def large_hidden_score(rng):
    q, k, v = normal(rng, 48, 48)
    q[...], k[0, 0, -1] = np.abs(q) + 1, 20
    return q, k, v, True


def rows_without_keys(rng):
    return *normal(rng, 48, 32), True


KILLERS = {
    "max_from_tiny": very_negative,
    "half_weights": one_large_score,
    "mask_after_max": large_hidden_score,
    "blind_rows": rows_without_keys,
}


def right(stage, q, k, v, causal):
    problem = Problem(q, k, v, causal=causal)
    out = np.full(q.shape, np.nan, np.float16)
    stage.launch(problem, out, Simulator())
    return judge(out, reference(q, k, v, causal)).passed


@pytest.fixture(params=GIVEN, scope="module")
def given(request):
    with loaded(Mutant(LESSON.exercise.stage, request.param, "", GIVEN[request.param].edits)) as stage:
        yield request.param, stage


def test_every_given_kernel_has_an_input_that_kills_it():
    assert KILLERS.keys() == GIVEN.keys()


@pytest.mark.parametrize(("rows", "keys"), [(64, 64), (33, 70), (96, 127)])
@pytest.mark.parametrize("causal", [False, True])
def test_random_input_does_not_kill(given, rng, rows, keys, causal):
    _, stage = given
    assert right(stage, *normal(rng, rows, keys), causal)


def test_its_input_kills_and_the_stage_survives(given, rng):
    name, stage = given
    chosen = KILLERS[name](rng)
    assert not right(stage, *chosen)
    assert right(STAGE, *chosen)


@pytest.mark.parametrize("name", GIVEN)
def test_the_input_of_another_kernel_need_not_kill(name, rng):
    """The four mistakes are four: each survives the input of some other."""
    with loaded(Mutant(LESSON.exercise.stage, name, "", GIVEN[name].edits)) as stage:
        assert any(right(stage, *killer(rng)) for other, killer in KILLERS.items() if other != name)


@pytest.mark.parametrize("given", LESSON.given, ids=lambda given: given.name)
def test_the_reader_gets_a_story_and_layers_of_hints(given):
    assert given.story.strip() and len(given.hints) >= 3 and all(given.hints)
