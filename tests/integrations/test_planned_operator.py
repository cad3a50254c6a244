"""The operator by plans: what it launches, on a stand-in for a GPU, and its values and gradients on the CPU.

Tensors of the CPU pass for those of a GPU, so that autograd is PyTorch's own.
"""

import gc
import inspect
import itertools
import struct
import sys
import types

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from flashcore_numba.branches.backward import call as GRADIENT_CALLS
from flashcore_numba.core import arrays, gpu
from flashcore_numba.core.element import named
from flashcore_numba.core.errors import ArgumentError, UnsupportedError
from flashcore_numba.integrations import pytorch as ADAPTER
from flashcore_numba.run import plans
from integrations.broken import broken, must_notice
from integrations.test_pytorch import (
    CASES,
    check_packed,
    check_values,
    close,
    drawn,
    fresh,
    options_of,
    right,
)

CALLS = sys.modules["flashcore_numba.attention"]  # the package has a function of this name
SHAPE = (1, 4, 40, 64)


class OnStub:
    """PyTorch, whose tensors pass for those of GPU 0, or of the device that `placed` names."""

    def __init__(self, stub):
        self.stub, self.placed, self.stream = stub, {}, 70

    def device_of(self, x):
        return self.placed.get(x.data_ptr(), 0)

    def view(self, x, name, e4m3=False):
        if x.requires_grad:
            raise ArgumentError(f"{name} requires grad")
        element = named(dtype := str(x.dtype).removeprefix("torch."))
        if element is None and not hasattr(np, dtype):
            raise ArgumentError(f"{name} has dtype {dtype}")
        place = types.SimpleNamespace(ptr=x.data_ptr(), device_id=self.device_of(x))
        strides = tuple(step * x.element_size() for step in x.stride())
        return self.stub.array(tuple(x.shape), strides, place, element.dtype if element else np.dtype(dtype))

    def on(self, device):
        def placed(x):
            if int(getattr(device, "index", device) or 0):
                self.placed[x.data_ptr()] = int(getattr(device, "index", device))
            return x

        return placed


@pytest.fixture
def on_stub(stub, monkeypatch):
    """Returns (OnStub, a function that puts edits of the readers of tensors in place)."""
    there = OnStub(stub)
    shim = types.SimpleNamespace(
        empty_like=torch.empty_like,
        empty_strided=lambda shape, steps, dtype, device: there.on(device)(
            torch.empty_strided(shape, steps, dtype=dtype)
        ),
        is_inference_mode_enabled=torch.is_inference_mode_enabled,
        _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: there.stream),
    )
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    monkeypatch.setattr(arrays, "_view_of_torch", there.view)
    modules = types.SimpleNamespace(modules={**sys.modules, "torch": shim})
    monkeypatch.setattr(plans, "sys", modules)

    sources = {name: inspect.getsource(getattr(plans, name)) for name in ("_torch", "_more_of_torch")}

    def readers(*edits):
        for name, text in sources.items():
            text = text.replace(".is_cuda", ".is_cpu")
            text = text.replace("out.get_device()", "0")
            for x in "qkvx":
                text = text.replace(f"{x}.get_device()", f"device_of({x})")
            for old, new in edits if name == "_torch" else ():
                assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
                text = text.replace(old, new)
            found = {**vars(plans), "device_of": there.device_of}
            exec(text, found)
            monkeypatch.setattr(plans, name, found[name])
        monkeypatch.setattr(plans, "_readers", {})

    readers()
    return there, readers


def told(launches, names):
    """Launches with names for the addresses of arrays; what is allocated in a call has none."""
    found = []
    for source, sizes, _stream, args, device in launches:
        words = []
        for each in args:
            place, rest = (struct.unpack("Q", each[:8])[0], each[8:]) if len(each) in (8, 128) else (0, each)
            words.append((names.get(place, place if place < 1 << 16 else "made"), rest))
        found.append((source, tuple(map(int, sizes)), words, device))
    return found


def tensors(shape=SHAPE, kv_shape=None, dtype=torch.float16, wanted="qkv"):
    sizes = (shape, kv_shape or shape, kv_shape or shape)
    return [
        torch.zeros(x, dtype=dtype).requires_grad_(n in wanted) for n, x in zip("qkv", sizes, strict=True)
    ]


def transposed(x):
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(x.requires_grad)


def rows_of(keys):
    """q as the first rows of a longer one."""
    _, k, v = tensors()
    return [torch.zeros(1, 4, keys, 64).half()[:, :, :40].requires_grad_(), k, v]


def slopes():
    return torch.ones(4, dtype=torch.float32)


def packed(shape=(40, 4, 64), **options):
    """Sequences one after the other. Bounds of queries and of keys are other tensors."""
    bounds = {f"cu_seqlens_{x}": torch.tensor([0, 12, 40], dtype=torch.int32) for x in "qk"}
    return tensors(shape), bounds | options


# Each makes (q, k, v) and options. They differ from each other in what a plan depends on.
LAYOUTS = {
    "plain": lambda: (tensors(), {}),
    "causal": lambda: (tensors(), {"causal": True}),
    "scale": lambda: (tensors(), {"scale": 0.3}),
    "another scale": lambda: (tensors(), {"scale": 0.31}),
    "window": lambda: (tensors(), {"window": (9, 0)}),
    "another window": lambda: (tensors(), {"window": (8, 0)}),
    "softcap": lambda: (tensors(), {"softcap": 5.0}),
    "bfloat16": lambda: (tensors(dtype=torch.bfloat16), {}),
    "more keys": lambda: (tensors(kv_shape=(1, 4, 48, 64)), {}),
    "fewer heads": lambda: (tensors(kv_shape=(1, 2, 40, 64)), {}),
    "strided q": lambda: ([transposed(x) if i == 0 else x for i, x in enumerate(tensors())], {}),
    "rows of q": lambda: (rows_of(48), {}),
    "another rows of q": lambda: (rows_of(56), {}),
    "strided k": lambda: ([transposed(x) if i == 1 else x for i, x in enumerate(tensors())], {}),
    "strided v": lambda: ([transposed(x) if i == 2 else x for i, x in enumerate(tensors())], {}),
    "sinks": lambda: (tensors(), {"sinks": slopes().requires_grad_()}),
    "slopes": lambda: (tensors(), {"alibi_slopes": slopes()}),
    "lengths": lambda: (tensors(), {"seqused_k": torch.tensor([30], dtype=torch.int32)}),
    "other lengths": lambda: (
        tensors(),
        {"seqused_k": torch.tensor([30], dtype=torch.int32), "causal": True},
    ),
    "packed": packed,
    "packed and causal": lambda: packed(causal=True, window=(9, 0)),
    "packed, strided q": lambda: (
        [torch.zeros(4, 40, 64).half().transpose(0, 1).requires_grad_(), *packed()[0][1:]],
        packed()[1],
    ),
}


def called(adapter, inputs, options, **more):
    attend = adapter.attention_varlen if "cu_seqlens_q" in options else adapter.attention
    return attend(*inputs, **options, **more)


def check_launches(adapter, there, layouts=tuple(LAYOUTS)):
    """A layout goes the long way once, and afterwards its plan launches the very same, for all subsets of
    inputs that require gradients.
    """
    stub = there.stub
    for name in layouts:
        before: list = []
        for again in (False, True):
            stub.launched.clear()
            stub.long_way.clear()
            inputs, options = LAYOUTS[name]()
            with pytest.MonkeyPatch.context() as patch:
                if again:
                    patch.setattr(adapter, "compute", None)  # `_directly` is not asked
                outputs = called(adapter, inputs, options, return_lse=True)
            assert bool(stub.long_way) is not again and bool(stub.launched) is again, name
            made = (*inputs, *outputs, *(x for x in options.values() if isinstance(x, torch.Tensor)))
            names = {x.data_ptr(): i for i, x in enumerate(made)}
            seen = told(stub.launched or stub.long_way, names)
            if again:
                assert seen == before, name
            before = seen
            out, lse = outputs
            assert out.stride() == torch.empty_like(inputs[0]).stride() and out.dtype is inputs[0].dtype
            assert lse.is_contiguous() and lse.dtype is torch.float32
            rows = out.shape[1::-1] if out.ndim == 3 else out.shape[:3]
            assert lse.shape == rows
            assert out.requires_grad and lse.requires_grad and not out._is_view()
            assert {len(places) for *_, places, _ in seen} and any(
                (len(inputs) in [place for place, _ in each]) for *_, each, _ in seen
            ), "what is returned must be what was launched on"


def test_a_plan_launches_what_the_long_way_does(on_stub):
    check_launches(ADAPTER, on_stub[0])


def check_gradient_launches(adapter, there, layouts=tuple(LAYOUTS)):
    """The same of the backward pass, with and without a gradient of the LSE. Gradients are strided like
    what they are of.
    """
    stub = there.stub
    for name, of_lse, deterministic in itertools.product(layouts, (False, True), (False, True)):
        if deterministic and name != "plain":
            continue  # the features have stages of their own
        before: list = []
        for again in (False, True):
            inputs, options = LAYOUTS[name]()
            outputs = called(adapter, inputs, options, return_lse=True, deterministic=deterministic)
            count = 1 + of_lse
            douts = [torch.empty_like(x) for x in outputs[:count]]
            stub.launched.clear()
            stub.long_way.clear()
            with pytest.MonkeyPatch.context() as patch:
                if again:
                    patch.setattr(adapter, "call_backward", None)
                    patch.setattr(adapter, "call_varlen_backward", None)
                found = torch.autograd.grad(outputs[:count], inputs, douts)
            assert bool(stub.long_way) is not again and bool(stub.launched) is again, name
            given = [x for x in options.values() if isinstance(x, torch.Tensor)]
            made = (*inputs, *outputs, *douts, *given, *found)
            seen = told(stub.launched or stub.long_way, {x.data_ptr(): i for i, x in enumerate(made)})
            if again:
                assert seen == before, name
            before = seen
            places = {place for *_, each, _ in seen for place, _ in each}
            assert {*range(5)} - {3} <= places or {*range(5)} <= places, "inputs and the LSE"
            assert {len(made) - i for i in (1, 2, 3)} <= places, "what is returned"
            for x, gradient in zip(inputs, found, strict=True):
                assert gradient.stride() == torch.empty_like(x).stride() and gradient.dtype is x.dtype


def test_a_plan_of_the_gradients_launches_what_the_long_way_does(on_stub):
    check_gradient_launches(ADAPTER, on_stub[0])


def test_gradients_that_arrive_in_any_order_in_memory(on_stub):
    """The gradient of the output may have other strides than the output, or strides of 0."""
    there, _ = on_stub
    for make in (torch.empty_like, transposed, lambda x: torch.zeros(1).half().expand(x.shape)):
        before = None
        for _ in range(2):
            inputs = tensors()
            out = ADAPTER.attention(*inputs)
            dout = make(out.detach())
            there.stub.launched.clear()
            there.stub.long_way.clear()
            torch.autograd.grad(out, inputs, dout)
            seen = told(
                there.stub.launched or there.stub.long_way, {x.data_ptr(): i for i, x in enumerate(inputs)}
            )
            assert before is None or seen == before
            before = seen


def test_who_wants_a_gradient_does_not_matter_to_a_plan(on_stub):
    there, _ = on_stub
    for wanted in map(
        "".join, itertools.chain.from_iterable(itertools.combinations("qkv", n) for n in range(4))
    ):
        inputs = tensors(wanted=wanted)
        out, lse = ADAPTER.attention(*inputs, return_lse=True)
        assert out.requires_grad == lse.requires_grad == bool(wanted)
        with torch.no_grad():
            assert not ADAPTER.attention(*inputs, return_lse=True)[0].requires_grad
        out = ADAPTER.attention(*inputs)
        assert out.requires_grad is bool(wanted)
    assert len(there.stub.launched) > len(there.stub.long_way) > 0
    assert len(plans._plans) == 2  # with and without the LSE


def test_the_function_for_arrays_shares_plans_and_still_refuses_a_gradient(on_stub):
    there, _ = on_stub
    inputs = tensors()
    ADAPTER.attention(*inputs)
    plain = [x.detach() for x in inputs]
    CALLS.attention(*plain, return_lse=True)
    assert len(plans._plans) == 1 and there.stub.launched
    with pytest.raises(ArgumentError, match="requires grad"):
        CALLS.attention(*inputs, return_lse=True)
    sinks = slopes()
    for _ in range(2):
        CALLS.attention(*plain, sinks=sinks)
    with pytest.raises(ArgumentError, match="sinks requires grad"):
        CALLS.attention(*plain, sinks=sinks.requires_grad_())


def check_devices(adapter, there):
    """Tensors of another GPU have a plan of their own, which runs there."""
    kept = []  # another tensor at the same address would be on the same device
    for _ in range(2):
        for device in (0, 1):
            kept.append(inputs := tensors())
            for x in inputs:
                there.on(device)(x)
            there.stub.launched.clear()
            there.stub.long_way.clear()
            adapter.attention(*inputs)
            assert {at for *_, at in there.stub.launched or there.stub.long_way} == {device}
    assert len(plans._plans) == 2
    inputs = tensors()
    there.on(1)(inputs[1])
    with pytest.raises(ArgumentError, match="k is PyTorch on GPU 1"):
        adapter.attention(*inputs)


def test_each_device_has_plans_of_its_own(on_stub):
    check_devices(ADAPTER, on_stub[0])


def check_refusals(adapter, there):
    """A plan that a call without a gradient left does not hide what gradients lack, nor what must be seen."""
    wide = [x.expand(1, 4, 40, 256).contiguous() for x in (torch.zeros(1, 4, 40, 1).half(),) * 3]
    narrow = tensors()
    steep = slopes()
    for _ in range(2):
        adapter.attention(*wide, return_lse=True)
        adapter.attention(*narrow, alibi_slopes=steep)
        adapter.attention(*narrow)
    with pytest.raises(ArgumentError, match="256: for gradients it can be at most 128"):
        adapter.attention(wide[0].requires_grad_(), *wide[1:])
    with pytest.raises(UnsupportedError, match="alibi_slopes require a gradient"):
        adapter.attention(*narrow, alibi_slopes=steep.requires_grad_())
    with pytest.raises(UnsupportedError, match="alibi_slopes require a gradient"):
        adapter.attention(*(x.detach() for x in narrow), alibi_slopes=steep)
    for options in ({"window": 5}, {"causal": 1}, {"window": (-1.0, -1.0)}, {"scale": True}):
        with pytest.raises(ArgumentError):
            adapter.attention(*narrow, **options)
    with torch.autocast("cpu", torch.bfloat16):
        assert adapter.attention(*narrow).dtype is torch.bfloat16
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="no derivative in forward mode"):
        x = forward_ad.make_dual(narrow[0].detach(), torch.ones(SHAPE).half())
        adapter.attention(x, *narrow[1:])

    class Seen(TorchDispatchMode):
        names = ()

        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            Seen.names += (str(func),)
            return func(*args, **(kwargs or {}))

    with Seen():
        adapter.attention(*narrow)
    assert any(f"{adapter.NAMESPACE}.attention" in name for name in Seen.names)


def test_a_plan_does_not_hide_what_is_refused(on_stub):
    check_refusals(ADAPTER, on_stub[0])


def test_autocast_that_casts_nothing_leaves_the_plan(on_stub, monkeypatch):
    """A linear layer under autocast gives what attention would be cast to."""
    narrow = [x.bfloat16().detach() for x in tensors()]
    for _ in range(2):
        ADAPTER.attention(*narrow)
    monkeypatch.setattr(ADAPTER, "_directly", None)
    with torch.autocast("cpu", torch.bfloat16):
        assert ADAPTER.attention(*narrow).dtype is torch.bfloat16


def test_what_a_transform_left_behind_goes_the_long_way(on_stub):
    """A wrapper of `torch.func.grad` that outlives it has an array, and no address that can be read."""
    there, _ = on_stub
    q, k, v = tensors(wanted="")
    left = []
    torch.func.grad(lambda x: (left.append(x), x.float().sum())[1])(q)
    for x in (q, left[0]):
        there.stub.launched.clear()
        out = ADAPTER.attention(x, k.requires_grad_(), v)
        assert out.shape == SHAPE and out.requires_grad
    ((_, _, places, _),) = told(there.stub.launched, {q.data_ptr(): "q"})
    assert "q" in [place for place, _ in places]


@pytest.mark.parametrize("stream", [0, 70, 71])
def test_a_capture_sees_only_pytorchs_allocations(on_stub, stream):
    """On any stream: no memory but PyTorch's, and no output that was made before the capture."""
    there, stub = on_stub[0], on_stub[0].stub
    there.stream, stub.stream = stream, stream
    inputs = [tensors() for _ in range(3)]
    for each in inputs:
        ADAPTER.attention(*each, causal=True)
    there.stream = stub.capturing = 72
    stub.launched.clear()
    allocated = len(stub.allocated)
    kept = [ADAPTER.attention(*each, causal=True) for each in inputs]
    assert {at for *_, at, _, _ in stub.launched} == {72}
    assert not any(key[1] == 72 for key in plans._spares) and len({x.data_ptr() for x in kept}) == 3
    assert len(stub.allocated) == allocated


def test_nothing_is_kept_alive_when_the_output_is_gone(on_stub):
    inputs = tensors()
    for _ in range(2):
        ADAPTER.attention(*inputs)
    gc.collect()
    alive = sum(type(x) is torch.Tensor for x in gc.get_objects())
    for _ in range(20):
        ADAPTER.attention(*inputs)
    gc.disable()
    try:
        assert sum(type(x) is torch.Tensor for x in gc.get_objects()) <= alive + 2
    finally:
        gc.enable()


# Values and autograd on the CPU, as if each call had a plan.


def with_plans(adapter, calls=None):
    """The adapter, whose plans are the CPU executor."""

    def planned(q, k, v, causal, scale, window, softcap, sinks, alibi, used, out, return_lse, *bounds):
        if q.shape[-1] not in (64, 128) or (sinks is not None and sinks.dtype is not torch.float32):
            return None
        q, k, v, sinks = (x if x is None else x.detach() for x in (q, k, v, sinks))
        options = {"causal": causal, "scale": scale, "window": window, "softcap": softcap}
        more = {"sinks": sinks, "alibi_slopes": alibi, "seqused_k": used, "out": out}
        call = CALLS.attention_varlen if bounds else CALLS.attention
        found = call(q, k, v, *bounds, **options, **more, return_lse=return_lse)
        if calls is not None:
            calls.append(return_lse)
        return found if return_lse else (found,)

    def gradients(arrays, features, targets, causal, scale, window, softcap, deterministic):
        if any(x is not None and not x.is_contiguous() and x.stride(-1) != 1 for x in arrays):
            return None
        arrays = [x if x is None else x.detach() for x in arrays]
        features, bounds = [x if x is None else x.detach() for x in features[:3]], features[3:]
        options = {"causal": causal, "scale": scale, "window": window, "softcap": softcap}
        more = dict(zip(("sinks", "alibi_slopes", "seqused_k"), features, strict=False))  # or none
        more |= dict(zip(("dq", "dk", "dv"), targets, strict=True)) | {"deterministic": deterministic}
        call = GRADIENT_CALLS.attention_varlen_backward if bounds else GRADIENT_CALLS.attention_backward
        return call(*arrays[:6], *bounds, dlse=arrays[6], **options, **more)

    adapter.by_a_plan, adapter.gradients_by_a_plan = planned, gradients
    return adapter


@pytest.fixture
def adapter(monkeypatch):
    monkeypatch.setattr(ADAPTER, "by_a_plan", None)  # put back afterwards
    monkeypatch.setattr(ADAPTER, "gradients_by_a_plan", None)
    return with_plans(ADAPTER)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in CASES if case != "padded"])
def test_values_and_gradients(rng, adapter, case):
    shape, options = options_of(rng, case)
    check_values(adapter, rng, torch.float16, shape, **options)


@pytest.mark.long
def test_packed_sequences(rng, adapter):
    check_packed(adapter, rng)


def few(rng, **options):
    return drawn(rng, (1, 2, 16, 64), (1, 1, 24, 64), (1, 1, 24, 64), grad=True, **options)


def check_autograd(adapter, rng):
    """What autograd promises of any operator."""
    q, k, v = few(rng)
    sinks = drawn(rng, (2,), dtype=torch.float32, grad=True)[0]
    (dout,) = drawn(rng, q.shape)
    expected, expected_lse = right(q, k, v, True, sinks=sinks)
    everything = torch.autograd.grad(expected, (q, k, v, sinks), dout.double(), retain_graph=True)

    def call(*names, **options):
        named = {"q": q, "k": k, "v": v, "sinks": sinks}
        inputs = {name: x if name in names else x.detach() for name, x in named.items()}
        return adapter.attention(**inputs, causal=True, **options)

    names = ("q", "k", "v", "sinks")
    for wanted in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in (1, 4)):
        arrays = [(q, k, v, sinks)[i] for i in wanted]
        with torch.no_grad():
            assert not call(*names).requires_grad
        out = call(*(names[i] for i in wanted))
        close(out, expected, 2e-3)
        found = torch.autograd.grad(out, arrays, dout)
        for i, each in zip(wanted, found, strict=True):
            close(each, everything[i], 8e-3)
    with torch.inference_mode():
        assert call(*names).is_inference()

    # The gradient of the LSE alone, and both outputs from one backward.
    out, lse = call(*names, return_lse=True)
    (dlse,) = drawn(rng, lse.shape, dtype=torch.float32)
    alone = torch.autograd.grad(lse, (q, k, sinks), dlse, retain_graph=True)
    right_alone = torch.autograd.grad(expected_lse, (q, k, sinks), dlse.double(), retain_graph=True)
    for each, x in zip(alone, right_alone, strict=True):
        close(each, x, 8e-3)
    close(torch.autograd.grad(call("q", return_lse=True)[1], q, dlse)[0], right_alone[0], 8e-3)

    # Hooks, of the output, of an input and of what is saved.
    seen = []
    out = call(*names)
    out.register_hook(lambda x: seen.append("out") or 2 * x)
    handle = q.register_hook(lambda x: seen.append("q"))
    close(torch.autograd.grad(out, q, dout)[0], 2 * everything[0], 16e-3)
    handle.remove()
    assert seen == ["out", "q"]
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x.clone(), lambda x: x):
        out = call(*names)
    assert len(packed) == 6
    close(torch.autograd.grad(out, k, dout)[0], everything[1], 8e-3)

    # A second derivative is refused, and so is a second backward without retain_graph.
    for wanted in (names, names[:3]):
        (gradient,) = torch.autograd.grad(call(*wanted), q, dout, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            gradient.sum().backward()
    out = call(*names)
    torch.autograd.grad(out, q, dout)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, q, dout)

    # Whatever is saved must not change in between.
    of_rows = {"alibi_slopes": slopes()[:2] / 8, "seqused_k": torch.tensor([20], dtype=torch.int32)}
    for change in of_rows:
        given = {name: x.clone() for name, x in of_rows.items()}
        out = call("q", **given)
        given[change].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    for change in ("q", "k", "v", "sinks", "out", "lse"):
        copies = [x.detach().clone().requires_grad_() for x in (q, k, v, sinks)]
        out, lse = adapter.attention(*copies[:3], sinks=copies[3], causal=True, return_lse=True)
        with torch.no_grad():
            dict(zip(("q", "k", "v", "sinks", "out", "lse"), (*copies, out, lse), strict=True))[change].add_(
                1
            )
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.long
def test_autograd(rng, adapter):
    check_autograd(adapter, rng)


def test_a_call_with_a_gradient_asks_for_its_plan_once(rng, monkeypatch):
    for name in ("by_a_plan", "gradients_by_a_plan", "compute"):
        monkeypatch.setattr(ADAPTER, name, None)
    calls = []
    adapter = with_plans(ADAPTER, calls)
    inputs = few(rng)
    adapter.attention(*inputs)
    with torch.no_grad():
        adapter.attention(*inputs)
    assert calls == [True, False]


def test_keys_of_any_strides(rng):
    """Columns that are not contiguous are copied, whichever array has them."""
    q, k, v = (x.detach() for x in few(rng))
    k, v = (x.mT.contiguous().mT for x in (k, v))
    close(ADAPTER.attention(q, k, v), right(q, k, v)[0], 2e-3)


def test_forward_mode_is_refused_outside_torch_func_too(rng):
    q, k, v = (x.detach() for x in few(rng))
    for attend in (ADAPTER.attention, torch.ops.flashcore.attention):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(q, torch.ones_like(q))
            with pytest.raises(RuntimeError, match="no derivative in forward mode"):
                attend(dual, k, v)
            attend(q, k, v)


# Mistakes in the short way.

OPTIONS = """options: tuple = (causal, scale, None, return_lse)
    if window is not OFF.window or softcap is not OFF.softcap:
        options += told(window, softcap)"""
OF_CALLS = {
    "causal": ((OPTIONS, OPTIONS.replace("(causal,", "(False,")), "causal"),
    "scale": ((OPTIONS, OPTIONS.replace("scale, None", "None, None")), "scale"),
    "window": (
        (OPTIONS, OPTIONS.replace("told(window, softcap)", "told((9, 0), softcap)")),
        "another window",
    ),
    "window and softcap": ((OPTIONS, OPTIONS.replace("told(window, softcap)", "()")), "softcap"),
    "features": (("features, history=True", "(), history=True"), "sinks"),
    "no gradients": ((", history=True", ""), "plain"),
    "bounds exchanged": (
        ("seqused_k, cu_seqlens_q, cu_seqlens_k\n    _,", "seqused_k, cu_seqlens_k, cu_seqlens_q\n    _,"),
        "packed",
    ),
}
FOUND = '("backward", causal, scale, deterministic, stage)'
SIDES = "if window is not OFF.window or softcap is not OFF.softcap:"
LATER = "if features or dlse is not None or dk is not None or dv is not None:"
OF_GRADIENT_CALLS = {
    "causal": ((FOUND, FOUND.replace("causal", "False")), "causal"),
    "scale": ((FOUND, FOUND.replace("scale", "None")), "scale"),
    "window": ((SIDES, "if softcap is not OFF.softcap:"), "window"),
    "softcap": ((SIDES, "if window is not OFF.window:"), "softcap"),
    "deterministic": ((FOUND, FOUND.replace("deterministic, ", "")), "plain"),
    "features": (("dk, dv, *features)", "dk, dv)"), "sinks"),
    "features alone": ((LATER, LATER.replace("features or ", "")), "sinks"),
    "gradient of the LSE": ((LATER, LATER.replace("dlse is not None or ", "")), "plain"),
    "gradients that are given": (
        (LATER, LATER.replace(" or dk is not None or dv is not None", "")),
        "strided k",
    ),
    "no gradients": ((", history=True", ""), "plain"),
}
OF_READERS = {
    "strides of q": (("q.shape, q.stride()", "q.shape, ()"), "another rows of q"),
    "strides of k": (("k.shape, k.stride()", "k.shape, ()"), "strided k"),
    "strides of v": (("v.shape, v.stride()", "v.shape, ()"), "strided v"),
    "shape of k": (("k.shape, k.stride(), v.shape, v.stride()", "()"), "more keys"),
    "element type": (("layout = (dtype, stored,", "layout = ("), "bfloat16"),
    "devices": (("devices = (", "devices = () and ("), "devices"),
}
OF_ADAPTER = {
    "without the LSE": ((", wanted or return_lse, *bounds)", ", return_lse, *bounds)"), "autograd"),
    "a gradient is never wanted": (
        ("wanted = _wanted(q, k, v, sinks, alibi_slopes)\n", "wanted = False\n"),
        "values",
    ),
    "not of v": (("or v.requires_grad\n", "\n"), "autograd"),
    "not of sinks": (('or (sinks is not None and getattr(sinks, "requires_grad", False))', ""), "autograd"),
    "not of slopes": (
        ('or (slopes is not None and getattr(slopes, "requires_grad", False))', ""),
        "refusals",
    ),
    "options of another causal": (
        ("options = (causal, scale, *window, softcap", "options = (False, scale, *window, softcap"),
        "values",
    ),
    "window of the gradient": (
        ("options = (causal, scale, *window, softcap", "options = (causal, scale, -1, -1, softcap"),
        "wide",
    ),
    "LSE and output exchanged": (("q, k, v, *found, sinks,", "q, k, v, *found[::-1], sinks,"), "values"),
    "sinks are not saved": (("q, k, v, *found, sinks,", "q, k, v, *found, None,"), "autograd"),
    "lengths and slopes are not saved": (
        ("sinks, *options[SLOPES:-1])", "sinks, *options[SLOPES:-1][:0])"),
        "autograd",
    ),
    "what is saved is a copy": (("q, k, v, *found, sinks,", "q.clone(), k, v, *found, sinks,"), "autograd"),
    "rows after the last sequence": (
        ("out = torch.zeros_like(q) if bounds", "out = torch.full_like(q, torch.nan) if bounds"),
        "packed values",
    ),
    "gradients after the last sequence": (
        ("torch._foreach_zero_(gradients)", "torch._foreach_mul_(gradients, torch.nan)"),
        "packed values",
    ),
    "bounds of the gradients exchanged": (
        ("slopes, used, *bounds)", "slopes, used, *bounds[::-1])"),
        "gradients",
    ),
    "one output for two": (
        ("return found if return_lse else found[0]\n\n    @static", "return found[0]\n\n    @static"),
        "values",
    ),
    "q's order is lost": (
        ("            out = torch.empty_like(q)\n", "            out = None\n"),
        "launches",
    ),
    "head dimensions": (
        ("    _check_gradient(q, v, options)\n    return _joined", "    return _joined"),
        "refusals",
    ),
    "types of a window": ((" type(left) is int and type(right) is int and -1", " -1"), "refusals"),
    "autocast": ((" and _as_autocast_has_it(q, k, v)", ""), "refusals"),
    "another type than autocast's": (("(device) is q.dtype is", "(device) is not q.dtype is"), "refusals"),
    "modes": (("and not torch._C._len_torch_dispatch_stack()", ""), "refusals"),
    "gradients of K and V exchanged": (
        (
            "        return found\n    if not (q.numel",
            "        return found[0], found[2], found[1]\n    if not (q.numel",
        ),
        "values",
    ),
    "gradient of the LSE": (
        (
            "arrays, window = (dout, q, k, v, out, lse, dlse)",
            "arrays, window = (dout, q, k, v, out, lse, None)",
        ),
        "autograd",
    ),
    "used keys of the gradient": (("(sinks, slopes, used)", "(sinks, slopes, None)"), "used"),
    "scale of the gradient": (
        ("gradients, causal, scale, window", "gradients, causal, None, window"),
        "full",
    ),
    "order of the gradients": (
        ("if packed or not (q.is", "if packed or False and (q.is"),
        "gradients",
    ),
    "forward mode": (("        and not _in_forward_mode()\n", ""), "refusals"),
    "sinks without a gradient": (("if of_sinks or torch.is_grad", "if torch.is_grad"), "autograd"),
    "a second derivative": (("of_sinks or torch.is_grad_enabled() or", "of_sinks or"), "autograd"),
}


def checked(adapter, case, rng, there=None):
    if case in LAYOUTS:
        first = case.removeprefix("another ") if "another" in case else "plain"
        return check_launches(adapter, there, (first, case) if first != case else (case,))
    if case == "launches":
        return check_launches(adapter, there)
    if case == "gradients":
        return check_gradient_launches(adapter, there)
    if case == "devices":
        return check_devices(adapter, there)
    if case == "refusals":
        return check_refusals(adapter, there)
    if case == "autograd":
        return check_autograd(with_plans(adapter), rng)
    if case == "packed values":
        return check_packed(with_plans(adapter), rng)
    shape, options = options_of(rng, "gqa" if case == "values" else case)
    return check_values(with_plans(adapter), rng, torch.float16, shape, **options)


BROKEN = (
    AssertionError,
    AttributeError,
    TypeError,
    IndexError,
    ValueError,
    RuntimeError,
    pytest.fail.Exception,
)


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_mistake_in_the_key_of_a_plan_is_noticed(rng, on_stub, monkeypatch, name):
    edit, case = OF_CALLS[name]
    monkeypatch.setattr(ADAPTER, "by_a_plan", broken(CALLS, edit).planned)
    must_notice(lambda adapter: checked(adapter, case, rng, on_stub[0]), ADAPTER, BROKEN)


@pytest.mark.parametrize("name", OF_GRADIENT_CALLS)
def test_a_mistake_in_the_key_of_gradients_is_noticed(on_stub, monkeypatch, name):
    """In what is looked for and what is kept: a plan that is found for another call is a wrong one."""
    edit, case = OF_GRADIENT_CALLS[name]
    copy = broken(GRADIENT_CALLS, edit)
    monkeypatch.setattr(ADAPTER, "gradients_by_a_plan", copy.planned)
    monkeypatch.setattr(ADAPTER, "call_backward", copy.attention_backward)
    must_notice(
        lambda adapter: check_gradient_launches(adapter, on_stub[0], ("plain", case)), ADAPTER, BROKEN
    )


@pytest.mark.parametrize("name", OF_READERS)
def test_a_mistake_in_what_is_read_of_tensors_is_noticed(rng, on_stub, name):
    edit, case = OF_READERS[name]
    on_stub[1](edit)
    must_notice(lambda adapter: checked(adapter, case, rng, on_stub[0]), ADAPTER, BROKEN)


def marked(name):
    on_cpu = OF_ADAPTER[name][1] not in ("launches", "gradients", "refusals")
    return pytest.param(name, marks=pytest.mark.long if on_cpu else ())


@pytest.mark.parametrize("name", [marked(name) for name in OF_ADAPTER])
def test_a_mistake_in_the_short_way_is_noticed(rng, request, name):
    edit, case = OF_ADAPTER[name]
    there = request.getfixturevalue("on_stub")[0] if case in ("launches", "gradients", "refusals") else None
    must_notice(lambda adapter: checked(adapter, case, rng, there), fresh(edit), BROKEN)


def test_a_copy_without_a_mistake_passes(rng, on_stub):
    copy = fresh()
    for case in ("launches", "gradients", "refusals", "devices"):
        plans.forget()
        checked(copy, case, rng, on_stub[0])


@pytest.mark.long
def test_a_copy_without_a_mistake_has_right_values(rng):
    for case in ("values", "wide", "autograd"):
        checked(fresh(), case, rng)
