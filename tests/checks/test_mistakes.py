"""Mistakes are recognised by the output they give: each as itself, a right answer and a stranger as none."""

from functools import partial

import numpy as np
import pytest

from flashcore_numba.checks import mistakes
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.trial import Inputs
from flashcore_numba.core import oracle
from flashcore_numba.core.element import FLOAT16

BY_CAUSE = {mistake.cause: mistake for mistake in reversed(list(mistakes.mistakes()))}  # of the least tile


@pytest.fixture
def inputs(rng) -> list[Inputs]:
    """As a check of an answer has them, with the sizes that tell mistakes apart."""
    return [
        normal(rng, 1, 1, 24, 64, 64),
        normal(rng, 1, 1, 24, 70, 64),
        normal(rng, 1, 1, 24, 70, 64, causal=True),
        normal(rng, 1, 1, 70, 43, 64, causal=True),
        normal(rng, 2, 4, 12, 64, 64, kv_heads=2),
        normal(rng, 1, 1, 24, 64, 128),
        normal(rng, 1, 1, 24, 64, 64).but(scale=0.3),
    ]


def right(x: Inputs) -> np.ndarray:
    return oracle.attention(x.q, x.k, x.v, x.causal, x.scale)[0]


def recognised(output, inputs: list[Inputs]) -> str:
    with np.errstate(all="ignore"):
        return mistakes.recognise([(x, FLOAT16.round(output(x))) for x in inputs])


@pytest.mark.parametrize("cause", BY_CAUSE)
def test_a_mistake_is_recognised_as_itself(cause, inputs):
    assert recognised(BY_CAUSE[cause].output, inputs) == cause


def test_a_right_answer_is_no_mistake(inputs):
    assert recognised(right, inputs) == ""


def test_half_a_mistake_is_none(inputs):
    """Right on one input and wrong on another that the mistake changes as well."""
    assert recognised(BY_CAUSE["scale missing"].output, inputs[:2]) == "scale missing"
    runs = [(x, BY_CAUSE["scale missing"].output(x)) for x in inputs[:2]]
    runs[1] = inputs[1], right(inputs[1])
    assert mistakes.recognise(runs) == ""


@pytest.mark.parametrize("factor", [0.95, 1.05, 1.4, 2.0, 3.0])
def test_a_stranger_is_no_mistake(factor, inputs):
    assert recognised(lambda x: right(x.but(scale=factor * (x.scale or x.q.shape[3] ** -0.5))), inputs) == ""
    assert recognised(lambda x: factor * right(x), inputs) == ""


def test_where_two_mistakes_agree_none_is_named(rng):
    """With one head, K of head 0 is the right K; with 64 components, half of them are 32."""
    one = normal(rng, 1, 1, 32, 64, 64)
    same = partial(mistakes._scaled, factor=lambda scale, d: 1 / d)
    assert BY_CAUSE["scale twice"].output(one) == pytest.approx(same(one))
    assert recognised(same, [one]) == ""
