"""Kernels in CUDA C on a GPU: loaded, launched on a stream, captured; the driver agrees with ptxas."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matrix import first_of_each

from cuda_reference import gpu as loader
from cuda_reference import load, source
from flashcore_numba import Problem, UnsupportedError
from flashcore_numba.checks import bounds
from flashcore_numba.core import gpu
from flashcore_numba.measure.entries import KeepScratch
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Gpu
from flashcore_numba.stages import LADDER

pytestmark = pytest.mark.gpu

HERE = gpu.compute_capability() or (9, 0)
CUDA = [stage for stage in LADDER if stage.language == "CUDA C" and stage.runs_on(HERE)]
VARIANTS = [(stage, variant) for stage in CUDA for variant in stage.variants or [None]]
EACH_VARIANT = pytest.mark.parametrize(("stage", "variant"), VARIANTS, ids=lambda x: getattr(x, "label", x))

SUM = """// y[i] = the sum of the dynamic shared memory, filled with i; counts calls where told.
extern "C" __global__ void total(float* y, int words, int* calls) {
    extern __shared__ __align__(16) unsigned char smem[];
    __shared__ float static_smem[16];
    float* row_smem = reinterpret_cast<float*>(smem);
    for (int i = threadIdx.x; i < words; i += blockDim.x) row_smem[i] = blockIdx.x;
    __syncthreads();  // all words are written before one thread adds them
    if (threadIdx.x > 0) return;
    static_smem[0] = 0.0f;
    for (int i = 0; i < words; i++) static_smem[0] += row_smem[i];
    y[blockIdx.x] = static_smem[0];
    if (calls) atomicAdd(calls, 1);
}
"""


@pytest.fixture
def total(tmp_path):
    (tmp_path / "total.cu").write_text(SUM)
    return source("total", folder=tmp_path)


@pytest.mark.parametrize("words", [0, 1000, 12 * 1024, 25 * 1024])
def test_dynamic_shared_memory_of_any_size(total, words):
    import cupy

    y = cupy.full(3, cupy.nan, cupy.float32)
    Gpu().launch(total, 3, 128, y, np.int32(words), None, shared_bytes=4 * words)
    np.testing.assert_array_equal(y.get(), np.arange(3) * words)


def test_more_shared_memory_than_there_is_is_refused(total):
    import cupy

    y = cupy.zeros(1, cupy.float32)
    with pytest.raises(UnsupportedError, match=r"total needs 400000 bytes of dynamic shared memory"):
        Gpu().launch(total, 1, 32, y, np.int32(0), None, shared_bytes=400_000)
    assert y.get() == 0


def test_the_driver_agrees_with_the_assembler(total):
    loaded = load(total)
    assert loaded.registers == loaded.compiled.registers
    assert loaded.shared_bytes == loaded.compiled.shared_bytes > 0
    assert loaded.local_bytes == loaded.compiled.stack_bytes == 0


def test_threads_share_one_loaded_kernel(total):
    loader._loaded.clear()
    with ThreadPoolExecutor(8) as threads:
        loaded = set(threads.map(lambda _: load(total), range(16)))
    assert len(loaded) == 1


def test_a_launch_goes_to_its_stream_and_into_a_graph(total):
    import cupy

    calls, y = cupy.zeros(1, cupy.int32), cupy.zeros(2, cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    executor = Gpu(stream)
    arguments = (total, 2, 32, y, np.int32(5), calls)
    executor.launch(*arguments, shared_bytes=20)
    with stream:
        stream.begin_capture()
        for _ in range(3):
            executor.launch(*arguments, shared_bytes=20)
        graph = stream.end_capture()
    stream.synchronize()
    assert calls.get() == 2, "what is captured does not run"
    graph.launch(stream)
    stream.synchronize()
    assert calls.get() == 8


@EACH_VARIANT
def test_a_stage_is_right_at_the_mission_shape(stage, variant, rng):
    import cupy

    q, k, v = (rng.standard_normal((1, 8, 512, 64)).astype(np.float16) for _ in range(3))
    problem = Problem(*map(cupy.asarray, (q, k, v)), causal=True)
    out = cupy.full(q.shape, cupy.nan, cupy.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    executor = KeepScratch(Gpu(stream))
    cupy.cuda.get_current_stream().synchronize()
    for _ in range(3):
        executor.start()
        stage.launch(problem, out, executor, variant=variant)
    stream.synchronize()
    verdict = bounds.judge(out.get(), bounds.reference(q, k, v, True, None))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize(
    ("stage", "head_dim"),
    [pytest.param(stage, D, id=f"{stage.label}-{D}") for stage in CUDA for D in stage.head_dims],
)
def test_strides_of_any_layout(stage, head_dim, rng):
    """[B, S, H, D] in memory, and one K/V head for all by a stride of 0, as the copy engine sees them too."""
    import cupy

    q = rng.standard_normal((1, 200, 6, head_dim)).astype(np.float16)
    k, v = (rng.standard_normal((1, 1, 300, head_dim)).astype(np.float16) for _ in "kv")
    q, k, v = q.transpose(0, 2, 1, 3), *(np.broadcast_to(x, (1, 6, 300, head_dim)) for x in (k, v))
    on_gpu = cupy.asarray(np.ascontiguousarray(q.transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)
    wide = [cupy.broadcast_to(cupy.asarray(x[:, :1]), x.shape) for x in (k, v)]
    assert wide[0].strides[1] == 0
    out = cupy.full(q.shape, cupy.nan, cupy.float16)
    stage.launch(Problem(on_gpu, *wide, causal=True), out, Gpu())
    verdict = bounds.judge(out.get(), bounds.reference(q, k, v, True, None))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("stage", CUDA, ids=lambda stage: stage.label)
def test_a_launch_sees_what_the_one_before_wrote(stage, rng):
    """Each launch reads what the one before writes, and writes what that one reads: with nothing between them
    they give what they give one by one, also where a kernel may begin before the one before has ended."""
    import cupy

    x, k, v = (cupy.asarray(rng.standard_normal((1, 8, 512, 64)).astype(np.float16)) for _ in range(3))
    stream = cupy.cuda.Stream(non_blocking=True)
    executor = KeepScratch(Gpu(stream))
    cupy.cuda.Device().synchronize()

    def chain(between):
        buffers = [x.copy(), cupy.empty_like(x)]
        cupy.cuda.Device().synchronize()
        for _ in range(30):
            executor.start()
            stage.launch(Problem(buffers[0], k, v), buffers[1], executor)
            between()
            buffers.reverse()
        stream.synchronize()
        return buffers[0].get()

    one_by_one = chain(stream.synchronize)
    assert np.abs(one_by_one).max() > 0
    for _ in range(10):
        np.testing.assert_array_equal(chain(lambda: None), one_by_one)


@pytest.mark.parametrize(
    ("stage", "variant"),
    first_of_each(VARIANTS, lambda stage, _: stage),
    ids=lambda x: getattr(x, "label", x),
)
def test_what_runs_is_what_the_compiler_reports(stage, variant):
    """The table of registers is about the very kernels that run."""
    import cupy

    class Remember(Gpu):
        def launch(self, kernel, *args, **options):
            super().launch(kernel, *args, **options)
            launched[kernel.label] = load(kernel)

    launched = {}
    q = cupy.zeros((1, 8, 512, 64), cupy.float16)
    stage.launch(Problem(q, q, q), cupy.empty_like(q), Remember(), variant=variant)
    host = np.empty(q.shape, np.float16)
    compiler = Compiler(gpu.compute_capability())
    stage.launch(Problem(host, host, host), host, compiler, variant=variant)
    assert {kernel.name: kernel.registers for kernel in compiler.kernels} == {
        label: loaded.registers for label, loaded in launched.items()
    }
