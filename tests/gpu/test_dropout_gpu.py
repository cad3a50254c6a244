"""Attention with dropout on a GPU: every case, the mask of NumPy, calls, and the same bits in every run."""

import numpy as np
import pytest
from branches.dropout.running import seen_by_a_call
from test_attention_gpu import make_cupy, make_torch, to_host

from flashcore_numba import attention, attention_backward, attention_dropout, attention_dropout_backward
from flashcore_numba import dropout_mask as right_mask
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.branches.dropout import oracle
from flashcore_numba.branches.dropout.dropout_backward_mma_sync import STAGE as BACKWARD
from flashcore_numba.branches.dropout.dropout_mma_sync import STAGE
from flashcore_numba.branches.dropout.inputs import drawn, with_dropout
from flashcore_numba.branches.dropout.operation import DROPOUT, DROPOUT_BACKWARD
from flashcore_numba.branches.dropout.properties import options
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.cases import normal
from flashcore_numba.core import gpu
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.stages.runs import runs

HERE = gpu.compute_capability() or (9, 0)
RUNS = runs([STAGE, BACKWARD])
MAKE = {"cupy": make_cupy, "torch": make_torch}
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not STAGE.runs_on(HERE), reason=str(STAGE.why_not_on(HERE))),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
def test_every_case(run):
    report = check_stage(run.stage, run.variant, backend="gpu")
    assert report.passed, report.failures[0]


@pytest.mark.parametrize("shape", [(2, 3, 700, 520), (3, 40, 129, 65)], ids=str)
def test_the_mask_is_that_of_numpy(shape, rng):
    dropout = drawn(rng, 0.4)
    found = seen_by_a_call(shape, dropout, make_cupy, to_host)
    assert np.array_equal(found, right_mask(shape, **options(dropout)))


@pytest.mark.parametrize("kind", MAKE)
def test_calls(kind, rng):
    """Forward and backward, on a large problem, twice: all but dQ has the same bits again."""
    x = with_dropout(normal(rng, 2, 8, 1500, 1400, 64, 2, causal=True), drawn(rng, 0.2))
    q, k, v = (MAKE[kind](getattr(x, name)) for name in "qkv")
    how = options(x.dropout) | {"causal": True}
    out, lse = attention_dropout(q, k, v, **how)
    reference = DROPOUT.reference(x)
    for output, value in ((OUT, out), (LSE, lse)):
        verdict = DROPOUT.judge(output, to_host(value), reference, None)
        assert verdict.passed, verdict.reason
    given = oracle.backward_inputs(x, rng)
    arrays = [MAKE[kind](a) for a in (given.dout, given.forward.q, given.forward.k, given.forward.v)]
    arrays += [MAKE[kind](given.out), MAKE[kind](given.lse)]
    once, again = (attention_dropout_backward(*arrays, **how) for _ in range(2))
    right = DROPOUT_BACKWARD.reference(given)
    for each, found in zip(GRADIENTS, once, strict=True):
        verdict = DROPOUT_BACKWARD.judge(each, to_host(found), right, None)
        assert verdict.passed, (each.name, verdict.reason)
    for one, other in zip(once[1:], again[1:], strict=True):
        assert np.array_equal(to_host(one), to_host(other))
    repeated = attention_dropout(q, k, v, **how)[0]
    assert np.array_equal(to_host(out), to_host(repeated))


def test_nothing_dropped_is_attention(rng):
    """p = 0: out, LSE, dK and dV to the bit."""
    x = normal(rng, 1, 8, 600, 600, 64, causal=True)
    q, k, v = (make_cupy(getattr(x, name)) for name in "qkv")
    out, lse = attention_dropout(q, k, v, p=0.0, seed=1, causal=True)
    plain, plain_lse = attention(q, k, v, causal=True, return_lse=True, stage="mma_sync")
    assert np.array_equal(out.get(), plain.get()) and np.array_equal(lse.get(), plain_lse.get())
    x = normal(rng, 2, 64, 1024, 1024, 64)  # enough for the tile that dropout has too
    q, k, v = (make_cupy(getattr(x, name)) for name in "qkv")
    out, lse = attention(q, k, v, return_lse=True)
    found = attention_dropout_backward(out, q, k, v, out, lse, p=0.0, seed=1)
    right = attention_backward(out, q, k, v, out, lse, stage="backward/mma_sync")
    for one, other in zip(found[1:], right[1:], strict=True):
        assert np.array_equal(one.get(), other.get())
