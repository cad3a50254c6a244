"""The backward pass on a GPU: every stage right, with each kind of array, captured, the same bits again."""

import importlib.util
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from branches.backward.running import drawn
from matrix import few
from test_attention_gpu import make_cupy, make_torch, to_host
from test_capture_gpu import EACH_KIND, child

from flashcore_numba import (
    attention,
    attention_backward,
    attention_varlen,
    attention_varlen_backward,
)
from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.branches.backward.ladder import DETERMINISTIC, LADDER
from flashcore_numba.branches.backward.operation import BACKWARD
from flashcore_numba.branches.backward.outputs import GRADIENTS
from flashcore_numba.checks import check_stage
from flashcore_numba.checks.cases import normal
from flashcore_numba.core import gpu
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.measure.entries import KeepScratch
from flashcore_numba.run.executor import Gpu
from flashcore_numba.stages.runs import runs

pytestmark = pytest.mark.gpu

HERE = gpu.compute_capability() or (9, 0)
RUNS = runs([stage for stage in LADDER if stage.runs_on(HERE)])
ASKED_FOR = [run for run in RUNS if run.is_default or DETERMINISTIC.get(run.stage) == run.variant]
EACH_RUN = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.label)
EACH_ASKED_FOR = pytest.mark.parametrize("run", ASKED_FOR, ids=lambda run: run.label)
MAKE = {"cupy": make_cupy, "torch": make_torch}
NAMES = ("dout", "q", "k", "v", "out", "lse")


@cache
def mission(head_dim, causal):
    """Inputs of the mission's size, fresh in each process, and the right gradients."""
    x = drawn(np.random.default_rng(), 512, 512, head_dim, heads=8 * 64 // head_dim, causal=causal)
    return x, BACKWARD.reference(x)


def placed(x):
    """Its problem on the GPU, and gradients that hold NaN."""
    import cupy

    problem = x.problem({name: cupy.asarray(array) for name, array in x.arrays.items()})
    targets = {each.name: cupy.full(each.shape(problem), cupy.nan, each.dtype(problem)) for each in GRADIENTS}
    cupy.cuda.get_current_stream().synchronize()
    return problem, targets


def wrong(found, reference):
    verdicts = {
        each.name: BACKWARD.judge(each, to_host(found[each.name]), reference, None) for each in GRADIENTS
    }
    return {name: verdict.reason for name, verdict in verdicts.items() if not verdict.passed}


@pytest.mark.parametrize("head_dim", [64, 128])
@EACH_RUN
def test_a_stage_is_right_at_the_mission_shape(run, head_dim):
    """On a stream of its own, whose third launch finds the scratch memory as the second left it."""
    import cupy

    for causal in (False, True):
        x, reference = mission(head_dim, causal)
        problem, targets = placed(x)
        stream = cupy.cuda.Stream(non_blocking=True)
        executor = KeepScratch(Gpu(stream))
        for _ in range(3):
            with stream:
                for each in targets.values():
                    each.fill(cupy.nan)
            executor.start()
            run.stage.launch(problem, executor=executor, variant=run.variant, **targets)
        stream.synchronize()
        assert not wrong(targets, reference), f"causal={causal}"


@pytest.mark.parametrize("run", few(RUNS, *ASKED_FOR), ids=lambda run: run.label)
def test_a_stage_passes_every_check(run):
    report = check_stage(run.stage, run.variant, backend="gpu")
    told = "\n".join(f"{failure.name}: {failure.message}" for failure in report.failures)
    assert report.passed, f"seed {report.seed}\n{told}"
    assert len(report.results) > 60


SHAPES = {  # what `normal` takes, and what the stage must serve
    "8 query heads on 1": ((1, 8, 130, 200, 64, 1), {}),
    "causal, 16 query heads on 2": ((2, 16, 257, 257, 64, 2), {"causal": True}),
    "causal, one K/V head, D=128": ((1, 4, 200, 333, 128, 1), {"causal": True}),
    "more rows than keys": ((1, 2, 300, 70, 64), {}),
    "causal, rows without keys": ((1, 2, 300, 70, 64), {"causal": True}),
    "one key": ((2, 2, 129, 1, 64), {}),
    "one row": ((2, 2, 1, 300, 64), {}),
    "one row and key, D=128": ((1, 1, 1, 1, 128), {}),
    "causal window": ((1, 4, 300, 300, 64, 2), {"causal": True, "features": Features(window=(70, 0))}),
    "window on both sides": ((1, 2, 200, 333, 128), {"features": Features(window=(3, 50))}),
    "no key in the window": ((1, 1, 400, 20, 64), {"features": Features(window=(5, 5))}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape, rng):
    """Of every stage that serves it, and of the call, which takes the first that does."""
    size, options = SHAPES[shape]
    given = dict(options)
    features = given.pop("features", None)
    f = normal(rng, *size, **given)
    x = backward_inputs(f.but(features=features) if features else f, rng, dlse=True)
    reference = BACKWARD.reference(x)
    problem, _ = placed(x)
    able = [run for run in ASKED_FOR if run.stage.why_not(problem) is None]
    assert able
    for run in able:
        found = called(x, make_cupy, stage=replace(run.stage, called=run.variant))
        assert not wrong(found, reference), run.label
    assert not wrong(called(x, make_cupy), reference)
    if "without keys" in shape or "no key" in shape:
        unseen = ~np.isfinite(x.lse)
        assert unseen.any() and not to_host(found["dq"])[unseen].any()


@pytest.mark.parametrize("size", [100, 1000])
@EACH_ASKED_FOR
def test_extreme_scores(run, size, rng):
    """Scores of about `size` at the most: most rows have one key with nearly all of the weight."""
    f = normal(rng, 1, 2, 150, 200, 64, causal=True)
    x = backward_inputs(f.but(q=FLOAT16.round(0.3 * size * f.q.astype(np.float32))), rng)
    found = called(x, make_cupy, stage=replace(run.stage, called=run.variant))
    assert not wrong(found, BACKWARD.reference(x))


def test_random_shapes(rng):
    """Of the call, with whatever stage it takes, in both types."""
    import cupy

    for _ in range(40):
        kv_heads, group = int(rng.integers(1, 4)), int(rng.choice([1, 2, 3, 8]))
        rows, keys = (int(n) for n in rng.choice([1, 2, 63, 64, 65, 127, 128, 129, 200, 385], 2))
        size = (int(rng.integers(1, 3)), kv_heads * group, rows, keys, int(rng.choice([64, 128])), kv_heads)
        window = tuple(int(n) for n in rng.choice([-1, 0, 10, 100], 2))
        softcap = float(rng.choice([0, 0, 0, 20]))
        element = BFLOAT16 if rng.random() < 0.3 else FLOAT16
        f = normal(rng, *size, causal=bool(rng.random() < 0.5), element=element)
        x = backward_inputs(f.but(features=Features(window, softcap)), rng, dlse=bool(rng.random() < 0.5))
        deterministic = bool(rng.random() < 0.3 and not softcap and element is FLOAT16)
        found = called(x, make_cupy, deterministic=deterministic)
        assert not wrong(found, BACKWARD.reference(x)), (x.label, element.name, deterministic)
    cupy.cuda.Device().synchronize()


def called(x: BackwardInputs, make, **options):
    """By name, what `attention_backward` returns of arrays that `make` makes."""
    f = x.forward
    arrays = {name: make(array) for name, array in x.arrays.items()}
    given = {name: arrays[name] for name in f.features.arrays}
    given |= {"window": f.features.window, "softcap": f.features.softcap, "dlse": arrays.get("dlse")}
    found = attention_backward(
        *(arrays[name] for name in NAMES), causal=f.causal, scale=f.scale, **given, **options
    )
    return dict(zip(("dq", "dk", "dv"), found, strict=True))


def token_by_token(make, array):
    """[B, H, S, D] of [B, S, H, D] in memory, as models have it."""
    return make(np.ascontiguousarray(array.swapaxes(1, 2))).swapaxes(1, 2)


@EACH_KIND
@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda element: element.name)
def test_there_and_back(kind, element, rng):
    """From what `attention` returned, on the stream of the caller, into arrays of the caller's layout."""
    make = MAKE[kind]
    f = normal(rng, 2, 4, 200, 300, 64, kv_heads=2, causal=True, scale=0.2, element=element)
    dout = element.round(rng.standard_normal(f.q.shape))
    dlse = rng.standard_normal(f.q.shape[:3]).astype(np.float32)
    q, k, v, dout_there = (token_by_token(make, array) for array in (f.q, f.k, f.v, dout))
    out, lse = attention(q, k, v, causal=True, scale=0.2, return_lse=True)
    targets = [token_by_token(make, np.full_like(array, np.nan)) for array in (f.q, f.k, f.v)]
    options = {"causal": True, "scale": 0.2, "dlse": make(dlse)}
    options |= dict(zip(("dq", "dk", "dv"), targets, strict=True))
    found = attention_backward(dout_there, q, k, v, out, lse, **options)
    assert all(one is other for one, other in zip(found, targets, strict=True))
    x = BackwardInputs(f, to_host(out), to_host(lse), dout, dlse)
    assert not wrong(dict(zip(("dq", "dk", "dv"), found, strict=True)), BACKWARD.reference(x))


@EACH_KIND
@pytest.mark.parametrize("deterministic", [False, True])
def test_there_and_back_of_packed_sequences(kind, deterministic, rng):
    """Some without rows, without keys, or without both; a window, and heads that share."""
    make = MAKE[kind]
    rows, keys = (130, 0, 40, 0, 200, 1), (0, 140, 300, 0, 20, 1)
    bounds = [np.array([0, *lengths]).cumsum().astype(np.int32) for lengths in (rows, keys)]
    f = normal(rng, 1, 4, sum(rows), sum(keys), 64, kv_heads=2, causal=True)
    f = f.but(features=Features((50, -1), cu_seqlens_q=bounds[0], cu_seqlens_k=bounds[1]))
    dout = FLOAT16.round(rng.standard_normal(f.q.shape))
    q, k, v, dout_there = (
        make(np.ascontiguousarray(array[0].swapaxes(0, 1))) for array in (f.q, f.k, f.v, dout)
    )
    options = {"causal": True, "window": (50, -1)}
    lengths = [make(each) for each in bounds]
    out, lse = attention_varlen(q, k, v, *lengths, return_lse=True, **options)
    found = attention_varlen_backward(
        dout_there, q, k, v, out, lse, *lengths, deterministic=deterministic, **options
    )
    x = BackwardInputs(f, to_host(out).swapaxes(0, 1)[None], to_host(lse)[None], dout)
    back = [to_host(each).swapaxes(0, 1)[None] for each in found]
    assert not wrong(dict(zip(("dq", "dk", "dv"), back, strict=True)), BACKWARD.reference(x))


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is missing")
@pytest.mark.parametrize("causal", [False, True])
def test_autograd_in_float64_gives_the_same(causal, rng):
    """The derivative of PyTorch's own products and softmax, from the same q, k and v."""
    import torch

    x = drawn(rng, 300, 300, heads=4, batch=2, kv_heads=2, causal=causal)
    f = x.forward
    leaves = [make_torch(array).double().requires_grad_() for array in (f.q, f.k, f.v)]
    q, k, v = leaves[0], *(each.repeat_interleave(2, 1) for each in leaves[1:])
    scores = q @ k.transpose(2, 3) / 8
    if causal:
        scores = scores.masked_fill(torch.ones(300, 300, device="cuda").triu(1) > 0, -torch.inf)
    right = torch.autograd.grad(scores.softmax(3) @ v, leaves, make_torch(x.dout).double())
    given = [make_torch(array) for array in (f.q, f.k, f.v)]
    out, lse = attention(*given, causal=causal, return_lse=True)
    found = attention_backward(make_torch(x.dout), *given, out, lse, causal=causal)
    for name, ours, exact in zip(("dq", "dk", "dv"), found, right, strict=True):
        off = (ours.double() - exact).norm() / exact.norm()
        assert off < 1e-3, name  # 3e-4 is what rounding P, dS and the results costs


CONTENDED = {  # B, H, S, D: blocks of keys that add to the same rows
    "1x8x512x64": (1, 8, 512, 64),
    "2x8x1024x64": (2, 8, 1024, 64),
    "2x4x1024x128": (2, 4, 1024, 128),
}


def times(count, call, gradients):
    """Of so many calls, which write `gradients`, how many gave other bits than the first and how many left
    elements unwritten: by name, counted on the GPU, beside other work in every third call.
    """
    import cupy

    bits = {name: each.view(cupy.uint16) for name, each in gradients.items()}
    side, noise = cupy.cuda.Stream(non_blocking=True), cupy.ones((2048, 2048), cupy.float32)
    cupy.cuda.get_current_stream().synchronize()
    first, differ = {}, {name: cupy.zeros(2, cupy.int32) for name in bits}
    for number in range(count):
        for each in bits.values():
            each.fill(0x7E57)  # a NaN in float16
        if number % 3 == 1:
            with side:
                noise.sum()
        call()
        for name, each in bits.items():
            if number == 0:
                first[name] = each.copy()
            differ[name][0] += (each != first[name]).any()
            differ[name][1] += (each == 0x7E57).any()
    return {name: tuple(int(n) for n in to_host(each)) for name, each in differ.items()}


def repeated(stage, size, causal, count, rng, **options):
    import cupy

    batch, heads, seq, head_dim = size
    arrays = [
        cupy.asarray(rng.standard_normal((batch, heads, seq, head_dim)).astype(np.float16)) for _ in range(4)
    ]
    q, k, v, dout = arrays
    out, lse = attention(q, k, v, causal=causal, return_lse=True)
    gradients = {name: cupy.empty_like(q) for name in ("dq", "dk", "dv")}
    options |= {"causal": causal, "stage": stage, **gradients}
    return times(count, lambda: attention_backward(dout, q, k, v, out, lse, **options), gradients)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", CONTENDED)
@pytest.mark.parametrize(
    "stage", [each for each in DETERMINISTIC if each.runs_on(HERE)], ids=lambda stage: stage.label
)
def test_deterministic_gives_the_same_bits_a_thousand_times(stage, size, causal, rng):
    count = 100 if stage.language == "Numba" else 1000  # a call of those takes a millisecond
    found = repeated(stage, CONTENDED[size], causal, count, rng, deterministic=True)
    assert found == dict.fromkeys(("dq", "dk", "dv"), (0, 0))


def test_atomics_differ_in_dq_alone(rng):
    """Which shows that the test above can fail."""
    found = repeated(replace(LADDER[0], called="atomics"), CONTENDED["2x8x1024x64"], False, 30, rng)
    assert found["dq"][0] > 0
    assert (found["dk"], found["dv"], found["dq"][1]) == ((0, 0), (0, 0), 0)


@EACH_KIND
@pytest.mark.parametrize(
    "group",
    [("wgmma:wgmma", "wgmma:deterministic"), ("one_launch:", "mma_sync:"), ("recompute:",)],
    ids=lambda group: group[0].partition(":")[0],
)
def test_the_first_thing_that_a_process_does(kind, group, rng):
    child(kind, "global", rng, *(f"backward/{run}" for run in group))
