"""Decoding on a GPU: every stage right, with each kind of array, in a graph while lengths grow, merged."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from capturing import library
from test_attention_gpu import make_cupy, make_torch, to_host
from test_capture_gpu import EACH_KIND

from flashcore_numba import attention, attention_paged, merge
from flashcore_numba.attention import best_stage
from flashcore_numba.branches.decode.cache import Cache
from flashcore_numba.branches.decode.few_rows import STAGES as STAGES_OF_FORWARD
from flashcore_numba.branches.decode.inputs import JOINED, paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.merging import merged
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import cut_by_all_lengths, own_type_alone
from flashcore_numba.checks import check
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.forward import FORWARD
from flashcore_numba.core import gpu
from flashcore_numba.core.element import ACCEPTED, E4M3, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.run import plans, workspace
from flashcore_numba.stages.runs import runs

pytestmark = pytest.mark.gpu

HERE = gpu.compute_capability() or (9, 0)
STAGES = [stage for stage in LADDER if stage.runs_on(HERE)]
ROOM = gpu.shared_limit() or shared_limit(HERE)
FIT = [run for run in runs(STAGES) if not run.stage.why_not_in(ROOM, run.stage.head_dims[0], run.variant)]
EACH_RUN = pytest.mark.parametrize("run", FIT, ids=lambda run: run.label)
OVERLAPPED = [replace(stage, called="overlapped") for stage in STAGES if "overlapped" in stage.variants]
EACH_STAGE = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
OF_BYTES = [stage for stage in STAGES if stage.limit is not own_type_alone]
INVARIANT = [stage for stage in STAGES if stage.limit is not cut_by_all_lengths]
MAKE = {"cupy": make_cupy, "torch": make_torch}
NAMES = ("q", "k_pool", "v_pool", "block_table", "lengths")


def wrong(found, reference):
    """The outputs that are not right, with what the judge says."""
    verdicts = [
        DECODE.judge(each, to_host(value), reference, None)
        for each, value in zip(DECODE.outputs, found, strict=False)
    ]
    return [verdict.reason for verdict in verdicts if not verdict.passed]


@EACH_RUN
def test_a_stage_passes_every_check(run):
    (report,) = check([run.stage], variants=run.variant and [run.variant], backend="gpu")
    told = "\n".join(f"{failure.name}: {failure.message}" for failure in report.failures)
    assert report.passed, f"seed {report.seed}\n{told}"
    assert len(report.results) > 50


@EACH_KIND
@EACH_STAGE
def test_a_call_is_right(stage, kind, rng):
    """The second call goes by the plan of the first; K and V may share an array."""
    make = MAKE[kind]
    sinks = rng.standard_normal(8).astype(np.float32)
    features = Features((400, -1), 10.0, sinks=sinks)
    for joined in JOINED:
        x = paged(rng, [1000, 0, 37, 500], 8, 2, 3, features=features, joined=joined)
        problem = x.problem(
            {name: make(each) for name, each in x.arrays.items()} if kind == "cupy" else x.arrays
        )
        arrays = [getattr(problem, name) for name in NAMES]
        arrays = arrays if kind == "cupy" else [make(np.ascontiguousarray(each)) for each in arrays]
        for _ in range(2):
            found = attention_paged(
                *arrays, window=(400, -1), softcap=10.0, sinks=make(sinks), stage=stage, return_lse=True
            )
            assert not wrong(found, DECODE.reference(x)), joined


@EACH_KIND
@pytest.mark.parametrize("stage", OF_BYTES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_a_call_over_pools_of_e4m3_is_right(stage, element, kind, rng):
    """Tensors of float8_e4m3fn, CuPy's bytes; a number and an array of scales; by a plan the second time."""
    make = MAKE[kind]
    scales = {"k_scale": 0.4, "v_scale": rng.uniform(0.5, 2, 2).astype(np.float32)}
    for head_dim in (64, 128, 256):
        x = paged(rng, [1000, 0, 37, 500], 8, 2, 3, head_dim, element=element, stored=E4M3, **scales)
        arrays = [make(getattr(x, name)) for name in NAMES]
        given = {"k_scale": 0.4, "v_scale": make(scales["v_scale"]), "stage": stage}
        for _ in range(2):
            assert not wrong(attention_paged(*arrays, **given, return_lse=True), DECODE.reference(x))
        stored = make(np.ascontiguousarray(x.k_pool).view(np.uint8)), make(x.v_pool.view(np.uint8))
        found = attention_paged(arrays[0], *stored, *arrays[3:], **given, return_lse=True)
        assert not wrong(found, DECODE.reference(x))


@pytest.mark.parametrize("stage", OF_BYTES, ids=lambda stage: stage.name)
def test_every_byte_is_what_it_stands_for(stage, rng):
    """One key of one request: the output is its value."""
    import cupy

    every = np.arange(256, dtype=np.uint8).view(E4M3.dtype)
    v = np.tile(every, 2).reshape(8, 1, 1, 64)
    q, k = cupy.zeros((8, 1, 1, 64), cupy.float16), cupy.zeros(v.shape, cupy.uint8)
    table, lengths = cupy.arange(8, dtype=cupy.int32)[:, None], cupy.ones(8, cupy.int32)
    found = attention_paged(q, k, cupy.asarray(v.view(np.uint8)), table, lengths, stage=stage).get()
    assert np.array_equal(found.reshape(-1), v.reshape(-1).astype(np.float16), equal_nan=True)


@EACH_STAGE
def test_a_graph_serves_lengths_that_grow(stage, rng):
    """Captured once, replayed while requests grow, end and give their pages to others."""
    import cupy

    cache = Cache(rng, FLOAT16, 3, 4, 64)
    x = cache.ask(2)
    arrays = {name: cupy.asarray(getattr(x, name)) for name in NAMES}
    out = cupy.full(x.q.shape, cupy.nan, cupy.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        attention_paged(*arrays.values(), stage=stage, out=out)
        graph = stream.end_capture()
    for _ in range(20):
        for request in range(3):
            cache.append(request, int(rng.integers(1, 30)))
        x = cache.ask(2)
        for name, array in arrays.items():
            array.set(getattr(x, name))
        out.fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert not wrong([out], cache.right(x))


@EACH_STAGE
def test_calls_and_graphs_that_run_at_the_same_time(stage, rng):
    """On a stream each, again and again: none meets the counters or the parts of another."""
    import cupy

    lib = library("cupy")
    inputs = [paged(rng, rng.integers(1000, 6000, 3).tolist(), 8, 2, 2, page=64) for _ in range(3)]
    arrays = [[cupy.asarray(getattr(x, name)) for name in NAMES] for x in inputs]
    outs = [cupy.empty(x.q.shape, cupy.float16) for x in inputs]
    right = [DECODE.reference(x) for x in inputs]

    def call(number):
        attention_paged(*arrays[number], stage=stage, out=outs[number])

    lib.synchronize()
    graphs = [lib.captured(lambda _, number=number: call(number), "global")[0] for number in range(2)]
    streams = [lib.stream() for _ in inputs]
    for _ in range(4):
        for out in outs:
            out.fill(cupy.nan)
        lib.synchronize()
        for _ in range(20):
            for graph, stream in zip(graphs, streams[:2], strict=True):
                lib.replay(graph, stream)
            with lib.on(streams[2]):
                call(2)
        lib.synchronize()
        for out, reference in zip(outs, right, strict=True):
            assert not wrong([out], reference)
    for memory in workspace._memory_of_counters:
        whole = cupy.ndarray((memory.size // 4,), np.uint32, cupy.cuda.MemoryPointer(memory, 0))
        assert not whole.any()


def on_a_stream(lib, queue, captured):
    """What runs `queue` to its end on a stream of its own, by a graph or call by call."""
    plans.forget()
    stream = lib.stream()
    lib.synchronize()
    with lib.on(stream):
        queue(None)  # compiles
    graph = lib.captured(queue, "global", stream)[0] if captured else None

    def run():
        lib.synchronize()
        with lib.on(stream):
            lib.replay(graph, stream) if captured else queue(None)
        lib.synchronize()

    return run


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("stage", OVERLAPPED, ids=lambda stage: stage.name)
def test_a_launch_that_begins_early_waits_for_what_it_reads(stage, captured, rng):
    """Three calls, each with the output of the one before as its q; other kernels before and after them."""
    import cupy

    lib = library("cupy")
    x = paged(rng, [3000, 0, 17, 900], 8, 2, 4)
    given = cupy.asarray(x.q)
    q, *others = [cupy.asarray(getattr(x, name)) for name in NAMES]
    rows = [q, *(cupy.empty_like(q) for _ in range(3))]
    last = cupy.empty_like(q)

    def queue(_):
        cupy.multiply(given, 1, out=q)
        for before, after in pairwise(rows):
            attention_paged(before, *others, stage=stage, out=after)
        cupy.multiply(rows[-1], 1, out=last)

    run = on_a_stream(lib, queue, captured)
    for _ in range(5):
        for array in (*rows, last):
            array.fill(cupy.nan)
        run()
        for before, after in pairwise(rows):
            assert not wrong([after], DECODE.reference(x.but(q=before.get())))
        assert (last == rows[-1]).all()


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("stage", OVERLAPPED, ids=lambda stage: stage.name)
def test_a_launch_that_begins_early_waits_for_scales(stage, captured, rng):
    """They come from the kernel just before, others in each run."""
    import cupy

    lib = library("cupy")
    scales = {name: rng.uniform(0.5, 2, 2).astype(np.float32) for name in ("k_scale", "v_scale")}
    x = paged(rng, [3000, 0, 17, 900], 8, 2, 4, stored=E4M3, **scales)
    arrays = [make_cupy(getattr(x, name)) for name in NAMES]
    factor = cupy.ones(1, np.float32)
    given = {name: cupy.asarray(value) for name, value in scales.items()}
    written = {name: cupy.empty_like(value) for name, value in given.items()}
    out = cupy.empty_like(arrays[0])

    def queue(_):
        for name, value in given.items():
            cupy.multiply(value, factor, out=written[name])
        attention_paged(*arrays, **written, stage=stage, out=out)

    run = on_a_stream(lib, queue, captured)
    for each in (1.0, 0.25, 3.0):
        factor.fill(each)
        run()
        now = {name: np.float32(each) * value for name, value in scales.items()}
        assert not wrong([out], DECODE.reference(x.but(**now)))


@EACH_STAGE
def test_pools_of_more_elements_than_an_int_counts(stage, rng):
    """All keys are past 2^31 elements of either pool."""
    import cupy

    x = paged(rng, [90, 33, 0], 4, 2, 2, 128)
    pages, *page = x.k_pool.shape
    far = -(-(2**31) // int(np.prod(page)))
    table = np.where((x.block_table >= 0) & (x.block_table < pages), x.block_table + far, x.block_table)
    pools = [cupy.empty((far + pages, *page), cupy.float16) for _ in range(2)]
    for pool, value in zip(pools, (x.k_pool, x.v_pool), strict=True):
        pool[far:] = cupy.asarray(value)
    q, numbers, lengths = map(cupy.asarray, (x.q, table.astype(np.int32), x.lengths))
    found = attention_paged(q, *pools, numbers, lengths, stage=stage, return_lse=True)
    assert not wrong(found, DECODE.reference(x))
    del pool, pools
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("stage", INVARIANT, ids=lambda stage: stage.name)
def test_a_request_has_its_bits_alone_and_in_a_batch(stage, rng):
    import cupy

    x = paged(rng, [3000, 17, 0, 900, 64], 16, 2, 2)

    def called(x):
        arrays = [cupy.asarray(getattr(x, name)) for name in NAMES]
        return attention_paged(*arrays, stage=stage, batch_invariant=True).get()

    together = called(x)
    for number in range(len(x.lengths)):
        width = max(1, -(-int(x.lengths[number]) // x.page))
        one = x.only([number])
        alone = called(one.but(block_table=one.block_table[:, :width].copy()))
        assert np.array_equal(alone[0].view(np.uint16), together[number].view(np.uint16)), number


@EACH_KIND
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_merge(kind, element, rng):
    make = MAKE[kind]
    outs = [element.round(rng.standard_normal((2, 4, 300, 128))) for _ in range(2)]
    lses = [(5 * rng.standard_normal((2, 4, 300))).astype(np.float32) for _ in range(2)]
    lses[0][0, 0] = lses[1][0, 0] = -np.inf
    outs[0][0, 0] = outs[1][0, 0] = 0
    out, lse = map(to_host, merge(make(outs[0]), make(lses[0]), make(outs[1]), make(lses[1])))
    exact = [each.astype(np.float64) for each in (outs[0], lses[0], outs[1], lses[1])]
    right, right_lse = merged(*exact)
    allowed = 2 * element.unit_roundoff * np.abs(right) + 1e-6
    assert (np.abs(out.astype(np.float64) - right) <= allowed).all()
    some = np.isfinite(right_lse)
    assert np.allclose(lse[some], right_lse[some], rtol=0, atol=1e-5) and np.isneginf(lse[~some]).all()


@EACH_KIND
@pytest.mark.parametrize("case", ["one token", "tokens and features", "many rows"])
def test_attention_of_few_rows_decodes(case, kind, rng):
    """`attention` takes a stage of decoding there, also by its plan, and in a graph."""
    import cupy

    rows, features = {
        "one token": (1, Features()),
        "tokens and features": (
            4,
            Features((900, -1), 10.0, sinks=rng.standard_normal(8).astype(np.float32)),
        ),
        "many rows": (9, Features(seqused_k=np.array([5, 3000, 0], np.int32))),
    }[case]
    f = normal(rng, 3, 8, rows, 3000, 128, 2, causal=True).but(features=features)
    reference = FORWARD.reference(f)
    make = MAKE[kind]
    given = {name: make(each) for name, each in f.arrays.items()}
    arrays, added = [given.pop(name) for name in "qkv"], given
    assert (
        best_stage(f.problem({name: cupy.asarray(each) for name, each in f.arrays.items()}))
        in STAGES_OF_FORWARD
    )
    for _ in range(2):
        found = attention(
            *arrays, causal=True, window=features.window, softcap=features.softcap, **added, return_lse=True
        )
        verdicts = [
            FORWARD.judge(each, to_host(x), reference, None)
            for each, x in zip(FORWARD.outputs, found, strict=True)
        ]
        assert all(verdict.passed for verdict in verdicts), [verdict.reason for verdict in verdicts]
    if kind == "cupy":
        out, stream = cupy.full(f.q.shape, cupy.nan, cupy.float16), cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            attention(
                *arrays, causal=True, window=features.window, softcap=features.softcap, **added, out=out
            )
            graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        assert FORWARD.judge(FORWARD.outputs[0], to_host(out), reference, None).passed
