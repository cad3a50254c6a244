"""Inputs of workloads: features, shapes and element types, and how large ones are drawn and placed."""

import time
from dataclasses import replace

import numpy as np
import pytest

from flashcore_numba.branches.backward import inputs, operation
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import oracle
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import OFF
from flashcore_numba.core.shapes import Shape, parse_any
from flashcore_numba.core.workload import Workload, options
from flashcore_numba.measure import compare
from flashcore_numba.run.executor import Simulator
from flashcore_numba.run.registers import stand_in_for

from . import numpy_stage


def drawn(rng, shape, words, causal, element=FLOAT16):
    workload, *_ = Workload(parse_any(shape), causal, element, **options(words)).drawn_with(5)
    return workload, compare._inputs(BACKWARD, workload, workload.features(rng), rng)


@pytest.mark.parametrize(
    ("shape", "words", "element"),
    [
        ("2x4/2x40x64", "none", FLOAT16),
        ("1x4/2x40x128/64", "none", BFLOAT16),
        ("1x2x70x64", "window=9,2", FLOAT16),
        ("2x2x40x64", "softcap=3 sinks alibi_slopes seqused_k", FLOAT16),
        ("3x4/2x5-40x64", "none", FLOAT16),
        ("3x4/1x5-40x64/32", "window=7,0 sinks", BFLOAT16),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_a_workload_is_drawn_with_its_features(shape, words, element, causal, rng):
    """Output and LSE are those with the features, and a stage that reads them is right by the same truth."""
    workload, x = drawn(rng, shape, words, causal, element)
    f, problem = x.forward, x.problem(x.arrays)
    assert set(f.features.names) == set(workload.arguments)
    out, lse = oracle.attention(f.q, f.k, f.v, causal, features=f.features)
    assert (x.out == element.round(out)).all() and np.array_equal(x.lse, lse.astype(np.float32))
    assert x.dout.dtype == element.dtype and x.dout.shape == x.out.shape
    assert problem.element is element and problem.flops > 0 and x.dlse is None
    stage = numpy_stage.stage()
    judged = truth(BACKWARD, x, rng).judge([stage.run(problem, Simulator())])
    assert judged["right"], judged
    if workload.lengths:
        assert problem.sequence_count == len(workload.lengths)
    wrong = numpy_stage.stage(**numpy_stage.WRONG["D left out"])
    judged = truth(BACKWARD, x, rng).judge([wrong.run(problem, Simulator())])
    assert not judged["right"] and judged["reason"].startswith(("dQ: ", "dK: "))


def test_large_inputs_are_drawn_by_blocks(rng, monkeypatch):
    """Above the limit, from the same random numbers, to float32's rounding of the others."""
    shape, words = "1x2/1x150x64", "window=99,0"
    seed = int(rng.integers(2**31))
    _, exact = drawn(np.random.default_rng(seed), shape, words, True)
    monkeypatch.setattr(inputs, "MOST_PAIRS", 100)
    monkeypatch.setattr(inputs.oracle, "attention", None)
    _, quick = drawn(np.random.default_rng(seed), shape, words, True)
    assert np.array_equal(exact.dout, quick.dout) and np.array_equal(exact.forward.q, quick.forward.q)
    np.testing.assert_allclose(quick.lse, exact.lse, rtol=1e-6, atol=1e-6)
    apart = np.abs(quick.out.astype(np.float64) - exact.out)
    assert (apart <= np.spacing(np.abs(exact.out)) + 2e-6).all(), "a tie may round to the other side"


def test_the_limit_counts_the_pairs_that_the_mask_lets_through(monkeypatch, rng):
    q, k, v = Shape(1, 2, 90, 64).inputs(rng)
    called = []

    def noted(*args, **options):
        called.append("blocks")
        return oracle.attention(*args, **options)

    monkeypatch.setattr(inputs.blockwise, "attention", noted)
    x = operation.Inputs(q, k, v)
    monkeypatch.setattr(inputs, "MOST_PAIRS", 2 * 90 * 90)
    inputs.backward_inputs(x, rng)
    assert not called
    monkeypatch.setattr(inputs, "MOST_PAIRS", 2 * 90 * 90 - 1)
    inputs.backward_inputs(x.but(causal=True), rng)
    assert not called
    inputs.backward_inputs(x, rng)
    assert called == ["blocks"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("causal", [False, True])
def test_the_largest_shape_is_drawn_soon(causal, rng):
    """4x32x4096x64: seconds of one core, whatever else it has to do."""
    begun = time.process_time()
    x = BACKWARD.draw(Shape(4, 32, 4096, 64), causal, rng)
    assert time.process_time() - begun < 60
    at = slice(3, 4), slice(7, 8)
    f = x.forward
    out, lse = oracle.attention(f.q[at], f.k[at], f.v[at], causal)
    np.testing.assert_allclose(x.lse[at], lse, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(x.out[at], out, atol=2e-3)


def test_packed_arrays_lie_token_by_token_and_the_lse_as_it_is(rng, monkeypatch):
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=np.asarray))
    workload, x = drawn(rng, "3x4/2x5-40x64", "seqused_k", True)
    placed = {name: compare._placed(each, True) for name, each in x.arrays.items()}
    for name, each in x.arrays.items():
        assert np.array_equal(placed[name], each)
        if each.ndim == 4:
            assert placed[name][0].swapaxes(0, 1).flags.c_contiguous, name
        else:
            assert placed[name].flags.c_contiguous, name
    assert x.arrays["lse"].shape == (1, 4, sum(workload.lengths))
    x.problem(placed)  # refuses an LSE that is not C-contiguous


def test_a_stand_in_is_a_problem_of_that_shape():
    shape = Shape(2, 4, 50, 128, kv_heads=2, value_dim=64)
    p = BACKWARD.stand_in(shape, True)
    assert (p.batch, p.heads, p.kv_heads, p.seq_q, p.head_dim, p.value_dim) == (2, 4, 2, 50, 128, 64)
    assert p.causal and p.features.names == () and not p.on_gpu
    stage = numpy_stage.stage()
    assert stand_in_for(stage, shape).flops > p.flops
    drawn = stand_in_for(replace(stage, operation=replace(BACKWARD, stand_in=None)), Shape(1, 2, 9, 64))
    assert drawn.shape_label == stand_in_for(stage, Shape(1, 2, 9, 64)).shape_label


def test_the_forward_pass_draws_features_too(rng):
    workload = Workload(parse_any("1x2x9x64"), drawn=("sinks",))
    x = compare._inputs(FORWARD, workload, workload.features(rng), rng)
    assert x.features.names == ("sinks",)
    assert compare._inputs(FORWARD, Workload(parse_any("1x2x9x64")), OFF, rng).features is OFF
