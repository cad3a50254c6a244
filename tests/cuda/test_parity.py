"""The CPU executor's outputs are right to an fp16 ulp and a half; `tests/gpu` holds a GPU against them."""

import numpy as np
import pytest
from matrix import few, first_of_each
from parity import agree, apart

from flashcore_numba import LADDER, Problem
from flashcore_numba.core import oracle
from flashcore_numba.run.executor import Simulator

STAGES = [
    pytest.param(stage, variant, id="-".join(filter(None, [stage.label, variant])))
    for stage in LADDER
    if stage.language == "CUDA C"
    for variant in stage.variants or [None]
]


def inputs(rng, seq_q, seq_k, head_dim=64):
    return [rng.standard_normal((1, 2, rows, head_dim)).astype(np.float16) for rows in (seq_q, seq_k, seq_k)]


@pytest.mark.parametrize("causal", few([False, True], True))
@pytest.mark.parametrize(("stage", "variant"), first_of_each(STAGES, lambda stage, variant: stage))
def test_the_executor_is_near_float64(stage, variant, causal, rng):
    """Half an ulp is the output's rounding; weights as halves, half an ulp off each, add up to one."""
    q, k, v = inputs(rng, int(rng.integers(20, 97)), int(rng.integers(20, 160)))
    out = np.full(q.shape, np.nan, np.float16)
    executor = Simulator(races=False, ops=False)
    stage.launch(Problem(q, k, v, causal=causal), out, executor, variant=variant)
    assert apart(out, oracle.attention(q, k, v, causal)[0], q, k, v, causal).max() <= 1.5


def test_the_yardstick(rng):
    q, k, v = inputs(rng, 40, 50)
    out, _ = oracle.attention(q, k, v)
    size, _ = oracle.attention(q, k, np.abs(v))
    element = tuple(rng.integers(0, n) for n in out.shape)
    for ulps, verdict in ((0, True), (1, True), (-2, True), (3, False), (np.nan, False)):
        moved = out.copy()
        moved[element] += ulps * float(np.spacing(np.float16(size[element])))
        distance = apart(out, moved, q, k, v, False)
        assert distance.max() == (np.inf if np.isnan(ulps) else pytest.approx(abs(ulps)))
        assert agree(distance) == verdict
    assert not agree(apart(out, out + 1.5 * np.spacing(size.astype(np.float16)), q, k, v, False))
