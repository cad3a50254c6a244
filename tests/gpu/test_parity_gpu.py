"""A GPU and the CPU executor, given the same kernel and the same inputs, agree to one fp16 ulp."""

import numpy as np
import pytest
from matrix import first_of_each
from parity import agree, apart

from flashcore_numba import LADDER, Problem
from flashcore_numba.run.executor import Gpu, Simulator

pytestmark = pytest.mark.gpu

CASES = [
    pytest.param(stage, variant, head_dim, id="-".join(filter(None, [stage.label, variant, str(head_dim)])))
    for stage in LADDER
    if stage.language == "CUDA C"
    for variant in stage.variants or [None]
    for head_dim in stage.head_dims
]


class FewProcessors(Gpu):
    """Takes the tiles that fill a GPU of so many multiprocessors."""

    def __init__(self, sm_count: int) -> None:
        super().__init__()
        self.wanted = sm_count

    @property
    def sm_count(self) -> int:
        return self.wanted


def distance(stage, variant, inputs, causal, sm_count):
    """In ulps, of the output of a GPU from that of the executor, element by element."""
    import cupy

    q, k, v = inputs
    on_gpu = cupy.full(q.shape, cupy.nan, cupy.float16)
    problem = Problem(*map(cupy.asarray, inputs), causal=causal)
    stage.launch(problem, on_gpu, FewProcessors(sm_count), variant=variant)
    on_cpu = np.full(q.shape, np.nan, np.float16)
    executor = Simulator(sm_count=sm_count, races=False, ops=False)
    stage.launch(Problem(*inputs, causal=causal), on_cpu, executor, variant=variant)
    return apart(on_gpu.get(), on_cpu, q, k, v, causal)


def normal(rng, seq_q, seq_k, head_dim):
    return [rng.standard_normal((1, 2, rows, head_dim)).astype(np.float16) for rows in (seq_q, seq_k, seq_k)]


@pytest.mark.parametrize(
    ("stage", "variant", "head_dim"), first_of_each(CASES, lambda stage, variant, head_dim: stage)
)
def test_gpu_and_executor_agree(stage, variant, head_dim, rng):
    assert agree(distance(stage, variant, normal(rng, 96, 96, head_dim), True, 132))
    ragged = normal(rng, int(rng.integers(20, 97)), int(rng.integers(130, 260)), head_dim)
    assert agree(distance(stage, variant, ragged, bool(rng.integers(2)), 132))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("sm_count", [1, 2])
def test_the_larger_tiles_of_stage_13_agree(sm_count, head_dim, rng):
    inputs = normal(rng, int(rng.integers(65, 129)), int(rng.integers(130, 260)), head_dim)
    assert agree(distance(LADDER[12], "split_kv", inputs, True, sm_count))
