"""Plans of attention(), without a GPU: a stand-in for CuPy and the driver notes what a launch was given."""

import dataclasses
import gc
import itertools
import re
import struct
import threading
import types
import weakref

import numpy as np
import pytest
from stub_gpu import SHAPE, three

from cuda_reference import driver, packed
from flashcore_numba import LADDER, ArgumentError, attention, attention_varlen
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.features import ARRAYS
from flashcore_numba.run import executor, plans, workspace
from flashcore_numba.stages.tuning import dispatch

CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]
NUMBA = next(stage for stage in LADDER if stage.language == "Numba")


def both_ways(stub, *arrays, **options):
    """What a planned call launches, and what the long way does with the very same memory."""
    stub.launched.clear()
    plans._spares.clear()
    workspace._idle.clear()
    top = stub.top
    attention(*arrays, **options)
    fast, stub.top = list(stub.launched), top
    plans._plans.clear()
    stub.long_way.clear()
    attention(*arrays, **options)
    return fast, stub.long_way


@pytest.mark.parametrize("stage", CUDA, ids=lambda stage: stage.label)
@pytest.mark.parametrize(
    "shape, kv_shape",
    [(SHAPE, None), ((2, 4, 130, 64), (2, 2, 4096, 64)), ((4, 32, 700, 64), None)],
    ids=["mission", "few rows, many keys", "more blocks than places"],
)
def test_a_plan_launches_what_the_long_way_does(stub, stage, shape, kv_shape):
    for options in ({}, {"causal": True, "scale": 0.3, "return_lse": True}):
        plans.forget()
        stub.launched.clear()
        attention(*three(stub, shape, kv_shape), stage=stage, **options)
        assert not stub.launched
        attention(*three(stub, shape, kv_shape), stage=stage, **options)
        stub.stream = 9
        fast, slow = both_ways(stub, *three(stub, shape, kv_shape), stage=stage, **options)
        assert fast
        assert fast == slow


def feature(stub, name, batch=1, heads=8):
    """An array of the size that a problem of one batch or so many sequences has for it."""
    sizes = {"sinks": heads, "alibi_slopes": heads, "seqused_k": batch}
    return stub.array((sizes.get(name, batch + 1),), dtype=ARRAYS[name])


GIVEN = [("sinks",), ("alibi_slopes",), ("seqused_k",), ("sinks", "alibi_slopes", "seqused_k")]


@pytest.mark.parametrize("names", GIVEN, ids=" ".join)
@pytest.mark.parametrize("stage", [13, 15])
def test_arrays_of_features_are_put_in_like_the_others(stub, stage, names):
    def features():
        return {name: feature(stub, name) for name in names}

    for options in ({}, {"causal": True, "return_lse": True, "window": (100, 0), "out": stub.array()}):
        plans.forget()
        attention(*three(stub), stage=stage, **features(), **options)
        assert len(plans._plans) == 1
        given = features()
        fast, slow = both_ways(stub, *three(stub), stage=stage, **given, **options)
        assert fast and fast == slow
        for array in given.values():
            assert struct.pack("Q", array.data.ptr) in fast[0][3]


@pytest.mark.parametrize("stage", [13, 15])
@pytest.mark.parametrize("used", [False, True])
def test_packed_sequences_have_plans(stub, stage, used):
    """cu_seqlens of queries and of keys are two arguments, also where they are one array."""

    def call(one=True, **options):
        q, k, v = (stub.array((600, heads, 64)) for heads in (8, 2, 2))
        bounds = feature(stub, "cu_seqlens_q", 3)
        others = bounds if one else feature(stub, "cu_seqlens_k", 3)
        lengths = {"seqused_k": feature(stub, "seqused_k", 3)} if used else {}
        return attention_varlen(q, k, v, bounds, others, stage=stage, causal=True, **lengths, **options)

    call(return_lse=True)
    top = stub.top
    workspace.forget()
    out, lse = call(False, return_lse=True)
    assert (out.shape, lse.shape) == ((600, 8, 64), (8, 600))
    fast, stub.top = list(stub.launched), top
    plans.forget()
    stub.long_way.clear()
    call(False, return_lse=True)
    assert fast and fast == stub.long_way


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("stage", [12, 15])
def test_a_prior_and_a_float32_output_have_plans(stub, stage, in_place):
    """An output that is the prior's has a plan of its own: only there may they overlap."""

    def options():
        o, lse = (stub.array(shape, dtype=np.float32) for shape in (SHAPE, SHAPE[:3]))
        out = o if in_place else stub.array(dtype=np.float32)
        return {"prior": (o, lse), "out": out, "return_lse": True}

    attention(*three(stub), stage=stage, **options())
    assert len(plans._plans) == 1
    given = options()
    fast, slow = both_ways(stub, *three(stub), stage=stage, **given)
    assert fast and fast == slow
    for array in (*given["prior"], given["out"]):
        assert struct.pack("Q", array.data.ptr) in fast[0][3]
    attention(*three(stub), stage=stage, **options() | {"out": stub.array()})
    assert len(plans._plans) == 2


@pytest.mark.parametrize("stage", [15, 16])
def test_a_norm_and_a_gate_have_plans(stub, stage):
    """The eps of the norm is part of what a plan is for."""

    def options(eps=1e-6):
        return {"head_norm": (stub.array((64,), dtype=np.float32), eps), "gate": stub.array()}

    attention(*three(stub), stage=stage, **options())
    assert len(plans._plans) == 1
    given = options()
    fast, slow = both_ways(stub, *three(stub), stage=stage, **given)
    assert fast and fast == slow
    for array in (given["head_norm"][0], given["gate"]):
        assert struct.pack("Q", array.data.ptr) in fast[0][3]
    attention(*three(stub), stage=stage, **options(1e-5))
    attention(*three(stub), stage=stage, gate=stub.array())
    assert len(plans._plans) == 3
    with pytest.raises(ArgumentError, match="out overlaps gate"):
        attention(*three(stub), stage=stage, **given, out=given["gate"])


def test_a_plan_does_not_hide_a_bad_prior(stub):
    arrays, o = three(stub), stub.array(dtype=np.float32)
    lse = stub.array(SHAPE[:3], dtype=np.float32)
    for _ in range(2):
        attention(*arrays, stage=15, prior=(o, lse), out=stub.array(dtype=np.float32))
    launched = len(stub.launched)
    assert launched
    odd, over = stub.array(dtype=np.float32), stub.array(dtype=np.float32)
    odd.data.ptr, over.data.ptr = odd.data.ptr + 4, o.data.ptr + 16
    for words, options in {
        r"prior\[0\] has strides .* or an odd address": {"prior": (odd, lse)},
        r"out overlaps prior\[0\]": {"out": over},
    }.items():
        with pytest.raises(ArgumentError, match=words):
            attention(*arrays, stage=15, **{"prior": (o, lse), "out": stub.array(dtype=np.float32)} | options)
    assert len(stub.launched) == launched


def test_another_feature_is_another_plan(stub):
    arrays, sinks, slopes = three(stub), feature(stub, "sinks"), feature(stub, "alibi_slopes")
    used, per_batch = feature(stub, "seqused_k"), stub.array((1, 8), dtype=np.float32)
    calls = [
        {"sinks": sinks},
        {"alibi_slopes": slopes},
        {"alibi_slopes": per_batch},
        {"seqused_k": used},
        {"sinks": sinks, "alibi_slopes": slopes},
        {},
    ]
    for options in calls * 2:
        attention(*arrays, stage=13, **options)
    assert len(plans._plans) == len(calls) == len(stub.launched)


def test_a_plan_does_not_hide_a_bad_feature(stub):
    arrays = three(stub)
    good = {"sinks": feature(stub, "sinks"), "window": (1, 1)}
    for _ in range(2):
        attention(*arrays, stage=15, **good)
    elsewhere = feature(stub, "sinks")
    elsewhere.device.id = elsewhere.data.device_id = 1
    bad = {
        "sinks has dtype float64": {"sinks": stub.array((8,), dtype=np.float64)},
        "sinks has shape": {"sinks": stub.array((4,), dtype=np.float32)},
        "sinks has strides": {"sinks": stub.array((8,), strides=(8,), dtype=np.float32)},
        "sinks is CuPy on GPU 1": {"sinks": elsewhere},
        "sinks is NumPy on the host": {"sinks": np.zeros(8, np.float32)},
        "window is": {"window": (True, 1)},
    }
    for words, options in bad.items():
        with pytest.raises(ArgumentError, match=words):
            attention(*arrays, stage=15, **good | options)
    assert len(stub.launched) == 1


def test_a_feature_that_requires_grad_is_refused_after_a_plan(stub, fake_torch):
    q, k, v = (fake_torch.empty(SHAPE, "torch.float16", 0) for _ in range(3))
    sinks = fake_torch.empty((8,), "torch.float32", 0)
    for _ in range(2):
        attention(q, k, v, stage=15, sinks=sinks)
    assert len(stub.launched) == 1
    sinks.requires_grad = True
    with pytest.raises(ArgumentError, match="sinks requires grad"):
        attention(q, k, v, stage=15, sinks=sinks)


def test_values_of_another_head_dimension(stub):
    """The output has the columns of v."""
    q, k, v = stub.array((1, 8, 512, 128)), stub.array((1, 8, 512, 128)), stub.array((1, 8, 512, 64))
    for _ in range(3):
        assert attention(q, k, v, stage=15).shape == (1, 8, 512, 64)
    assert len(stub.launched) == 2


def test_the_same_array_twice_is_two_arguments(stub):
    x = stub.array()
    attention(x, x, x, stage=CUDA[-1])
    fast, slow = both_ways(stub, *three(stub), stage=CUDA[-1])
    assert fast == slow


def test_out_is_written_and_must_not_overlap(stub):
    q, k, v = three(stub)
    attention(q, k, v, stage=12, out=stub.array())
    out = stub.array()
    assert attention(q, k, v, stage=12, out=out) is out
    assert stub.launched[0][3][3] == struct.pack("Q", out.data.ptr)
    with pytest.raises(ArgumentError, match="out overlaps v in memory"):
        attention(q, k, v, stage=12, out=v)
    assert len(stub.launched) == 1


@pytest.mark.parametrize("name", ["sinks", "alibi_slopes", "seqused_k"])
def test_out_must_not_overlap_what_a_feature_reads(stub, name):
    """The first call of a layout says it, and one that has a plan."""
    arrays, given = three(stub), feature(stub, name)
    over = stub.array(data=given.data)
    for out in (over, stub.array(), stub.array(), over):
        if out is not over:
            assert attention(*arrays, stage=15, out=out, **{name: given}) is out
            continue
        with pytest.raises(ArgumentError, match=f"out overlaps {name} in memory"):
            attention(*arrays, stage=15, out=over, **{name: given})
    assert (len(stub.long_way), len(stub.launched)) == (1, 1)


def test_interleaved_memory_has_plans(stub):
    """q and out of one packed buffer: their extents meet, their elements do not."""
    packed_steps = (8 * 512 * 128 * 2, 512 * 128 * 2, 256, 2)
    memory = stub.memory(8 * 512 * 256)
    behind = types.SimpleNamespace(ptr=memory.ptr + 128, device_id=0)
    q, out = stub.array(strides=packed_steps, data=memory), stub.array(strides=packed_steps, data=behind)
    assert attention(q, stub.array(), stub.array(), stage=12, out=out) is out
    assert attention(q, stub.array(), stub.array(), stage=12, out=out) is out
    assert (len(stub.long_way), len(stub.launched), len(plans._plans)) == (1, 1, 1)


def test_another_layout_is_another_plan(stub):
    q, k, v = three(stub)
    turned = stub.array(strides=(8 * 512 * 128, 128, 8 * 128, 2))  # [B, S, H, D] underneath
    odd = stub.array(data=types.SimpleNamespace(ptr=stub.memory(1 << 20).ptr + 2, device_id=0))
    calls = [
        ((q, k, v), {}),
        ((turned, k, v), {}),
        ((q, k, turned), {}),
        ((q, k, v), {"causal": True}),
        ((q, k, v), {"scale": 1.0}),
        ((q, k, v), {"return_lse": True}),
        ((q, k, v), {"out": stub.array()}),
        ((q, k, v), {"out": stub.array(strides=turned.strides)}),
        (three(stub, (1, 8, 513, 64)), {}),
        (three(stub, (1, 8, 512, 128)), {}),
    ]
    for arrays, options in calls:
        attention(*arrays, stage=12, **options)
    assert not stub.launched
    assert len(plans._plans) == len(calls)
    for arrays, options in calls:
        attention(*arrays, stage=12, **options)
    assert len(stub.launched) == len(calls)
    for _ in range(2):
        attention(odd, k, v, stage=12)
    assert len(stub.launched) == len(calls), "a copy of q must be made each time"
    assert all(struct.unpack("Q", args[0])[0] % 16 == 0 for *_, args, _ in stub.long_way)
    attention(q, k, v, stage=13)
    assert len(plans._plans) == len(calls) + 1


def test_a_plan_does_not_hide_a_bad_argument(stub):
    q, k, v = three(stub)
    attention(q, k, v, stage=12, scale=1, causal=True)
    for bad in ({"scale": True}, {"causal": 1}, {"return_lse": 0}, {"stage": 12.0}, {"stage": [12]}):
        with pytest.raises(ArgumentError):
            attention(q, k, v, **({"stage": 12, "scale": 1, "causal": True} | bad))
    assert not stub.launched
    wide = stub.array()
    wide.dtype = np.dtype(np.float32)
    with pytest.raises(ArgumentError, match="k has dtype float32"):
        attention(q, wide, v, stage=12, scale=1, causal=True)


def test_types_of_elements_have_plans_of_their_own(stub):
    """Arrays of one layout: the kernel of the other type would read them as its own."""
    kinds = [np.dtype(np.float16), BFLOAT16.dtype]
    for _ in range(2):
        for dtype in kinds:
            out = attention(*(stub.array(dtype=dtype) for _ in "qkv"), stage=15)
            assert out.dtype is dtype
    assert len(plans._plans) == 2
    told = [("ELEMENT", "bfloat16") in source.defines for source, *_ in stub.launched]
    assert told == [False, True]
    for mixed in itertools.permutations([*kinds, kinds[0]]):
        with pytest.raises(ArgumentError, match=r"[kv] has dtype .*: q has .*, and they must be equal"):
            attention(*(stub.array(dtype=dtype) for dtype in mixed), stage=15)
    with pytest.raises(ArgumentError, match="out has dtype float16: only bfloat16 and float32 are accepted"):
        attention(*(stub.array(dtype=BFLOAT16.dtype) for _ in "qkv"), out=stub.array(), stage=15)
    assert len(stub.launched) == 2


@pytest.mark.parametrize("element", ["torch.float16", "torch.bfloat16"])
@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("kv_shape", [SHAPE, (1, 8, 8192, 64)], ids=["mission", "with scratch memory"])
def test_tensors_run_on_torchs_stream(stub, fake_torch, monkeypatch, element, device, kv_shape):
    if device:  # with and without the call that makes no Stream object
        raw = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda number: 70 + number)
        monkeypatch.setattr(fake_torch, "_C", raw, raising=False)

    def tensors():
        return [fake_torch.empty(x, element, device) for x in ((1, 8, 130, 64), kv_shape, kv_shape)]

    attention(*tensors(), stage=13, return_lse=True)
    assert not stub.launched
    fast, slow = both_ways(stub, *tensors(), stage=13, return_lse=True)
    assert fast == slow
    assert {(stream, at) for *_, stream, _, at in fast} == {(70 + device, device)}
    assert len(fast) == 1 + (kv_shape != SHAPE)
    out, lse = attention(*tensors(), stage=13, return_lse=True)
    assert (out.dtype, lse.dtype, type(out)) == (element, "torch.float32", fake_torch.Tensor)
    assert (out.shape, lse.shape) == ((1, 8, 130, 64), (1, 8, 130))
    assert (stub.stream, stub.current) == (7, 0)


def test_an_output_is_contiguous_whatever_q_is(stub, fake_torch, monkeypatch):
    q, k, v = (fake_torch.empty(SHAPE, "torch.float16", 0) for _ in range(3))
    for x in (q, k, v):
        x.array.strides = (8 * 512 * 128, 128, 8 * 128, 2)  # [B, S, H, D] underneath
    monkeypatch.setattr(fake_torch, "empty_like", None)  # it would follow them
    for _ in range(3):
        assert attention(q, k, v, stage=12).array.flags.c_contiguous
    assert len(stub.launched) == 2


SPLIT = ((1, 8, 130, 64), (1, 8, 8192, 64))  # stage 13: two arrays of scratch memory, two kernels
COUNTED = ((1, 32, 2048, 64), None)  # stage 15 under a causal mask: a counter, one kernel


def scratch_of(stub, stage, kernels):
    """The addresses among the arguments of the last call that are none of its arrays' or a number's."""
    args = [args for *_, args, _ in stub.launched[-kernels:]]
    return args[0][-2:] if stage == 13 else args[0][-1:]


@pytest.mark.parametrize(("stage", "shapes", "kernels"), [(13, SPLIT, 2), (15, COUNTED, 1)])
class TestMemoryOfAStage:
    def calls(self, stub, stage, shapes):
        arrays, out = three(stub, *shapes), stub.array(shapes[0])
        return lambda: attention(*arrays, stage=stage, causal=True, out=out)

    def test_later_calls_allocate_nothing_and_add_no_kernel(self, stub, stage, shapes, kernels):
        call = self.calls(stub, stage, shapes)
        for _ in range(2):
            call()
        before = len(stub.allocated)
        for _ in range(5):
            stub.launched.clear()
            call()
            assert len(stub.launched) == kernels
        assert len(stub.allocated) == before
        assert stub.graph_launches == 5 - 1, "the same memory each time, so that a graph of its own serves"

    def test_each_stream_has_its_own(self, stub, stage, shapes, kernels):
        call, found = self.calls(stub, stage, shapes), []
        call()
        for stub.stream in (7, 9, 7, 9):
            call()
            found.append(tuple(scratch_of(stub, stage, kernels)))
        assert found[0] == found[2] != found[1] == found[3]

    def test_a_new_stream_with_the_handle_of_another(self, stub, stage, shapes, kernels):
        """The old stream's work may still be running when its handle is given out again."""
        call, found = self.calls(stub, stage, shapes), []
        call()
        for stub.numbers[7] in (1, 2, 1):
            call()
            found.append(tuple(scratch_of(stub, stage, kernels)))
        assert found[0] == found[2] != found[1]

    def test_threads_on_one_stream(self, stub, stage, shapes, kernels):
        """Their kernels alternate, so each needs memory of its own."""
        barrier, threads = threading.Barrier(3, timeout=10), 3
        call = self.calls(stub, stage, shapes)
        call()
        stub.launched.clear()
        stub.pause = lambda _: barrier.wait()
        several = [threading.Thread(target=self.calls(stub, stage, shapes)) for _ in range(threads)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        found = {
            tuple(args[-2:] if stage == 13 else args[-1:])
            for source, *_, args, _ in stub.launched
            if source.entry != "merge_splits"
        }
        assert len(found) == threads

    @pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
    def test_a_graph_has_its_own_until_it_is_gone(self, stub, stage, shapes, kernels, first):
        call = self.calls(stub, stage, shapes)
        call()
        call()
        eager = tuple(scratch_of(stub, stage, kernels))

        def captured(number):
            stub.capturing, stub.capture_number = stub.stream, number
            if first:
                plans._plans.clear()
            call()
            stub.launched += stub.long_way if first else []
            stub.capturing = None
            return tuple(scratch_of(stub, stage, kernels))

        found = [captured(number) for number in (1, 1, 2)]
        assert found[0] == found[1], "calls of one stream in one capture run one after the other"
        assert len({eager, *found}) == 3
        before = len(stub.allocated)
        stub.destroy_graphs()
        assert set(captured(3)) <= {at for each in found for at in each}, "what a graph had serves the next"
        assert len(stub.allocated) == before

    def test_an_eager_call_beside_a_capture(self, stub, stage, shapes, kernels):
        stub.capturing = 99
        with driver.Allowed():
            call = self.calls(stub, stage, shapes)
        for _ in range(4):
            call()
        assert stub.graph_launches == 1


def test_the_first_call_of_all_can_be_captured(stub):
    """Each stage, both masks: kernels are loaded and memory is allocated as the driver allows it."""
    with driver.Allowed():
        sets = [(stage, causal, three(stub, (4, 32, 700, 64))) for stage in CUDA for causal in (False, True)]
    stub.capturing = stub.stream
    for stage, causal, arrays in sets:
        for _ in range(3):
            out, lse = attention(*arrays, stage=stage, causal=causal, return_lse=True)
            assert (out.shape, lse.shape) == ((4, 32, 700, 64), (4, 32, 700))
    assert not stub.graphs
    assert getattr(stub.modes, "mode", 0) == 0


def test_a_counter_is_0_at_first_and_alone(stub):
    for stream in range(2000, 2000 + workspace.COUNTERS + 5):
        piece = workspace.take(0, stream, 0)
        assert any(first <= piece.counter < end for first, end in stub.zeroed)
        workspace.give_back(piece)
    assert len(stub.zeroed) == 2
    assert len(workspace._idle) == workspace.MOST
    given = [piece.counter for pieces in workspace._idle.values() for piece in pieces]
    assert len(set(given)) == len(given)


def test_counters_that_are_too_few_are_replaced_and_given_to_nobody_else(stub):
    one = workspace.take(0, 5, 100)
    workspace.give_back(one)
    many = workspace.take(0, 5, 100, counters=1000)
    first, end = many.counter, many.counter + 4 * 1000
    assert any(start <= first and end <= stop for start, stop in stub.zeroed)
    assert not first <= one.counter < end
    workspace.give_back(many)
    assert workspace.take(0, 5, 100) is many
    others = [workspace.take(0, stream, 0, counters=count) for stream in (6, 7, 8) for count in (1, 900)]
    for other in others:
        assert other.counter != one.counter
        assert not first <= other.counter < end


def test_pieces_that_outgrow_are_replaced(stub):
    small = workspace.take(0, 5, 1000)
    workspace.give_back(small)
    large = workspace.take(0, 5, 2000)
    assert (large.size, large.counter) == (2000, small.counter)
    workspace.give_back(large)
    assert workspace.take(0, 5, 500) is large


def test_a_tensor_that_requires_grad_is_refused_after_a_plan(stub, fake_torch):
    q, k, v = (fake_torch.empty(SHAPE, "torch.float16", 0) for _ in range(3))
    attention(q, k, v, stage=12)
    v.requires_grad = True
    with pytest.raises(ArgumentError, match="v requires grad"):
        attention(q, k, v, stage=12)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "sinks", "prior[0]"])
def test_a_view_that_negates_is_refused_after_a_plan(stub, fake_torch, name):
    given = {x: fake_torch.empty(SHAPE, "torch.float16", 0) for x in ("q", "k", "v", "out")}
    given["sinks"] = fake_torch.empty((8,), "torch.float32", 0)
    prior = fake_torch.empty(SHAPE, "torch.float32", 0), fake_torch.empty(SHAPE[:3], "torch.float32", 0)
    for _ in range(2):
        attention(**given, prior=prior, stage=15)
    assert len(stub.launched) == 1
    (given | {"prior[0]": prior[0]})[name].negative = True
    with pytest.raises(ArgumentError, match=f"^{re.escape(name)} is no plain memory of numbers"):
        attention(**given, prior=prior, stage=15)
    assert len(stub.launched) == 1


@pytest.mark.parametrize("kv_shape", [SHAPE, (1, 8, 8192, 64)], ids=["mission", "with scratch memory"])
def test_addresses_that_come_back_are_launched_as_a_graph(stub, kv_shape):
    arrays, out = three(stub, (1, 8, 130, 64), kv_shape), stub.array((1, 8, 130, 64))
    top = stub.top
    for _ in range(6):
        stub.top = top  # scratch memory comes back too
        attention(*arrays, stage=13, out=out)
    assert stub.graph_launches == 3, "one way each: to the plan, kernel by kernel, and those of a graph"
    assert len(stub.launched) % 5 == 0
    each = len(stub.launched) // 5
    assert all(stub.launched[i] == stub.launched[i % each] for i in range(len(stub.launched)))
    stub.stream = stub.capturing = 9
    stub.top = top
    attention(*arrays, stage=13, out=out)
    assert stub.graph_launches == 3, "a graph must not be put into the caller's"
    assert [stream for _, _, stream, *_ in stub.launched[-each:]] == [9] * each
    stub.capturing = None
    stub.top = top
    attention(*arrays, stage=13, out=out)
    assert stub.graph_launches == 4
    assert [stream for _, _, stream, *_ in stub.launched[-each:]] == [9] * each


def test_no_graph_is_made_while_one_is_captured(stub):
    arrays, out = three(stub), stub.array()
    for captured in (None, None, stub.stream, stub.stream, None):
        stub.capturing = captured
        attention(*arrays, stage=12, out=out)
        assert len(stub.graphs) == (captured is None and len(stub.launched) == 4)
    assert stub.graph_launches == 0


def test_graphs_of_a_plan_are_few(stub, monkeypatch):
    monkeypatch.setattr(packed, "MOST_GRAPHS", 2)
    sets = [three(stub) for _ in range(4)]
    out = stub.array()
    for _ in range(4):
        for arrays in sets:
            attention(*arrays, stage=12, out=out)
    assert len(stub.graphs) == 2
    assert len(stub.launched) == 15


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_a_small_output_is_allocated_ahead(stub, fake_torch, kind):
    """In the shadow of the launch; each output is its caller's alone, and of the stream of its use. PyTorch's
    are allocated ahead on the default stream alone: another one may be of somebody else's pool.
    """
    fake_torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)

    def arrays(shape=SHAPE):
        return (
            three(stub, shape)
            if kind == "cupy"
            else [fake_torch.empty(shape, "torch.float16", 0) for _ in "qkv"]
        )

    def place(array):
        return array.data.ptr if kind == "cupy" else array.data_ptr()

    same = arrays()
    outs = [attention(*same, stage=12) for _ in range(5)]
    assert len({place(out) for out in outs}) == 5
    (((spare,), _),) = plans._spares.values()
    assert place(attention(*same, stage=12)) == place(spare)
    (((spare,), _),) = plans._spares.values()
    stub.stream, fake_torch.cuda.current_stream = 9, lambda device: types.SimpleNamespace(cuda_stream=9)
    assert place(attention(*same, stage=12)) != place(spare)
    assert len(plans._spares) == (2 if kind == "cupy" else 1)
    stub.capturing = 9
    before = dict(plans._spares)
    out = attention(*same, stage=12)
    assert plans._spares == before, "a graph's memory must not be given to later calls"
    seen = weakref.ref(out)
    del out
    gc.collect()
    assert (seen() is not None) == (kind == "cupy"), "a graph of CuPy has no memory of its own"
    stub.destroy_graphs()
    attention(*same, stage=12)
    gc.collect()
    assert seen() is None
    stub.capturing, stub.inference = None, True
    out = attention(*same, stage=12)
    assert kind == "cupy" or all(place(out) != place(each) for (each,), _ in before.values())
    fake_torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    for length in range(20, 40):
        for _ in range(2):
            attention(*arrays((1, 2, length, 64)), stage=12)
    assert len(plans._spares) == plans.MOST_SPARES
    plans.forget()
    large = arrays((8, 32, 512, 64))
    for _ in range(3):
        attention(*large, stage=12)
    assert not plans._spares


def test_without_a_stage_the_table_is_asked_once(stub, monkeypatch):
    attention(*three(stub))
    monkeypatch.setattr(dispatch, "ranking", None)
    attention(*three(stub))
    assert len(stub.launched) == 1


def test_forget_reads_the_kernels_again(stub):
    for _ in range(5):
        attention(*three(stub), stage=12)
    (kernel,) = stub.kernels.values()
    before = kernel.loads
    plans.forget()
    attention(*three(stub), stage=12)
    assert kernel.loads > before
    assert len(stub.launched) == 4


def test_a_plan_keeps_no_array_alive(stub):
    arrays = three(stub)
    attention(*arrays, stage=CUDA[-1])
    attention(*arrays, stage=CUDA[-1])
    seen = [weakref.ref(x) for x in arrays]
    del arrays
    gc.collect()
    assert [x() for x in seen] == [None] * 3


@pytest.mark.parametrize("stage", [12, 16])
def test_the_arrays_device_is_current_and_a_new_thread_gets_its_context(stub, stage):
    """What the driver is asked first: a launch, or the address in a tensor map."""
    stub.current = 1
    arrays, others = three(stub), three(stub)
    stub.current = 0
    attention(*arrays, stage=stage)
    stub.devices.clear()
    stub.without_context = True
    out = attention(*others, stage=stage)
    assert stub.launched[0][4] == out.device.id == 1
    assert (stub.devices, stub.current) == ([1], 0)


def test_threads_do_not_mix_their_addresses(stub):
    """Each launch is held until all threads are in one: every buffer must be a thread's own."""
    stage, threads = CUDA[-1], 4
    for _ in range(2):
        attention(*three(stub), stage=stage)
    stub.launched.clear()
    barrier = threading.Barrier(threads, timeout=10)
    stub.pause = lambda _: barrier.wait()
    sets = [three(stub) for _ in range(threads)]
    attention_of = [threading.Thread(target=attention, args=s, kwargs={"stage": stage}) for s in sets]
    for thread in attention_of:
        thread.start()
    for thread in attention_of:
        thread.join()
    found = {tuple(struct.unpack("Q", arg[:8])[0] for arg in args[:3]) for *_, args, _ in stub.launched}
    assert found == {tuple(x.data.ptr for x in each) for each in sets}


def test_a_stage_in_numba_has_no_plan(stub, monkeypatch):
    monkeypatch.setattr(executor.Gpu, "launch", lambda *args, **options: stub.long_way.append(args))
    for _ in range(2):
        attention(*three(stub), stage=NUMBA)
    assert not plans._plans
    assert len(stub.long_way) >= 2


def test_the_number_of_plans_is_bounded(stub, monkeypatch):
    monkeypatch.setattr(plans, "MOST", 3)
    for length in range(10, 20):
        attention(*three(stub, (1, 2, length, 64)), stage=12)
    assert 1 <= len(plans._plans) <= 3


Stage16NotOverlapped = dataclasses.replace(LADDER[15], called=None)


def test_only_a_kernel_that_waits_itself_may_begin_early(stub):
    """A call of stage 16 does; its default variant and the other stages do not."""
    for stage, early in ((16, True), (Stage16NotOverlapped, False), (13, False)):
        stub.early.clear()
        arrays = three(stub)
        for _ in range(2):
            attention(*arrays, stage=stage)
        assert len(stub.early) == early
        assert all(source.early for source in stub.early)


def test_an_argument_from_elsewhere_cannot_be_packed(stub):
    kernel = types.SimpleNamespace(handle=1, source=types.SimpleNamespace(early=False))
    with pytest.raises(ValueError, match="none of the arrays"):
        packed.PackedLaunches([(kernel, 1, 1, (np.zeros(3),), 0)], [np.zeros(3)])
