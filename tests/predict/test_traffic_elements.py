"""A type of elements of the same size moves the same: the formulas name no type."""

import pytest
from matrix import few
from small_weights import counted, problem

from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.predict import predict
from flashcore_numba.stages import LADDER

CELLS = [(stage, element) for stage in LADDER for element in stage.elements if element is not FLOAT16]


@pytest.mark.parametrize(
    ("stage", "element"), few(CELLS, CELLS[-1]), ids=lambda each: getattr(each, "label", each.name)
)
def test_formula_is_what_is_counted(stage, element, rng):
    halves = problem(rng, 1, 2, int(rng.integers(1, 150)), int(rng.integers(1, 300)), 64, True)
    p = Problem(*map(element.round, (halves.q, halves.k, halves.v)), causal=True)
    assert p.element is element and p.min_bytes == halves.min_bytes
    found = counted(stage, None, p, 132)
    assert found == predict(stage, None, p, 132) == counted(stage, None, halves, 132)


def test_there_is_such_a_type():
    assert {stage.number for stage, _ in CELLS} >= {12, 13, 15, 16}
