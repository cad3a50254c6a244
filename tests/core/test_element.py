"""The element types: what follows from each is true of its NumPy type, and nobody else names one."""

import ast
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from flashcore_numba.core.element import ACCEPTED, BFLOAT16, E4M3, FLOAT16, FLOAT32, accepted, of

PACKAGE = Path(__file__).resolve().parents[2] / "flashcore_numba"
# Kernels name the type of their memory, and so do figures that show one.
HOMES = {"core/element.py", "wide.py", "course/figures/fragments.py", "course/figures/twin.py"}


EACH = pytest.mark.parametrize("element", [FLOAT16, BFLOAT16, FLOAT32], ids=lambda each: each.name)


@EACH
def test_the_figures_are_those_of_the_type(element):
    kind = element.dtype.type
    assert element.name == element.dtype.name and element.size == element.dtype.itemsize
    assert element.largest == float(ml_dtypes.finfo(kind).max)
    one = kind(1)
    assert element.unit_roundoff == float(np.nextafter(one, kind(2)) - one) / 2
    assert element.least == float(np.nextafter(kind(0), one)) > 0
    assert element.round(np.array([np.float64(element.largest) * 2]))[0] == np.inf
    assert of(element.dtype) is element


@EACH
def test_the_poisons_are_two_nans_that_no_arithmetic_gives(element, rng):
    unsigned = np.dtype(f"u{element.size}")
    bits = np.array([element.unwritten, element.guard], unsigned)
    assert np.isnan(bits.view(element.dtype)).all() and bits[0] != bits[1]
    x = np.concatenate([rng.standard_normal(100), [np.inf, -np.inf, 0]]).astype(element.dtype)
    with np.errstate(all="ignore"):
        made = np.concatenate([x - x[::-1], x / x, 0 * x, np.sqrt(-np.abs(x))])
    assert np.isnan(made).any() and not np.isin(made.view(unsigned), bits).any()


def test_the_figures_of_e4m3():
    """It has no infinity, and no NaN beside its two."""
    every = np.arange(256, dtype=np.uint8).view(E4M3.dtype).astype(np.float64)
    sizes = np.unique(np.abs(every[np.isfinite(every)]))
    assert (E4M3.least, E4M3.largest) == (sizes[1], sizes[-1]) and E4M3.size == E4M3.dtype.itemsize == 1
    assert E4M3.unit_roundoff == (sizes[sizes > 1][0] - 1) / 2 and of(E4M3.dtype) is E4M3
    assert np.flatnonzero(np.isnan(every)).tolist() == [E4M3.unwritten, E4M3.guard]
    assert E4M3.round(np.array([464.0]))[()] == 448 and np.isnan(E4M3.round(np.array([465.0, np.inf]))).all()


def test_what_is_accepted():
    assert ACCEPTED == (FLOAT16, BFLOAT16)
    assert accepted(np.dtype(np.float16)) and accepted(np.dtype(ml_dtypes.bfloat16))
    for other in (np.float32, np.float64, ">f2", "V2", ml_dtypes.float8_e4m3fn, [("float16", "f2")]):
        assert not accepted(np.dtype(other))
    with pytest.raises(KeyError):
        of(np.dtype(np.float64))


def test_bfloat16_is_imported_when_it_is_asked_for():
    asked = "import sys, flashcore_numba, flashcore_numba.core.problem as p, numpy as np; "
    asked += "x = np.zeros((1, 1, 8, 64), 'f2'); p.Problem(x, x, x); sys.exit('ml_dtypes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], timeout=60).returncode == 0


@pytest.mark.long
def test_nobody_else_names_a_type_of_elements():
    found, seen = [], set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith("simulator/"):  # which knows every type of NumPy
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Attribute) and node.attr in ("float16", "bfloat16")
            named |= isinstance(node, ast.Constant) and node.value in ("float16", "bfloat16", 65504, 65504.0)
            if named:
                seen.add(name)
                if name not in HOMES and name != "course/judge/screen_cuda.py":  # advice on a learner's word
                    found.append(f"{name}:{node.lineno}")
    assert not found, "take it from `core.element` or from the problem: " + ", ".join(found)
    assert "core/element.py" in seen, "the scan sees nothing"
