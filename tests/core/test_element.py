"""The element types: what follows from each is true of its NumPy type, and nobody else names one."""

import ast
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba.core.element import ACCEPTED, FLOAT16, FLOAT32, of

PACKAGE = Path(__file__).resolve().parents[2] / "flashcore_numba"
# Kernels name the type of their memory, and so do figures that show one.
HOMES = {"core/element.py", "course/figures/fragments.py", "course/figures/twin.py"}


@pytest.mark.parametrize("element", [FLOAT16, FLOAT32], ids=lambda each: each.name)
def test_the_figures_are_those_of_the_type(element):
    kind = element.dtype.type
    assert element.name == element.dtype.name and element.size == kind(0).nbytes
    assert element.largest == float(np.finfo(kind).max)
    one = kind(1)
    assert element.unit_roundoff == float(np.nextafter(one, kind(2)) - one) / 2
    assert element.least == float(np.nextafter(kind(0), one)) > 0
    assert element.round(np.array([np.float64(element.largest) * 2]))[0] == np.inf
    assert of(element.dtype) is element


@pytest.mark.parametrize("element", [FLOAT16, FLOAT32], ids=lambda each: each.name)
def test_the_poisons_are_two_nans_that_no_arithmetic_gives(element, rng):
    unsigned = np.dtype(f"u{element.size}")
    bits = np.array([element.unwritten, element.guard], unsigned)
    assert np.isnan(bits.view(element.dtype)).all() and bits[0] != bits[1]
    x = np.concatenate([rng.standard_normal(100), [np.inf, -np.inf, 0]]).astype(element.dtype)
    with np.errstate(all="ignore"):
        made = np.concatenate([x - x[::-1], x / x, 0 * x, np.sqrt(-np.abs(x))])
    assert np.isnan(made).any() and not np.isin(made.view(unsigned), bits).any()


def test_only_float16_is_accepted_so_far():
    assert ACCEPTED == (FLOAT16,)
    with pytest.raises(KeyError):
        of(np.dtype(np.float64))


def test_nobody_else_names_a_type_of_elements():
    found, seen = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith("simulator/"):  # which knows every type of NumPy
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Attribute) and node.attr == "float16"
            named |= isinstance(node, ast.Constant) and node.value in ("float16", 65504, 65504.0)
            if named:
                seen.add(name)
                if name not in HOMES and name != "course/judge/screen_cuda.py":  # advice on a learner's word
                    found.append(f"{name}:{node.lineno}")
    assert not found, "take it from `core.element` or from the problem: " + ", ".join(found)
    assert "core/element.py" in seen, "the scan sees nothing"
