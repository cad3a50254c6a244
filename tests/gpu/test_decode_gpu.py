"""Decoding on a GPU: every stage right, with each kind of array, in a graph while lengths grow, merged."""

import numpy as np
import pytest
from test_attention_gpu import make_cupy, make_torch, to_host
from test_capture_gpu import EACH_KIND

from flashcore_numba import attention_paged, merge
from flashcore_numba.branches.decode.cache import Cache
from flashcore_numba.branches.decode.inputs import JOINED, paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.merging import merged
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.checks import check_stage
from flashcore_numba.core import gpu
from flashcore_numba.core.element import ACCEPTED, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.stages.runs import runs

pytestmark = pytest.mark.gpu

HERE = gpu.compute_capability() or (9, 0)
STAGES = [stage for stage in LADDER if stage.runs_on(HERE)]
EACH_RUN = pytest.mark.parametrize("run", runs(STAGES), ids=lambda run: run.label)
EACH_STAGE = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
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
    report = check_stage(run.stage, run.variant, backend="gpu")
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
