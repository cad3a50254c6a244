"""The wrong kernels of lesson 05 that the reader must kill: random input cannot, a chosen input does."""

import numpy as np
import pytest

from flashcore_numba.course.judge.killing import kill
from flashcore_numba.course.lessons.lesson05 import LESSON

GIVEN = {given.name: given for given in LESSON.given}


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


def outcome(name, q, k, v, causal):
    return kill(LESSON, GIVEN[name], q, k, v, causal)


def test_every_given_kernel_has_an_input_that_kills_it():
    assert KILLERS.keys() == GIVEN.keys()


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize(("rows", "keys", "causal"), [(64, 64, False), (33, 70, True), (96, 127, False)])
def test_random_input_does_not_kill(name, rng, rows, keys, causal):
    result = outcome(name, *normal(rng, rows, keys), causal)
    assert not result.killed and "It is right" in result.sentences[0], result.sentences


@pytest.mark.parametrize("name", GIVEN)
def test_its_input_kills(name, rng):
    """Killed means also that the real stage is right on the same input."""
    result = outcome(name, *KILLERS[name](rng))
    assert result.killed, result.sentences


@pytest.mark.parametrize("name", GIVEN)
def test_the_input_of_another_kernel_need_not_kill(name, rng):
    """The four mistakes are four: each survives the input of some other."""
    others = [killer for other, killer in KILLERS.items() if other != name]
    assert not all(outcome(name, *killer(rng)).killed for killer in others)


@pytest.mark.parametrize("given", LESSON.given, ids=lambda given: given.name)
def test_the_reader_gets_a_story_and_layers_of_hints(given):
    assert given.story.strip() and len(given.hints) >= 3 and all(given.hints)
