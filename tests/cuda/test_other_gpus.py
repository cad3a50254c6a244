"""Stages 07 to 13 on GPUs with less shared memory than an H200, and on sm_75, which lacks their instructions.

No such GPU is needed: the CPU executor plays sm_75 (PTX_ARCH=750 in ptx.cuh), and launchers are told how much
shared memory a block may have.
"""

import dataclasses

import numpy as np
import pytest
from turing import T4

from cuda_reference import FOLDER
from flashcore_numba import LADDER, Problem
from flashcore_numba.checks import check_stage, runner
from flashcore_numba.core import gpu, oracle
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.multiprocessors import MULTIPROCESSORS, shared_limit
from flashcore_numba.core.shapes import parse
from flashcore_numba.core.wrapping import Idle
from flashcore_numba.records import artifact
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Gpu, Simulator
from flashcore_numba.run.registers import registers, stand_in
from flashcore_numba.stages import (
    stage09_async_copy,
    stage10_pipeline,
    stage11_warp_specialized,
    stage12_mma_sync,
)
from flashcore_numba.stages.edited import loaded
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import runs

ON_T4 = [stage for stage in LADDER if stage.language == "CUDA C" and stage.runs_on((7, 5))]
RUNS = [
    pytest.param(run.stage, run.variant, head_dim, id=f"{run.label}-{head_dim}")
    for run in runs(ON_T4)
    for head_dim in run.stage.head_dims
    if run.stage.why_not_in(T4.shared_limit, head_dim, run.variant) is None
    and not (run.variant == "large" and head_dim > 128)  # that tile fits no block there
]
RECORDED = {
    (shape["shape"], shape["causal"], record["gpu"]["sm_count"])
    for _, record in artifact.recorded()
    for shape in record["shapes"]
}


class Noted(Idle):
    """Runs nothing, and keeps what would be launched."""

    def __init__(self, *args):
        super().__init__(*args)
        self.launches = []

    def launch(self, kernel, grid, block, *args, shared_bytes=0):
        numbers = [arg for arg in args if isinstance(arg, np.generic)]
        self.launches.append((kernel, grid, block, numbers, shared_bytes))


def normal(rng, S_q, S_k, head_dim=64, heads=2, kv_heads=1):
    sizes = ((heads, S_q), (kv_heads, S_k), (kv_heads, S_k))
    return [rng.standard_normal((1, *size, head_dim)).astype(np.float16) for size in sizes]


def test_which_stages_a_t4_runs():
    assert [stage.number for stage in LADDER if stage.runs_on((7, 5))] == list(range(1, 13))


@pytest.mark.long
@pytest.mark.parametrize(("stage", "variant", "head_dim"), RUNS)
def test_a_stage_on_sm_75(stage, variant, head_dim, rng):
    """Right, and without a race in any order of threads: the copies are ordinary stores there."""
    q, k, v = normal(rng, int(rng.integers(40, 140)), int(rng.integers(130, 300)), head_dim)
    problem = Problem(q, k, v, causal=bool(rng.integers(2)))
    expected, expected_lse = oracle.attention(q, k, v, causal=problem.causal)
    for order in ("lockstep", "reverse", f"random:{rng.integers(0, 2**31)}"):
        out, lse = np.full_like(q, np.nan), np.full(q.shape[:3], np.nan, np.float32)
        simulator = Simulator(order=order, ops=False)
        stage.launch(problem, out, T4(simulator), lse, variant)
        simulator.check()
        np.testing.assert_allclose(out, expected, atol=4e-3)
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-4, atol=1e-4)
        assert all(("PTX_ARCH", 750) in launch.kernel.defines for launch in simulator.launches)


@pytest.mark.gpu
@pytest.mark.parametrize(("stage", "variant", "head_dim"), RUNS)
def test_a_stage_on_a_newer_gpu_that_plays_sm_75(stage, variant, head_dim, rng):
    """The instructions of sm_75 compute there what they compute on a T4."""
    import cupy

    q, k, v = normal(rng, int(rng.integers(40, 140)), int(rng.integers(130, 300)), head_dim)
    on_gpu = Problem(*map(cupy.asarray, (q, k, v)), causal=bool(rng.integers(2)))
    out, lse = cupy.full(q.shape, cupy.nan, cupy.float16), cupy.full(q.shape[:3], cupy.nan, cupy.float32)
    executor = Gpu()
    stage.launch(on_gpu, out, T4(executor), lse, variant)
    executor.done()
    expected, expected_lse = oracle.attention(q, k, v, causal=on_gpu.causal)
    np.testing.assert_allclose(out.get(), expected, atol=4e-3)
    np.testing.assert_allclose(lse.get(), expected_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "variant"),
    [(stage, variant) for stage, variant, head_dim in (run.values for run in RUNS) if head_dim == 64],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "name", ""),
)
def test_every_check_passes_on_sm_75(stage, variant, rng):
    """All cases and properties, at the head dimensions whose blocks fit."""
    dims = [each.values[2] for each in RUNS if each.values[:2] == (stage, variant)]
    played = dataclasses.replace(stage.through(T4), head_dims=tuple(dims))
    report = check_stage(played, variant, seed=int(rng.integers(2**31)))
    assert report.passed, "\n".join(f"{each.name}: {each.message}" for each in report.failures)


@pytest.mark.long
def test_sm_75_multiplies_in_halves_and_copies_by_stores(rng):
    """What the CPU executor plays is not sm_80 under another name."""
    problem = Problem(*normal(rng, 64, 128))
    totals = {}
    for turing in (False, True):
        executor = Simulator(shared_limit=T4.shared_limit)
        find("mma_sync").run(problem, T4(executor) if turing else executor, "large")
        executor.check()
        totals[turing] = executor.launches[0].totals()
    own, others = totals[True], totals[False]
    assert own.pop("mma") == 2 * others.pop("mma")
    assert others.pop("wait_at_once") > 0  # of cp.async
    assert own == others


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "guard"),
    [
        (9, "__syncthreads();          // every thread's have"),
        (10, "__syncthreads();                   // every thread's have, before a warp reads"),
        (11, "__syncthreads();  // Q, K and V are whole before a warp multiplies"),
        (12, "__syncthreads();                   // so have all parts, and all warps have left"),
    ],
)
def test_a_missing_barrier_is_found_on_sm_75(stage, guard, rng):
    """Stores that are done at once still need the barrier between them and other threads' reads."""
    file = f"stage{stage:02d}_{LADDER[stage - 1].name}.cu"
    text = (FOLDER / file).read_text()
    assert guard in text
    problem = Problem(*normal(rng, 64, 300))
    with loaded(stage, {file: text.replace(guard, guard.replace("__syncthreads();", "", 1))}) as copy:
        executor = Simulator(order=f"random:{rng.integers(0, 2**31)}", ops=False)
        copy.run(problem, T4(executor))
    with pytest.raises(Exception, match=r"race|uninitialised read"):
        executor.check()


@pytest.mark.parametrize(("shape", "causal", "sm_count"), sorted(RECORDED))
def test_an_h200_launches_what_it_would_without_any_limit(shape, causal, sm_count):
    at = parse(shape)
    problem = stand_in(at.batch, at.heads, at.seq, at.head_dim, causal)
    for run in runs(stage for stage in LADDER if stage.language == "CUDA C"):
        if run.stage.why_not(problem) is None:
            here, free = Noted(sm_count), Noted(sm_count, 10**9)
            for executor in (here, free):
                run.stage.run(problem, executor, run.variant, np.empty)
            assert here.launches and here.launches == free.launches, run.label


@pytest.mark.parametrize("capability", [each for each in MULTIPROCESSORS if each >= (7, 5)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_what_is_launched_fits(capability, head_dim):
    """Every run that a GPU is said to have room for, at sizes that choose different tiles."""
    room = shared_limit(capability)
    launched = set()
    for run in runs(stage for stage in LADDER if stage.runs_on(capability) and head_dim in stage.head_dims):
        for shape in ((1, 1, 64), (1, 64, 256), (8, 64, 512)):
            executor = Noted(132, room)
            run.stage.run(stand_in(*shape, head_dim), executor, run.variant, np.empty)
            if run.stage.why_not_in(room, head_dim, run.variant) is None:
                assert max(size for *_, size in executor.launches) <= room, run.label
                launched.add(run.stage.number)
    able = {stage.number for stage in LADDER if stage.runs_on(capability) and head_dim in stage.head_dims}
    assert able - launched == ({9, 10} if (capability, head_dim) == ((7, 5), 128) else set())


def test_a_default_gives_way_to_what_fits():
    """The deepest pipeline and the last phase for which there is room; what is named stays."""
    pipeline, warps = stage10_pipeline.STAGE, stage11_warp_specialized.STAGE
    rooms = {kib: kib * 1024 for kib in (64, 99, 163, 227)}
    assert [pipeline.fitting(64, None, room) for room in rooms.values()] == ["1", "2", "2", "2"]
    assert [pipeline.fitting(128, "2", room) for room in rooms.values()] == ["2", "1", "2", "2"]
    assert [warps.fitting(64, None, room) for room in rooms.values()] == ["0", "5", "5", "5"]
    assert [warps.fitting(128, None, room) for room in rooms.values()] == ["3", "5", "5", "5"]
    assert pipeline.fitting(64, "4", rooms[64]) == "4"
    assert stage09_async_copy.STAGE.fitting(64, None, rooms[64]) is None


def test_what_does_not_fit_is_refused_in_words():
    stage = stage10_pipeline.STAGE
    needed = sum(stage10_pipeline.memory_map(128, 1).values())
    assert stage.why_not_in(64 * 1024, 64) is None
    assert stage.why_not_in(needed, 128) is None
    assert stage.why_not_in(needed - 1, 128, "1") == (
        f"needs {needed} bytes of shared memory per block at head dimension 128, "
        f"and this GPU has {needed - 1}"
    )
    assert stage12_mma_sync.STAGE.why_not_in(64 * 1024, 128) is None


@pytest.mark.parametrize("executor", [Simulator(shared_limit=64 * 1024), Compiler((7, 5))], ids=type)
def test_an_executor_refuses_a_block_that_does_not_fit(executor):
    problem = stand_in(1, 1, 64, 64)
    with pytest.raises(UnsupportedError, match=r"needs 96768 bytes of .*: this GPU has room for 65536"):
        find("pipeline").run(problem, executor, "3", np.empty)


@pytest.mark.long
@pytest.mark.parametrize("keys", [16, 32, 64])
def test_stage_12_halves_its_keys_until_they_fit(keys, rng):
    """Also below what any GPU has: the answer stays."""
    q, k, v = normal(rng, 70, 150)
    executor = Simulator(shared_limit=stage12_mma_sync.block_bytes(64, 32, keys), ops=False)
    out = find("mma_sync").run(Problem(q, k, v), executor, "small")["out"]
    executor.check()
    np.testing.assert_allclose(out, oracle.attention(q, k, v)[0], atol=4e-3)
    assert dict(executor.launches[0].kernel.defines)["BLOCK_N"] == keys


def test_registers_of_a_run_that_does_not_fit_are_none():
    (run,) = (run for run in runs([stage10_pipeline.STAGE]) if run.variant == "4")
    assert registers(run, [stand_in(1, 1, 64, 128)], (8, 9)) is None


def test_a_check_on_a_gpu_leaves_out_what_does_not_fit(monkeypatch):
    """The head dimensions at which a variant's block has room; a variant with none is not checked."""
    monkeypatch.setattr(gpu, "shared_limit", lambda device=0: 64 * 1024)
    asked = []
    monkeypatch.setattr(runner, "_job", lambda stage, *job: asked.append((stage, *job)) or ())
    monkeypatch.setattr(runner, "_report", lambda stage, *rest: stage)
    monkeypatch.setattr(runner, "_items", lambda stage, backend: [])
    checked = runner.check([find("pipeline"), find("mma_sync")], backend="gpu", seed=0)
    assert [(job[0].name, job[1], job[0].head_dims) for job in asked if job[0].name == "pipeline"] == [
        ("pipeline", "1", (64,)),
        ("pipeline", "2", (64,)),
    ]
    assert {stage.head_dims for stage in checked if stage.name == "mma_sync"} == {find("mma_sync").head_dims}
    assert dataclasses.is_dataclass(checked[0])
