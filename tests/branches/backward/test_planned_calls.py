"""Plans of attention_backward(), on the stand-in for a GPU: what is launched, allocated and refused."""

import gc
import struct
import threading
import types
import weakref

import numpy as np
import pytest
from stub_gpu import SHAPE, both_ways, three

from cuda_reference import driver
from flashcore_numba import ArgumentError, UnsupportedError, attention_backward, attention_varlen_backward
from flashcore_numba.branches.backward import ladder
from flashcore_numba.branches.backward.backward_mma_sync import STAGE as MMA_SYNC
from flashcore_numba.branches.backward.backward_one_launch import STAGE as ONE_LAUNCH
from flashcore_numba.branches.backward.backward_wgmma import STAGE as WGMMA
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.features import ARRAYS
from flashcore_numba.run import executor, plans, workspace

CUDA = (MMA_SYNC, WGMMA, ONE_LAUNCH)
EACH_STAGE = pytest.mark.parametrize("stage", CUDA, ids=lambda stage: stage.name)
KV = (1, 2, 512, 64)
PACKED, PACKED_KV = (600, 8, 64), (600, 2, 64)
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k")


def given(stub, shape=SHAPE, kv_shape=KV, dtype=np.float16):
    """dout, q, k, v, out and lse."""
    rows = shape[:-1] if len(shape) == 4 else shape[1::-1]
    dout, q, out = (stub.array(shape, dtype=dtype) for _ in range(3))
    k, v = (stub.array(kv_shape, dtype=dtype) for _ in range(2))
    return [dout, q, k, v, out, stub.array(rows, dtype=np.float32)]


def lengths(stub, *names):
    sizes = {"sinks": 8, "alibi_slopes": 8, "seqused_k": 3}
    return {name: stub.array((sizes.get(name, 4),), dtype=ARRAYS[name]) for name in names}


def tensors_like(torch, arrays, device=0):
    return [torch.empty(x.shape, getattr(torch, x.dtype.name), device) for x in arrays]


OPTIONAL = [(), ("dlse",), ("sinks",), ("dlse", "seqused_k"), ("alibi_slopes",)]
SERVED = [(stage, names) for stage in CUDA for names in OPTIONAL if {*names} <= {"dlse", *stage.features}]


@pytest.mark.parametrize("stage, names", SERVED, ids=lambda x: getattr(x, "name", None) or " ".join(x) or "-")
@pytest.mark.parametrize(
    "targets", [(), ("dk",), ("dq", "dk", "dv")], ids=lambda names: " ".join(names) or "-"
)
def test_a_plan_launches_what_the_long_way_does(stub, stage, targets, names):
    def arguments():
        to = {name: stub.array(SHAPE if name == "dq" else KV) for name in targets}
        more = lengths(stub, *(name for name in names if name in ARRAYS))
        more |= {"seqused_k": stub.array((1,), dtype=np.int32)} if "seqused_k" in names else {}
        more |= {"dlse": stub.array(SHAPE[:3], dtype=np.float32)} if "dlse" in names else {}
        return given(stub), to, more

    def call():
        return attention_backward(*arrays, stage=stage, causal=True, scale=0.3, window=(300, 0), **to, **more)

    arrays, to, more = arguments()
    call()
    arrays, to, more = arguments()
    found = call()
    assert [x.shape for x in found] == [SHAPE, KV, KV]
    assert all(found["qkv".index(name[1])] is array for name, array in to.items())
    fast, slow = both_ways(stub, call)
    assert fast and fast == slow


@pytest.mark.parametrize("stage", [MMA_SYNC, WGMMA], ids=lambda stage: stage.name)
def test_packed_sequences_have_plans(stub, stage):
    arrays, bounds, other = None, None, None

    def call():
        dlse = stub.array((8, 600), dtype=np.float32)
        return attention_varlen_backward(*arrays, bounds, other, dlse=dlse, stage=stage, causal=True)

    for one in (True, False):
        arrays = given(stub, PACKED, PACKED_KV)
        bounds, other = lengths(stub, *LENGTHS).values()
        other = bounds if one else other
        dq, dk, dv = call()
        assert (dq.shape, dk.shape, dv.shape) == (PACKED, PACKED_KV, PACKED_KV)
    assert len(plans._plans) == 1
    fast, slow = both_ways(stub, call)
    assert fast and fast == slow
    with pytest.raises(ArgumentError, match="cu_seqlens_k is None"):
        attention_varlen_backward(*arrays, bounds, None, stage=stage)


def test_the_same_array_twice_is_two_arguments(stub):
    x, lse = stub.array(), stub.array(SHAPE[:3], dtype=np.float32)
    attention_backward(x, x, x, x, x, lse, dlse=lse)
    arrays, dlse = given(stub, kv_shape=SHAPE), stub.array(SHAPE[:3], dtype=np.float32)
    fast, slow = both_ways(stub, lambda: attention_backward(*arrays, dlse=dlse))
    assert fast and fast == slow


def test_a_variant_that_is_deterministic_is_another_plan(stub):
    arrays = given(stub)
    for _ in range(2):
        for deterministic in (False, True):
            attention_backward(*arrays, stage=WGMMA, deterministic=deterministic)
    assert len(plans._plans) == 2
    told = [dict(source.defines).get("DETERMINISTIC") for source, *_ in stub.launched]
    assert len(set(told)) > 1
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="deterministic=True"):
            attention_backward(*arrays, stage=MMA_SYNC, deterministic=True)


def test_without_a_stage_the_preference_is_asked_once(stub, monkeypatch):
    arrays = given(stub)
    attention_backward(*arrays)
    monkeypatch.setattr(ladder, "preferred", None)
    attention_backward(*arrays)
    assert len(stub.launched) == 1


def test_a_plan_does_not_hide_a_bad_argument(stub):
    dout, q, k, v, out, lse = given(stub, kv_shape=SHAPE)
    target, good = stub.array(), {"scale": 1, "causal": True, "stage": WGMMA}
    for options in ({}, {"dq": target}, {"dq": target, "dk": stub.array()}, {"dv": stub.array()}):
        for _ in range(2):
            attention_backward(dout, q, k, v, out, lse, **good | options)
    launched = len(stub.launched)
    elsewhere = stub.array()
    elsewhere.device.id = elsewhere.data.device_id = 1
    bad = {
        "scale is": {"scale": True},
        "causal is": {"causal": 1},
        "deterministic is 0": {"deterministic": 0},
        "time_limit is 1.0 for arrays on a GPU": {"time_limit": 1.0},
        "is not in the ladder of the backward pass": {"stage": "wgmm"},
        "dq overlaps v": {"dq": v},
        "dq overlaps dk": {"dq": target, "dk": target},
        "dv overlaps dout": {"dv": dout},
        "dv has dtype": {"dv": stub.array(dtype=BFLOAT16.dtype)},
        "dq has shape": {"dq": stub.array((1, 8, 511, 64))},
        "dv is CuPy on GPU 1": {"dv": elsewhere},
        "dlse has shape": {"dlse": stub.array((1, 8, 511), dtype=np.float32)},
        "lse has dtype": {"lse": stub.array(SHAPE[:3], dtype=np.float64)},
        "lse has strides": {"lse": stub.array(SHAPE[:3], strides=(1 << 14, 1 << 11, 8), dtype=np.float32)},
        "out has dtype": {"out": stub.array(dtype=BFLOAT16.dtype)},
        "dout is NumPy on the host": {"dout": np.zeros(SHAPE, np.float16)},
    }
    for words, options in bad.items():
        arrays = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
        with pytest.raises(ArgumentError, match=words):
            attention_backward(**arrays | good | options)
    assert len(stub.launched) == launched


def test_a_plan_does_not_hide_a_gradient_over_an_array_of_a_feature(stub):
    arrays, sinks = given(stub), stub.array((8,), dtype=np.float32)
    over = stub.array(data=sinks.data)
    for dq in (over, stub.array(), stub.array(), over):
        if dq is not over:
            attention_backward(*arrays, stage=WGMMA, sinks=sinks, dq=dq)
            continue
        with pytest.raises(ArgumentError, match="dq overlaps sinks in memory"):
            attention_backward(*arrays, stage=WGMMA, sinks=sinks, dq=dq)
    assert stub.launched and len(plans._plans) == 1


@pytest.mark.parametrize("name", ["q", "dout", "out"])
def test_rows_that_are_not_aligned_are_copied_each_time(stub, name):
    names = ("dout", "q", "k", "v", "out", "lse")
    arrays = dict(zip(names, given(stub), strict=True))
    attention_backward(**arrays)
    at = stub.memory(1 << 20).ptr + 2
    arrays[name] = stub.array(data=types.SimpleNamespace(ptr=at, device_id=0))
    stub.long_way.clear()
    for _ in range(2):
        attention_backward(**arrays)
    assert not stub.launched and stub.long_way
    assert all(struct.pack("Q", at) != arg[:8] for *_, args, _ in stub.long_way for arg in args)


def test_an_lse_may_begin_anywhere(stub):
    *arrays, lse = given(stub)
    at = types.SimpleNamespace(ptr=stub.memory(1 << 20).ptr + 4, device_id=0)
    for each in (lse, stub.array(SHAPE[:3], data=at, dtype=np.float32)):
        attention_backward(*arrays, each)
    assert len(stub.launched) == 1


def test_types_of_elements_have_plans_of_their_own(stub):
    for _ in range(2):
        for dtype in (np.dtype(np.float16), BFLOAT16.dtype):
            assert all(x.dtype is dtype for x in attention_backward(*given(stub, dtype=dtype)))
    told = [("ELEMENT", "bfloat16") in source.defines for source, *_ in stub.launched]
    assert told == [False, True]


@EACH_STAGE
def test_the_first_call_of_all_can_be_captured(stub, stage):
    with driver.Allowed():
        arrays = given(stub, (4, 8, 700, 64), (4, 2, 700, 64))
    stub.capturing = stub.stream
    for _ in range(3):
        attention_backward(*arrays, stage=stage)
    assert not stub.graphs and getattr(stub.modes, "mode", 0) == 0


@EACH_STAGE
def test_a_graph_keeps_its_memory_until_it_is_gone(stub, stage):
    arrays = given(stub)
    attention_backward(*arrays, stage=stage)
    stub.capturing = stub.stream
    made = attention_backward(*arrays, stage=stage)
    stub.capturing = None
    seen = [weakref.ref(x) for x in made]
    del made
    gc.collect()
    assert all(x() is not None for x in seen)
    stub.destroy_graphs()
    workspace.forget()
    gc.collect()
    assert all(x() is None for x in seen)


def scratch_of(stub, arrays):
    """The addresses among the arguments of the last call that are none of its arrays."""
    places = {x.data.ptr for x in arrays}
    found = {struct.unpack("Q", arg)[0] for *_, args, _ in stub.launched for arg in args if len(arg) == 8}
    return {at for at in found if at >= 1 << 30 and at not in places}


@pytest.mark.parametrize(
    "options",
    [{"stage": MMA_SYNC}, {"stage": WGMMA, "deterministic": True}],
    ids=["mma_sync", "wgmma deterministic"],
)
class TestScratchMemory:
    def calls(self, stub, options):
        arrays, to = given(stub), dict(zip(("dq", "dk", "dv"), three(stub, SHAPE, KV), strict=True))
        return lambda: attention_backward(*arrays, **to, **options), [*arrays, *to.values()]

    def test_later_calls_allocate_nothing_and_are_graphs(self, stub, options):
        call, _ = self.calls(stub, options)
        for _ in range(2):
            call()
        before = len(stub.allocated)
        for _ in range(5):
            call()
        assert len(stub.allocated) == before
        assert stub.graph_launches == 4

    def test_streams_threads_and_graphs_have_their_own(self, stub, options):
        call, arrays = self.calls(stub, options)
        call()

        def on(stream, captured):
            stub.launched.clear()
            stub.stream, stub.capturing = stream, stream if captured else None
            call()
            stub.capturing = None
            return frozenset(scratch_of(stub, arrays))

        found = [on(*each) for each in ((7, False), (9, False), (7, True), (7, False))]
        assert found[0] == found[3] and len(set(found)) == 3
        assert all(len(each) >= 3 for each in found)
        assert not set.intersection(*map(set, found[:3]))

    def test_threads_do_not_share_it(self, stub, options):
        barrier, threads = threading.Barrier(3, timeout=10), 3
        calls = [self.calls(stub, options) for _ in range(threads)]
        calls[0][0]()
        stub.launched.clear()
        stub.pause = lambda _: barrier.wait()
        several = [threading.Thread(target=call) for call, _ in calls]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        each = len(scratch_of(stub, [x for _, arrays in calls for x in arrays]))
        assert each % threads == 0 and each >= 3 * threads

    def test_much_of_it_is_not_kept(self, stub, options, monkeypatch):
        monkeypatch.setattr(workspace, "MOST_BYTES", 1000)
        call, _ = self.calls(stub, options)
        for _ in range(3):
            call()
        assert all(piece.size == 0 for pieces in workspace._idle.values() for piece in pieces)
        assert len(stub.launched) > 1


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_small_gradients_are_allocated_ahead(stub, fake_torch, kind):
    fake_torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=0)
    arrays = given(stub)
    if kind == "torch":
        arrays = tensors_like(fake_torch, arrays)

    def place(array):
        return array.data.ptr if kind == "cupy" else array.data_ptr()

    made = [attention_backward(*arrays) for _ in range(4)]
    assert len({place(x) for each in made for x in each}) == 12
    ((spare, _),) = plans._spares.values()
    assert all(one is other for one, other in zip(attention_backward(*arrays), spare, strict=True))


@pytest.mark.parametrize("device", [0, 1])
def test_tensors_run_on_torchs_stream(stub, fake_torch, device):
    def tensors():
        return tensors_like(fake_torch, given(stub), device)

    attention_backward(*tensors(), stage=WGMMA)
    arrays = tensors()
    fast, slow = both_ways(stub, lambda: attention_backward(*arrays, stage=WGMMA))
    assert fast and fast == slow
    assert {(stream, at) for *_, stream, _, at in fast} == {(70 + device, device)}
    dq, dk, dv = attention_backward(*tensors(), stage=WGMMA)
    assert {(type(x), x.dtype) for x in (dq, dk, dv)} == {(fake_torch.Tensor, "torch.float16")}
    assert (dq.shape, dk.shape, dv.shape) == (SHAPE, KV, KV)
    assert (stub.stream, stub.current) == (7, 0)


@pytest.mark.parametrize("place", range(6))
def test_a_tensor_that_requires_grad_is_refused_after_a_plan(stub, fake_torch, place):
    arrays = tensors_like(fake_torch, given(stub))
    for _ in range(2):
        attention_backward(*arrays)
    assert len(stub.launched) == 1
    arrays[place].requires_grad = True
    with pytest.raises(ArgumentError, match="requires grad"):
        attention_backward(*arrays)


def test_a_stage_in_numba_has_no_plan(stub, monkeypatch):
    monkeypatch.setattr(executor.Gpu, "launch", lambda *args, **options: stub.long_way.append(args))
    for _ in range(2):
        attention_backward(*given(stub), stage="recompute")
    assert not plans._plans and stub.long_way
