"""Attention with a norm on a GPU: every case, clusters of 8 and 16 blocks, by a plan, and captured."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba import attention_norm
from flashcore_numba.branches.epilogue.epilogue_norm import STAGE
from flashcore_numba.branches.epilogue.inputs import drawn
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.outputs import OUT, WRITTEN
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.trial import Trial
from flashcore_numba.core import gpu
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.run import plans

sys.path.insert(0, str(Path(__file__).parent))
from capturing import library
from test_attention_gpu import make_cupy, make_torch, to_host
from test_capture_gpu import EACH_KIND

HERE = gpu.compute_capability() or (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not STAGE.runs_on(HERE), reason=str(STAGE.why_not_on(HERE))),
]


@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant):
    report = check_stage(STAGE, variant, backend="gpu")
    assert report.passed, report.failures[0]


@pytest.mark.parametrize("heads", [1, 2, 7, 8, 9, 16])
@pytest.mark.parametrize("variant", STAGE.variants)
def test_clusters_of_every_size(heads, variant, rng):
    """Over more row tiles than run at a time, many times: the same bits, and right."""
    for d in STAGE.head_dims:
        x = drawn(rng, 2, heads, 700, 600, d, causal=True, norm=str(rng.choice(["layer", "rms"])))
        trial = Trial(STAGE, variant, "gpu")
        answers = [trial(x) for _ in range(4)]
        reference = EPILOGUE.reference(x)
        for output in WRITTEN:
            first, *others = (getattr(answer, output.name) for answer in answers)
            assert EPILOGUE.judge(output, first, reference, None).passed
            assert all(np.array_equal(first.view(np.uint16), each.view(np.uint16)) for each in others)


def arrays_of(make, x):
    """q, k, v, residual [B, S, N], weight and bias as the caller has them."""
    return [make(each) for each in (x.q, x.k, x.v, np.ascontiguousarray(x.residual[:, 0]), x.weight, x.bias)]


def right(x, out):
    return EPILOGUE.judge(OUT, to_host(out)[:, None], EPILOGUE.reference(x), None).passed


@EACH_KIND
@pytest.mark.parametrize("heads", [8, 16])
def test_calls_by_a_plan(kind, heads, rng):
    """Other numbers each time; with a sum, without, and into the caller's memory."""
    make = {"cupy": make_cupy, "torch": make_torch}[kind]
    plans.forget()
    for _ in range(4):
        x = drawn(rng, 1, heads, 512, 512, 64, element=BFLOAT16 if kind == "torch" else STAGE.elements[0])
        given = arrays_of(make, x)
        out = attention_norm(*given)
        assert right(x, out)
        both = attention_norm(*given, return_sum=True)
        assert right(x, both[0])
        summed = to_host(both[1])[:, None]
        assert EPILOGUE.judge(WRITTEN[1], summed, EPILOGUE.reference(x), None).passed
        target = make(np.full_like(x.residual[:, 0], np.nan))
        assert attention_norm(*given, out=target) is target and right(x, target)
    assert len(plans._plans) == 3


@EACH_KIND
@pytest.mark.parametrize("heads", [8, 16])
def test_captured(kind, heads, rng):
    """As the first call of its layout, and again on other numbers in the same memory."""
    make = {"cupy": make_cupy, "torch": make_torch}[kind]
    lib = library(kind)
    plans.forget()
    x = drawn(rng, 1, heads, 512, 512, 64)
    given = arrays_of(make, x)
    lib.synchronize()
    graph, out = lib.captured(lambda handle: attention_norm(*given), "global")
    for _ in range(3):
        x = drawn(rng, 1, heads, 512, 512, 64)
        for target, array in zip(given, arrays_of(make, x), strict=True):
            lib.fill(target, array)
        lib.synchronize()
        lib.replay(graph, lib.stream())
        lib.synchronize()
        assert right(x, out)


def test_launches_that_overlap(rng):
    """Each reads what the one before has written, without a wait between them: the bits of one by one."""
    import cupy

    x = drawn(rng, 1, 8, 512, 512, 64)
    q, k, v, residual, weight, bias = arrays_of(make_cupy, x)
    chains = []
    for wait in (True, False):
        rows, outs = residual, []
        for _ in range(20):
            rows = attention_norm(q, k, v, rows, weight, bias)
            heads = rows.reshape(1, 512, 8, 64).swapaxes(1, 2)
            rows = attention_norm(heads, k, v, rows, weight, bias)
            outs.append(rows)
            if wait:
                cupy.cuda.get_current_stream().synchronize()
        chains.append([each.get().view(np.uint16) for each in outs])
    assert all(np.array_equal(one, other) for one, other in zip(*chains, strict=True))
    assert np.isfinite(outs[-1].get().astype(np.float32)).all()
