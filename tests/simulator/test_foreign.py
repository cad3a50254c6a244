"""Kernels in the styles of other people: right results without a false report, and their bugs by line."""

import linecache

import numpy as np
import pytest
from matrix import few
from numba import cuda

from flashcore_numba.simulator import Unsupported, simulate

from . import foreign_bugs, foreign_kernels
from .test_bugs import ORDERS, marked


@pytest.mark.parametrize("order", few(ORDERS, "reverse"))
@pytest.mark.parametrize("name", foreign_kernels.CASES)
def test_correct_kernel(name, order, rng):
    case = foreign_kernels.CASES[name]
    kernel, grid, block, args, out, want = case(rng)
    want = np.array(want, copy=True)
    result = simulate(kernel, grid, block, *args, order=order, shared_bytes=getattr(case, "shared_bytes", 0))
    assert result.problems == []
    if getattr(case, "any_order", False):
        out, want = np.sort(out), np.sort(want)
    np.testing.assert_allclose(out.astype(np.float64), want, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("order", few(ORDERS, "reverse"))
@pytest.mark.parametrize("name", foreign_bugs.CASES)
def test_bug_is_named(name, order, rng):
    kernel, grid, block, args, kind = foreign_bugs.CASES[name](rng)
    result = simulate(kernel, grid, block, *args, order=order, max_turns=1000)
    found = {(problem.kind, problem.line, problem.other_line) for problem in result.problems}
    assert (kind, marked(kernel, "first"), marked(kernel, "second")) in found


def test_a_race_of_a_thread_with_itself_is_never_named(rng):
    kernel, grid, block, args, _ = foreign_bugs.CASES["histogram_plain"](rng)
    for problem in simulate(kernel, grid, block, *args).problems:
        writer, reader = problem.text.split("write by ")[1].split(", read by ")
        assert writer != reader.removesuffix(", no barrier between")


def test_arguments_that_share_elements_are_one_memory():
    a = np.arange(256.0).reshape(16, 16)
    result = simulate(foreign_bugs.transpose_in_place, 1, (16, 16), a[:8], a[4:, :8])
    assert {problem.kind for problem in result.problems} == {"out of bounds"}
    packed = np.zeros((64, 2))
    assert simulate(foreign_kernels.alias, 2, 32, packed[:, 0], packed[:, 1]).problems == []


def cell(text: str):
    """The kernel of a notebook cell, whose source only linecache knows."""
    linecache.cache["<cell>"] = (len(text), None, text.splitlines(True), "<cell>")
    scope: dict = {}
    exec(compile(text, "<cell>", "exec"), scope)
    return scope["kernel"]


def test_kernel_of_a_notebook_cell():
    x = np.zeros(40)
    text = "from numba import cuda\n@cuda.jit\ndef kernel(x):\n    x[cuda.grid(1)] = 1\n"
    (problem,) = simulate(cell(text), 2, 32, x).problems
    assert (problem.kind, problem.file, problem.line) == ("out of bounds", "<cell>", 4)


def test_kernel_without_source_is_refused():
    scope: dict = {}
    exec("from numba import cuda\n@cuda.jit\ndef kernel(x):\n    x[0] = 1\n", scope)
    with pytest.raises(Unsupported, match="the source of kernel cannot be read"):
        simulate(scope["kernel"], 1, 1, np.zeros(1))


def test_lambda_is_refused():
    for kernel in (cuda.jit(lambda x: x[0]),):
        with pytest.raises(Unsupported, match=r"test_foreign\.py:\d+: the simulator .* def statement"):
            simulate(kernel, 1, 1, np.zeros(1))
