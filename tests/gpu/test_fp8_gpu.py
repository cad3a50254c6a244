"""Attention in 8 bits on a GPU: every case, the bytes of the twin, and calls by a plan and captured."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flashcore_numba import attention_fp8
from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.branches.fp8.quantise import Quantised, quantise
from flashcore_numba.branches.fp8.twin import quantised
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.cases import normal
from flashcore_numba.core import gpu
from flashcore_numba.core.output import OUT
from flashcore_numba.run.executor import Gpu

sys.path.insert(0, str(Path(__file__).parent))
from test_attention_gpu import make_cupy

HERE = gpu.compute_capability() or (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not STAGE.runs_on(HERE), reason=str(STAGE.why_not_on(HERE))),
]


@pytest.mark.parametrize("variant", STAGE.variants)
def test_every_case(variant):
    report = check_stage(STAGE, variant, backend="gpu")
    assert report.passed, report.failures[0]


@pytest.mark.parametrize("element", STAGE.elements, ids=lambda element: element.name)
@pytest.mark.parametrize("d", STAGE.head_dims)
def test_the_twin_has_the_same_bits(d, element, rng):
    x = normal(rng, 2, 4, 70, 300, d, 2, element=element, scale=-0.1)
    problem = x.problem({name: make_cupy(array) for name, array in x.arrays.items()})
    found, right = quantise(problem, Gpu()), quantised(x.q, x.k, x.v, -1.0)
    for name, one, other in zip(Quantised._fields, found, right, strict=True):
        bits = f"u{other.itemsize}"
        assert np.array_equal(one.get().view(bits), other.view(bits)), name


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_calls_by_a_plan_and_captured(causal, rng):
    """The same bits each time. Under a causal mask blocks draw work from a counter that returns to 0."""
    import cupy

    x = normal(rng, 2, 8, 1500, 1500, 128, 2, causal=causal)
    q, k, v = (make_cupy(getattr(x, name)) for name in "qkv")
    answers = [attention_fp8(q, k, v, causal=causal).get() for _ in range(4)]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        out = attention_fp8(q, k, v, causal=causal)
        graph = stream.end_capture()
        for _ in range(2):
            out.fill(0)
            graph.launch(stream)
            answers.append(out.get(stream=stream))
    assert all(np.array_equal(answers[0], each) for each in answers[1:])
    assert FP8.judge(OUT, answers[0], FP8.reference(x), None).passed
