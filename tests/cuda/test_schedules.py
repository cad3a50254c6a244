"""Right kernels raise no alarm in any order of threads and copies; one without a guard does."""

import re
from pathlib import Path

import numpy as np
import pytest
from matrix import few

from cuda_reference import TensorMap
from cuda_reference.cpu import CpuModule
from flashcore_numba import LADDER, Problem
from flashcore_numba.core import oracle
from flashcore_numba.run.executor import Simulator

HERE = Path(__file__).resolve().parent
STAGES = [
    pytest.param(stage, variant, id="-".join(filter(None, [stage.label, variant])))
    for stage in LADDER
    if stage.language == "CUDA C"
    for variant in stage.variants or [None]
]


@pytest.mark.long
@pytest.mark.parametrize(("stage", "variant"), STAGES)
def test_stages_on_random_schedules(stage, variant, rng):
    S_q, S_k, causal = int(rng.integers(20, 80)), int(rng.integers(60, 110)), bool(rng.integers(0, 2))
    q = rng.standard_normal((1, 1, S_q, 64)).astype(np.float16)
    k, v = (rng.standard_normal((1, 1, S_k, 64)).astype(np.float16) for _ in "kv")
    problem = Problem(q, k, v, causal=causal and stage.causal)
    expected, _ = oracle.attention(q, k, v, causal=problem.causal)
    for order in ["reverse", *(f"random:{seed}" for seed in rng.integers(0, 2**31, 2))]:
        out, executor = np.full_like(q, np.nan), Simulator(order=order, ops=False)
        stage.launch(problem, out, executor, lse=None, variant=variant)
        executor.check()
        np.testing.assert_allclose(out, expected, atol=4e-3)


def attention(source: Path, rng, heads=2, S=192, **options):
    """Runs the TMA and wgmma kernel; returns the launch and its largest error."""
    q, k, v = (rng.standard_normal((heads, S, 64)).astype(np.float16) for _ in "qkv")
    out = np.full_like(q, np.nan)
    maps = [TensorMap(x.reshape(heads * S, 64), (64, 64)) for x in (q, k, v)]
    args = (*maps, out, np.int32(S), np.float32(np.log2(np.e) / 8))
    launch = CpuModule(source).wgmma_attention(
        (S // 64, heads), 256, args, shared_mem=5 * 8192 + 40, **options
    )
    expected, _ = oracle.attention(*(x[None] for x in (q, k, v)))
    return launch, np.abs(out - expected[0]).max()


@pytest.mark.long
def test_hopper_on_random_schedules(rng):
    for schedule in ["forward", "reverse", *(f"random:{seed}" for seed in rng.integers(0, 2**31, 8))]:
        launch, error = attention(HERE / "wgmma_attention.cu", rng, schedule=schedule, counts=False)
        assert not launch.problems, f"{schedule}: {launch}"
        assert error < 2e-3, schedule


TEXT = (HERE / "wgmma_attention.cu").read_text()
GUARDS = list(
    re.finditer(
        r"__syncthreads\(\);|ptx::(?:mbarrier_wait|fence_\w+|wgmma_fence|wgmma_wait<0>|mbarrier_arrive)\([^;]*;",
        TEXT,
    )
)


@pytest.mark.parametrize(
    "guard", few([pytest.param(g, id=f"{g.start()}-{g[0][5:25]}") for g in GUARDS], GUARDS[0])
)
def test_every_guard_of_the_hopper_kernel_is_needed(guard, tmp_path, rng):
    source = tmp_path / "wgmma_attention.cu"
    source.write_text(TEXT[: guard.start()] + ";" + TEXT[guard.end() :])
    launch, _ = attention(source, rng, S=256, counts=False, time_limit=20)
    assert launch.problems
