"""Captures calls in CUDA graphs, as the first thing that its process does with FlashCore: of attention(), and
of attention_backward().

python capturing.py KIND MODE SEED RUN...: KIND is cupy or torch, MODE what CUDA calls the capture mode, a RUN
"stage:variant", "-" for no variant, or "backward/stage:variant". Prints what was wrong and ends with status
1, or ends with 0.
"""

import gc
import sys
from collections import Counter
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

MODES = ("global", "thread_local", "relaxed")
KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
REPLAYS = 3
TOLERANCE = 4e-3
# B, H, S_q, S_k, D: more pieces of work than multiprocessors; keys that are worth splitting; the other width.
SHAPES_BACK = ((2, 8, 512, 512, 64), (1, 4, 130, 300, 128))
RELATIVE = 2e-3  # of whole gradients: rounding P, dS and the results costs 3e-4
SHAPES = ((2, 34, 512, 512, 64), (1, 4, 130, 8192, 64), (1, 70, 300, 300, 128))


class CuPy:
    """Arrays, streams and graphs of CuPy."""

    def __init__(self):
        import cupy

        self.cupy = cupy

    def array(self, x):
        return self.cupy.asarray(x)

    def empty(self, shape):
        return self.cupy.full(shape, self.cupy.nan, self.cupy.float16)

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    @contextmanager
    def on(self, stream):
        with stream:
            yield stream.ptr

    def captured(self, call, mode, stream=None):
        """The graph of what `call(handle of the stream)` queues, and what it returned."""
        stream = stream or self.stream()
        gc.collect()  # a graph of CuPy's that is destroyed during a capture ends it
        with stream:
            stream.begin_capture(MODES.index(mode))
            try:
                result = call(stream.ptr)
            finally:
                graph = stream.end_capture()
        return graph, result

    def replay(self, graph, stream):
        graph.launch(stream)

    def fill(self, array, value):
        array[...] = value

    def synchronize(self):
        self.cupy.cuda.Device().synchronize()

    def view(self, array):
        return array


class Torch(CuPy):
    """The same of PyTorch, which is all that is imported before the first call."""

    def __init__(self):
        import torch

        self.torch = torch

    def array(self, x):
        return self.torch.from_numpy(np.ascontiguousarray(x)).cuda()

    def empty(self, shape):
        return self.torch.full(shape, float("nan"), dtype=self.torch.float16, device="cuda")

    def stream(self):
        return self.torch.cuda.Stream()

    @contextmanager
    def on(self, stream):
        with self.torch.cuda.stream(stream):
            yield stream.cuda_stream

    def captured(self, call, mode, stream=None):
        graph, stream = self.torch.cuda.CUDAGraph(), stream or self.stream()
        gc.collect()
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            result = call(stream.cuda_stream)
        return graph, result

    def replay(self, graph, stream):
        with self.torch.cuda.stream(stream):
            graph.replay()

    def fill(self, array, value):
        array.copy_(value) if isinstance(value, self.torch.Tensor) else array.fill_(value)

    def synchronize(self):
        self.torch.cuda.synchronize()

    def view(self, array):
        import cupy

        return cupy.asarray(array)


def library(kind):
    return CuPy() if kind == "cupy" else Torch()


def stage_of(run):
    """The stage of "15:in_sequence", of which `attention()` runs that variant."""
    from flashcore_numba import LADDER

    name, _, variant = run.partition(":")
    if "/" in name:
        from flashcore_numba.branches.find import find

        stage = find(name)
    else:
        stage = LADDER[int(name) - 1]
    return stage if variant in ("", "-") else replace(stage, called=variant)


def normal(rng, shape):
    batch, heads, seq_q, seq_k, head_dim = shape
    return [
        rng.standard_normal((batch, heads, n, head_dim)).astype(np.float16) for n in (seq_q, seq_k, seq_k)
    ]


def expected(q, k, v, causal):
    """In float64, of CuPy arrays."""
    import cupy

    q, k, v = (x.astype(cupy.float64) for x in (q, k, v))
    s = q @ k.swapaxes(2, 3) / q.shape[3] ** 0.5
    if causal:
        rows, keys = s.shape[2:]
        s = cupy.where(cupy.arange(keys) <= cupy.arange(rows)[:, None] + keys - rows, s, -cupy.inf)
    p = cupy.exp(s - s.max(3, keepdims=True))
    return p @ v / p.sum(3, keepdims=True)


def error(library, out, arrays, causal):
    """How far `out` is from float64; NaN counts as infinite."""
    import cupy

    q, k, v = map(library.view, arrays)
    found = cupy.abs(library.view(out).astype(cupy.float64) - expected(q, k, v, causal)).max()
    return float(cupy.where(cupy.isnan(found), cupy.inf, found))


def nodes(handle):
    """How many nodes of each type the graph has that the stream of this handle makes."""
    from cuda_reference.driver import driver, graph_of

    _, graph = graph_of(handle)
    count, kind = c_size_t(), c_int()
    assert driver().cuGraphGetNodes(c_void_p(graph), None, byref(count)) == 0
    found = (c_void_p * count.value)()
    assert driver().cuGraphGetNodes(c_void_p(graph), found, byref(count)) == 0
    types = Counter()
    for node in found:
        assert driver().cuGraphNodeGetType(c_void_p(node), byref(kind)) == 0
        types[kind.value] += 1
    return dict(types)


def launches(stage, shape, causal):
    """How many kernels the variant of the stage launches that `attention()` runs, by its own launcher."""
    import cupy

    from flashcore_numba.core.problem import Problem
    from flashcore_numba.course.launches import DryRun

    batch, heads, seq_q, seq_k, head_dim = shape

    def stand_in(rows):
        return np.lib.stride_tricks.as_strided(
            np.zeros(head_dim, np.float16), (batch, heads, rows, head_dim), (0, 0, 0, 2)
        )

    q, k, out = stand_in(seq_q), stand_in(seq_k), stand_in(seq_q)
    recorder = DryRun(cupy.cuda.Device().attributes["MultiProcessorCount"])
    stage.launch(Problem(q, k, k, causal=causal), out, recorder, variant=stage.called)
    return len(recorder.launches)


def one(library, stage, shape, causal, mode, rng, wrong):
    """Capture the first call with an output of its own and the second with one given; replay both."""
    from flashcore_numba import attention

    arrays = [library.array(x) for x in normal(rng, shape)]
    given = library.empty(tuple(arrays[0].shape))
    library.synchronize()

    def call(out):
        def queue(handle):
            result = attention(*arrays, causal=causal, stage=stage, out=out)
            return result, nodes(handle)

        return queue

    what = f"{stage.label} {stage.called or ''} {'x'.join(map(str, shape))} causal={causal} {mode}"
    for out in (None, given):
        graph, (result, types) = library.captured(call(out), mode)
        kernels = launches(stage, shape, causal)
        if types != {KERNEL: kernels}:
            wrong.append(f"{what}: the graph's nodes by type are {types}, {kernels} kernels were expected")
        for replay in range(REPLAYS):
            for array, new in zip(arrays, normal(rng, shape), strict=True):
                library.fill(array, library.array(new))
            library.fill(result, float("nan"))
            library.synchronize()
            stream = library.stream()
            library.replay(graph, stream)
            library.synchronize()
            off = error(library, result, arrays, causal)
            if not off <= TOLERANCE:
                wrong.append(
                    f"{what}: replay {replay}, out {'given' if out is given else 'made'}: off by {off}"
                )
    allocated = allocations(library, lambda: attention(*arrays, causal=causal, stage=stage, out=given))
    numba = stage.language == "Numba"  # their scratch memory is CuPy's pool's, which asks the driver once
    if allocated.device or (allocated.pool and not numba) or allocated.torch:
        wrong.append(f"{what}: later calls allocate: {allocated}")


def launches_back(stage, shape, causal):
    """The same of the backward pass."""
    import cupy

    from flashcore_numba.branches.backward.problem import BackwardProblem
    from flashcore_numba.core.problem import Problem
    from flashcore_numba.course.launches import DryRun

    batch, heads, seq_q, seq_k, head_dim = shape
    q, k = (np.zeros((batch, heads, rows, head_dim), np.float16) for rows in (seq_q, seq_k))
    problem = BackwardProblem(Problem(q, k, k, causal=causal), q, np.zeros(q.shape[:3], np.float32), q)
    recorder = DryRun(cupy.cuda.Device().attributes["MultiProcessorCount"])
    targets = {"dq": q.copy(), "dk": k.copy(), "dv": k.copy()}
    stage.launch(problem, executor=recorder, variant=stage.called, **targets)
    return len(recorder.launches)


def drawn_back(rng, shape, causal):
    """dout, q, k, v, out, lse on the host, and the gradients in float64."""
    q, k, v = normal(rng, shape)
    dout = rng.standard_normal(q.shape).astype(np.float16)
    wide_q, wide_k, wide_v, wide_dout = (x.astype(np.float64) for x in (q, k, v, dout))
    scale, (rows, keys) = shape[4] ** -0.5, shape[2:4]
    s = scale * wide_q @ wide_k.swapaxes(2, 3)
    if causal:
        s = np.where(np.arange(keys) <= np.arange(rows)[:, None] + keys - rows, s, -np.inf)
    most = s.max(3, keepdims=True)
    lse = most + np.log(np.exp(s - most).sum(3, keepdims=True))
    p = np.exp(s - lse)
    out = p @ wide_v
    ds = p * (wide_dout @ wide_v.swapaxes(2, 3) - (wide_dout * out).sum(3, keepdims=True))
    right = scale * ds @ wide_k, scale * ds.swapaxes(2, 3) @ wide_q, p.swapaxes(2, 3) @ wide_dout
    return (dout, q, k, v, out.astype(np.float16), lse[..., 0].astype(np.float32)), right


def one_back(library, stage, shape, causal, mode, rng, wrong):
    """As `one`, for the gradients."""
    from flashcore_numba import attention_backward

    arrays = [library.array(x) for x in drawn_back(rng, shape, causal)[0]]
    targets = {"dq": arrays[1], "dk": arrays[2], "dv": arrays[3]}
    targets = {name: library.empty(tuple(array.shape)) for name, array in targets.items()}
    library.synchronize()

    def call(given):
        def queue(handle):
            return attention_backward(*arrays, causal=causal, stage=stage, **given), nodes(handle)

        return queue

    what = f"{stage.label} {stage.called or ''} {'x'.join(map(str, shape))} causal={causal} {mode}"
    for given in ({}, targets):
        graph, (results, types) = library.captured(call(given), mode)
        kernels = launches_back(stage, shape, causal)
        if types != {KERNEL: kernels}:
            wrong.append(f"{what}: the graph's nodes by type are {types}, {kernels} kernels were expected")
        for replay in range(REPLAYS):
            new, right = drawn_back(rng, shape, causal)
            for array, value in zip(arrays, new, strict=True):
                library.fill(array, library.array(value))
            for result in results:
                library.fill(result, float("nan"))
            library.synchronize()
            library.replay(graph, library.stream())
            library.synchronize()
            for name, result, exact in zip(targets, results, right, strict=True):
                off = np.linalg.norm(library.view(result).get() - exact) / np.linalg.norm(exact)
                if not off <= RELATIVE:
                    where = "given" if given else "made"
                    wrong.append(f"{what}: replay {replay}, {name} {where}: off by {off:.2g} of its size")


def allocations(library, call):
    """How often five calls allocate, after three: from the device, from CuPy's pool, from PyTorch."""
    import cupy

    class Hook(cupy.cuda.MemoryHook):
        name = "count"
        device = pool = 0

        def alloc_preprocess(self, **_):
            self.device += 1

        def malloc_preprocess(self, **_):
            self.pool += 1

    def past_the_pool(size, memory=cupy.cuda.Memory):
        hook.device += 1
        return memory(size)

    def torchs():
        torch = sys.modules.get("torch")
        return torch.cuda.memory_stats().get("allocation.all.allocated", 0) if torch else 0

    with library.on(library.stream()):
        for _ in range(3):
            call()
        before, hook, memory = torchs(), Hook(), cupy.cuda.Memory
        cupy.cuda.Memory = past_the_pool
        try:
            with hook:
                for _ in range(5):
                    call()
        finally:
            cupy.cuda.Memory = memory
        library.synchronize()
    return SimpleNamespace(device=hook.device, pool=hook.pool, torch=torchs() - before)


def main(kind, mode, seed, *runs):
    rng, wrong, lib = np.random.default_rng(int(seed)), [], library(kind)
    for run in runs:
        stage = stage_of(run)
        capture, shapes = (one, SHAPES) if stage.number else (one_back, SHAPES_BACK)
        for shape in shapes:
            for causal in (True, False):
                if shape[4] not in stage.head_dims:
                    continue
                capture(lib, stage, shape, causal, mode, rng, wrong)
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
