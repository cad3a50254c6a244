"""attention() on a GPU with the arrays of CuPy, PyTorch and Numba: nothing copied, on the caller's stream."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from matrix import few

from flashcore_numba import LADDER, ArgumentError, Problem, UnsupportedError, attention
from flashcore_numba.attention import best_stage
from flashcore_numba.core import gpu, oracle
from flashcore_numba.core.arrays import adopt
from flashcore_numba.core.element import BFLOAT16, E4M3
from flashcore_numba.run import plans
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Gpu

pytestmark = pytest.mark.gpu

NUMBA_STAGES = [stage for stage in LADDER if stage.language == "Numba"]
VARIANTS = [(stage, variant) for stage in LADDER for variant in stage.variants or [None]]
IN_BFLOAT16 = [stage for stage in LADDER if BFLOAT16 in stage.elements]
EACH_STAGE = pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.label)


def make_cupy(array):
    import cupy

    return cupy.asarray(array.view(np.uint8) if array.dtype == E4M3.dtype else array)


def make_torch(array):
    import torch

    if array.dtype == BFLOAT16.dtype:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    if array.dtype == E4M3.dtype:
        return torch.from_numpy(array.view(np.uint8)).view(torch.float8_e4m3fn).cuda()
    return torch.from_numpy(array).cuda()


def make_numba(array):
    from numba import cuda

    return cuda.to_device(array)


def to_host(array):
    package = type(array).__module__.partition(".")[0]
    if package == "torch":
        return adopt(array.cpu(), "array").view
    if package == "cupy":
        return array.get()
    return array.copy_to_host() if package == "numba" else np.asarray(array)


def pointer(array):
    package = type(array).__module__.partition(".")[0]
    if package == "torch":
        return array.data_ptr()
    return array.__cuda_array_interface__["data"][0]


HAVE_TORCH = importlib.util.find_spec("torch") is not None
WITH_TORCH = pytest.mark.skipif(
    not HAVE_TORCH, reason="PyTorch is missing: pip install 'flashcore-numba[peers]'"
)
EACH_KIND = pytest.mark.parametrize(
    "make",
    [make_cupy, make_numba, pytest.param(make_torch, marks=WITH_TORCH)],
    ids=["cupy", "numba", "torch"],
)


def busy(array):
    """Keep the current stream busy for longer than a launch takes to queue; the first call compiles."""
    for _ in range(200):
        array *= 1.0001


def inputs(rng, batch=1, heads=4, kv_heads=None, seq_q=130, seq_k=None, head_dim=64):
    seq_k, kv_heads = seq_k or seq_q, kv_heads or heads
    q = rng.standard_normal((batch, heads, seq_q, head_dim)).astype(np.float16)
    k, v = rng.standard_normal((2, batch, kv_heads, seq_k, head_dim)).astype(np.float16)
    return q, k, v


def assert_right(out, q, k, v, causal=False, scale=None):
    reference, _ = oracle.attention(q, k, v, causal, scale)
    bound = 2 * np.abs(oracle.standard_attention(q, k, v, causal, scale) - reference).max() + 1e-3
    out = to_host(out)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert np.abs(out.astype(np.float64) - reference).max() <= bound  # false for NaN


@EACH_STAGE
@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize(
    "seq_q, seq_k, causal", [(130, 130, False), (1, 257, True), (95, 200, True), (200, 95, True)]
)
def test_every_stage_is_right(rng, stage, head_dim, seq_q, seq_k, causal):
    if head_dim not in stage.head_dims:
        with pytest.raises(UnsupportedError, match=f"head dimension {head_dim}"):
            attention(*map(make_cupy, inputs(rng, head_dim=head_dim)), stage=stage)
        return
    q, k, v = inputs(rng, batch=2, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim)
    import cupy

    out = cupy.full(q.shape, cupy.nan, cupy.float16)
    assert attention(*map(make_cupy, (q, k, v)), causal=causal, stage=stage, out=out) is out
    assert_right(out, q, k, v, causal)
    if causal and seq_q > seq_k:
        assert (out[:, :, : seq_q - seq_k] == 0).all()


@pytest.mark.parametrize(
    "make", [make_cupy, pytest.param(make_torch, marks=WITH_TORCH)], ids=["cupy", "torch"]
)
@pytest.mark.parametrize("stage", IN_BFLOAT16, ids=lambda stage: stage.label)
def test_bfloat16_is_right_in_every_stage_and_kind(rng, stage, make):
    """Through the launchers, then by a plan, then by its graph."""
    q, k, v = map(BFLOAT16.round, inputs(rng, kv_heads=2, seq_k=257))
    arrays, given = [make(x) for x in (q, k, v)], make(BFLOAT16.round(np.full(q.shape, np.nan)))
    for out in (None, None, *[given] * 4):
        made, lse = attention(*arrays, causal=True, stage=stage, out=out, return_lse=True)
        assert type(made) is type(arrays[0]) and made.dtype == arrays[0].dtype
        assert_right(made, q, k, v, True)
        np.testing.assert_allclose(to_host(lse), oracle.attention(q, k, v, True)[1], atol=1e-4)
    assert plans._plans


@pytest.mark.parametrize("stage, variant", VARIANTS, ids=lambda x: getattr(x, "label", x) or "-")
def test_every_variant_is_right(rng, stage, variant):
    import cupy

    q, k, v = inputs(rng, seq_q=77)
    problem = Problem(*map(make_cupy, (q, k, v)), causal=stage.causal)
    out = cupy.full(q.shape, cupy.nan, cupy.float16)
    stage.launch(problem, out, Gpu(), variant=variant)
    assert_right(out, q, k, v, stage.causal)


@EACH_KIND
def test_views_are_not_copies(rng, make):
    array = make(inputs(rng)[0])
    adopted = adopt(array, "q")
    assert adopted.view.data.ptr == pointer(array)
    np.testing.assert_array_equal(adopted.view.get(), to_host(array))


@EACH_KIND
def test_the_callers_kind_comes_back(rng, make):
    q, k, v = inputs(rng)
    arrays = [make(x) for x in (q, k, v)]
    out = attention(*arrays)
    assert type(out) is type(arrays[0])
    assert_right(out, q, k, v)
    again = attention(out, arrays[1], arrays[2])  # and is good as an input
    assert_right(again, to_host(out), k, v)


@EACH_KIND
def test_out_is_written_in_place(rng, make):
    q, k, v = inputs(rng)
    out = make(np.full(q.shape, np.nan, np.float16))
    before = pointer(out)
    assert attention(*(make(x) for x in (q, k, v)), out=out) is out
    assert pointer(out) == before
    assert_right(out, q, k, v)


@EACH_KIND
def test_lse_of_the_callers_kind(rng, make):
    q, k, v = inputs(rng, seq_q=60, seq_k=40)
    arrays = [make(x) for x in (q, k, v)]
    if not any(stage.returns_lse for stage in LADDER):
        with pytest.raises(UnsupportedError, match="LSE"):
            attention(*arrays, return_lse=True)
        return
    out, lse = attention(*arrays, causal=True, return_lse=True)
    assert type(lse) is type(arrays[0])
    _, expected = oracle.attention(q, k, v, True)
    found = to_host(lse)
    assert found.dtype == np.float32
    assert (found[:, :, :20] == -np.inf).all()
    np.testing.assert_allclose(found[:, :, 20:], expected[:, :, 20:], atol=1e-4, rtol=1e-5)
    assert_right(out, q, k, v, True)


@EACH_STAGE
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries(rng, stage, kv_heads):
    q, k, v = inputs(rng, kv_heads=kv_heads)
    arrays = [make_cupy(x) for x in (q, k, v)]
    if stage.grouped_queries:
        assert_right(attention(*arrays, stage=stage, causal=True), q, k, v, True)
    else:
        with pytest.raises(UnsupportedError, match=f"stage {stage.label} does not serve grouped queries"):
            attention(*arrays, stage=stage)


@EACH_STAGE
def test_strided_views(rng, stage):
    """[B, S, H, D] memory, one of a packed q/k/v, expanded heads, and rows 134 bytes apart (copied)."""
    import cupy

    q, k, v = inputs(rng)
    packed = cupy.asarray(np.stack([q, k, v], axis=2).transpose(0, 3, 2, 1, 4))  # [B, S, 3, H, D]
    views = [packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    out = cupy.full((1, 130, 4, 64), cupy.nan, cupy.float16).transpose(0, 2, 1, 3)
    assert_right(attention(*views, stage=stage, out=out), q, k, v)

    one_head = cupy.broadcast_to(cupy.asarray(k[:, :1]), k.shape)
    shared = np.broadcast_to(k[:, :1], k.shape)
    assert_right(attention(cupy.asarray(q), one_head, one_head, stage=stage), q, shared, shared)

    odd = cupy.full((1, 4, 130, 67), cupy.nan, cupy.float16)[..., :64]
    odd[...] = cupy.asarray(v)
    assert_right(attention(cupy.asarray(q), cupy.asarray(k), odd, stage=stage), q, k, v)


@EACH_STAGE
def test_runs_on_cupys_current_stream(rng, stage):
    """A busy stream writes the input: a launch on another would read what was there before."""
    import cupy

    q, k, v = inputs(rng)
    attention(*map(make_cupy, (q, k, v)), stage=stage)  # compile first: compiling waits
    late, k_gpu, v_gpu = cupy.zeros(q.shape, cupy.float16), make_cupy(k), make_cupy(v)
    source, work = make_cupy(q), cupy.ones(1 << 26, cupy.float32)
    busy(work)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        busy(work)
        late[...] = source
        out = attention(late, k_gpu, v_gpu, stage=stage)
        stream.synchronize()
    assert_right(out, q, k, v)


@WITH_TORCH
def test_runs_on_torchs_current_stream(rng):
    import torch

    q, k, v = inputs(rng)
    source, k_gpu, v_gpu = map(make_torch, (q, k, v))
    attention(source, k_gpu, v_gpu)
    late, work = torch.zeros_like(source), torch.ones(1 << 26, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy(work)
        late.copy_(source)
        out = attention(late, k_gpu, v_gpu)
    stream.synchronize()
    assert_right(out, q, k, v)


@EACH_STAGE
def test_a_cuda_graph_captures_a_launch(rng, stage):
    """Replaying it computes from what the inputs hold then: nothing synchronised, nothing was left out."""
    import cupy

    q, k, v = inputs(rng)
    arrays = [make_cupy(x) for x in (q, k, v)]
    out = cupy.full(q.shape, cupy.nan, cupy.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        attention(*arrays, stage=stage, out=out)  # compiles, and fills CuPy's pool with the scratch memory
        stream.synchronize()
        stream.begin_capture()
        attention(*arrays, stage=stage, out=out)
        graph = stream.end_capture()
        out[...] = cupy.nan
        arrays[0][...] = cupy.asarray(-q)
        graph.launch(stream)
        stream.synchronize()
    assert_right(out, -q, k, v)


@EACH_KIND
def test_a_call_does_not_wait(rng, make):
    import cupy

    arrays = [make(x) for x in inputs(rng)]
    attention(*arrays)
    work, done = cupy.ones(1 << 26, cupy.float32), cupy.cuda.Event()
    busy(work)
    cupy.cuda.Device().synchronize()
    busy(work)
    attention(*arrays)
    done.record()
    assert not done.done, "the call waited for the queue before it"
    cupy.cuda.Device().synchronize()


@EACH_KIND
@pytest.mark.parametrize("seq_k", [130, 5000])
def test_calls_of_one_layout_share_a_plan(rng, make, seq_k):
    """Other addresses, another thread, out given or not: the launches of the first call serve them all."""
    plans.forget()
    sets = [inputs(rng, seq_k=seq_k) for _ in range(6)]
    arrays = [[make(x) for x in each] for each in sets]
    attention(*arrays[0], causal=True)
    kept = set(plans._plans.values())
    stage = best_stage(Problem(*map(make_cupy, sets[0]), causal=True))
    assert bool(kept) == (make is not make_numba and stage.language == "CUDA C")
    with ThreadPoolExecutor(3) as pool:
        outs = list(pool.map(lambda each: attention(*each, causal=True), arrays))
        import cupy

        pool.submit(cupy.cuda.Device().synchronize).result()
    for out, each in zip(outs, sets, strict=True):
        assert_right(out, *each, causal=True)
    assert set(plans._plans.values()) == kept


@EACH_KIND
@pytest.mark.parametrize("seq_k", [130, 5000])
def test_a_thread_that_has_not_used_the_gpu(rng, make, seq_k):
    """It has no CUDA context, and nothing is allocated that would make one current."""
    import cupy

    plans.forget()
    first, second = inputs(rng, seq_k=seq_k), inputs(rng, seq_k=seq_k)
    attention(*map(make, first))
    arrays, out = [make(x) for x in second], make(np.full_like(second[0], np.nan))
    cupy.cuda.Device().synchronize()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(attention, *arrays, out=out).result()
        pool.submit(cupy.cuda.Device().synchronize).result()
    assert_right(out, *second)


@EACH_KIND
@pytest.mark.parametrize("seq_k", [130, 5000])
def test_calls_with_the_same_arrays(rng, make, seq_k):
    """From the third on they are launched as a graph and get an output that was allocated ahead."""
    import cupy

    host = [inputs(rng, seq_k=seq_k) for _ in range(2)]
    q, k, v = (make(x) for x in host[0])
    outs = [attention(q, k, v) for _ in range(8)]
    given = make(np.full_like(host[0][0], np.nan))
    for _ in range(4):
        attention(q, k, v, out=given)
    assert len({pointer(out) for out in [*outs, given]}) == 9
    for out in [*outs, given]:
        assert_right(out, *host[0])
    for array, new in zip((q, k, v), host[1], strict=True):
        cupy.asarray(array)[...] = cupy.asarray(new)  # the same memory
    cupy.cuda.Device().synchronize()
    attention(q, k, v, out=given)
    cupy.cuda.Device().synchronize()
    assert_right(given, *host[1])
    for out in outs:
        assert_right(out, *host[0])


def test_more_than_48_kb_of_dynamic_shared_memory():
    import cupy
    from numba import cuda, float32

    @cuda.jit
    def reverse(x):
        tile = cuda.shared.array(0, float32)
        for i in range(cuda.threadIdx.x, x.shape[0], cuda.blockDim.x):
            tile[i] = x[i]
        cuda.syncthreads()  # the whole tile is written before any of it is read back
        for i in range(cuda.threadIdx.x, x.shape[0], cuda.blockDim.x):
            x[i] = tile[x.shape[0] - 1 - i]

    limit = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    assert limit > 48 * 1024
    for size in (60 * 1024, limit, 50 * 1024, 60 * 1024):
        x = cupy.arange(size // 4, dtype=cupy.float32)
        Gpu().launch(reverse, 1, 256, x, shared_bytes=size)
        np.testing.assert_array_equal(x.get(), np.arange(size // 4, dtype=np.float32)[::-1])
    with pytest.raises(
        UnsupportedError, match=f"reverse needs {limit + 4} bytes .*this GPU has room for {limit}"
    ):
        Gpu().launch(reverse, 1, 256, x, shared_bytes=limit + 4)


@pytest.mark.parametrize("stage", NUMBA_STAGES, ids=lambda stage: stage.label)
def test_the_compiler_reports_what_the_gpu_loads(rng, stage):
    """The driver gives the same registers and local memory for the loaded kernel as Compiler without one."""
    import cupy

    class Recorder(Gpu):
        kernels = ()

        def launch(self, kernel, grid, block, *args, **options):
            super().launch(kernel, grid, block, *args, **options)
            self.kernels = [*self.kernels, kernel]

    shape = (1, 2, 64, stage.head_dims[0])
    on_gpu, on_host = cupy.zeros(shape, cupy.float16), np.zeros(shape, np.float16)
    recorder, compiler = Recorder(), Compiler(gpu.compute_capability())
    stage.launch(Problem(on_gpu, on_gpu, on_gpu), cupy.empty_like(on_gpu), recorder)
    stage.launch(Problem(on_host, on_host, on_host), np.empty_like(on_host), compiler)
    assert compiler.kernels
    for kernel, compiled in zip(dict.fromkeys(recorder.kernels), compiler.kernels, strict=True):
        assert compiled.registers in kernel.get_regs_per_thread().values()
        assert compiled.stack_bytes in kernel.get_local_mem_per_thread().values()


def test_mixed_places_are_named(rng):
    q, k, v = inputs(rng)
    with pytest.raises(ArgumentError, match="k is NumPy on the host but q is CuPy on GPU 0"):
        attention(make_cupy(q), k, v)
    with pytest.raises(ArgumentError, match="k is Numba on GPU 0 but q is CuPy on GPU 0"):
        attention(make_cupy(q), make_numba(k), make_cupy(v))
    with pytest.raises(ArgumentError, match="k is on the host but q is on GPU 0"):
        Problem(make_cupy(q), k, v)


def test_bad_out_is_not_written(rng):
    import cupy

    q, k, v = map(make_cupy, inputs(rng))
    with pytest.raises(ArgumentError, match="out overlaps v in memory"):
        attention(q, k, v, out=v)
    wrong = cupy.full(q.shape, 3, cupy.float64)
    with pytest.raises(ArgumentError, match="out has dtype float64: only float16 and float32 are accepted"):
        attention(q, k, v, out=wrong)
    assert (wrong == 3).all()


@WITH_TORCH
def test_torch_tensors_that_cannot_be_taken(rng):
    import torch

    q, k, v = map(make_torch, inputs(rng))
    with pytest.raises(ArgumentError, match=r"q requires grad.*q\.detach\(\)"):
        attention(q.clone().requires_grad_(), k, v)
    with pytest.raises(ArgumentError, match=r"k has dtype float8_e4m3fn.*k\.half\(\)"):
        attention(q, k.to(torch.float8_e4m3fn), v)
    with pytest.raises(ArgumentError, match="k has dtype bfloat16: q has float16, and they must be equal"):
        attention(q, k.to(torch.bfloat16), v)
    with pytest.raises(ArgumentError, match="v is PyTorch on the host but q is PyTorch on GPU 0"):
        attention(q, k, v.cpu())


@WITH_TORCH
def test_torch_on_the_host_runs_on_the_simulator(rng):
    import torch

    q, k, v = inputs(rng, heads=1, seq_q=9)
    out = attention(*map(torch.from_numpy, (q, k, v)))
    assert isinstance(out, torch.Tensor)
    assert out.device.type == "cpu"
    assert_right(out, q, k, v)


def test_the_default_stage_fits_this_gpu(rng):
    problem = Problem(*map(make_cupy, inputs(rng)))
    assert best_stage(problem).compute_capability <= gpu.compute_capability()


@EACH_KIND
def test_every_gpu_serves_its_own_arrays(rng, make):
    import cupy
    from numba import cuda

    q, k, v = inputs(rng)
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        if make is make_torch:
            import torch

            arrays = [torch.from_numpy(x).to(f"cuda:{device}") for x in (q, k, v)]
        else:
            with cuda.gpus[device], cupy.cuda.Device(device):
                arrays = [make(x) for x in (q, k, v)]
        out = attention(*arrays)
        assert adopt(out, "out").view.device.id == device
        with cuda.gpus[device]:
            assert_right(out, q, k, v)
