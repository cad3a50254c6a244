"""Other libraries' arrays come in without a copy and go back as their own kind.

Objects that offer the same few attributes stand in for PyTorch and GPU arrays; tests/gpu has the real ones.
"""

import sys
import types

import numpy as np
import pytest

from flashcore_numba import ArgumentError
from flashcore_numba.core import gpu
from flashcore_numba.core.arrays import adopt, empty_like, overlap, same_kind
from flashcore_numba.core.element import BFLOAT16, named


class Producer:
    """A library's array that offers DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class StandardProducer(Producer):
    """One that also has an array API namespace, as JAX arrays do."""

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda array: StandardProducer(array))


class OnDevice(Producer):
    def __init__(self, device):
        super().__init__(np.ones((1, 1, 1, 64), np.float16))
        self.device = device

    def __dlpack_device__(self):
        return (self.device, 0)


class Interface:
    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "version": 3, "shape": (1, 1, 1, 64), "typestr": "<f2", "data": (4096, False), **changes
        }  # fmt: skip


class Tensor:
    """The part of a PyTorch CPU tensor that is asked for."""

    def __init__(
        self, array, dtype="float16", layout="strided", device="cpu", requires_grad=False, negative=False
    ):
        self.array, self.requires_grad, self.negative = array, requires_grad, negative
        self.dtype, self.layout = f"torch.{dtype}", f"torch.{layout}"
        self.device = types.SimpleNamespace(type=device)

    def is_neg(self):
        return self.negative

    def view(self, dtype):
        return Tensor(self.array.view(dtype), dtype)

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array


Tensor.__module__ = "torch"


@pytest.fixture
def x(rng):
    return rng.standard_normal((2, 3, 4, 64)).astype(np.float16)


@pytest.fixture
def torch(monkeypatch):
    def empty(shape, dtype, device):
        assert device.type == "cpu"
        return Tensor(np.empty(shape, named(dtype).dtype), dtype)

    names = ("float16", "bfloat16", "float32", "int16")
    fake = types.SimpleNamespace(empty=empty, **{name: name for name in names})
    monkeypatch.setitem(sys.modules, "torch", fake)


@pytest.mark.parametrize("wrap, kind", [(lambda a: a, "NumPy"), (Tensor, "PyTorch"), (Producer, __name__)])
def test_views_share_memory(x, wrap, kind):
    source = wrap(x.transpose(0, 2, 1, 3))
    adopted = adopt(source, "q")
    assert adopted.source is source
    assert adopted.kind == kind
    assert adopted.view.ctypes.data == x.ctypes.data
    assert adopted.view.strides == x.transpose(0, 2, 1, 3).strides


def test_results_are_of_the_callers_kind(x, torch):
    for source, kind in ((x, np.ndarray), (Tensor(x), Tensor), (StandardProducer(x), StandardProducer)):
        made = empty_like(adopt(source, "q"), (2, 3, 4), np.float32)
        assert type(made.source) is kind
        made.view[...] = 7
        seen = made.source if kind is np.ndarray else made.source.array
        np.testing.assert_array_equal(seen, np.full((2, 3, 4), 7, np.float32))


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: Tensor(a, "bfloat16")], ids=["NumPy", "PyTorch"])
def test_bfloat16_comes_in_and_goes_back(wrap, rng, torch):
    x = BFLOAT16.round(rng.standard_normal((2, 4, 3, 64))).transpose(0, 2, 1, 3)
    adopted = adopt(wrap(x), "q")
    assert adopted.view.dtype == x.dtype and adopted.view.strides == x.strides
    assert adopted.view.ctypes.data == x.ctypes.data
    made = empty_like(adopted, (2, 3), BFLOAT16.dtype)
    made.view[...] = 0.5
    back = made.source.array if adopted.kind == "PyTorch" else made.source
    assert type(made.source) is type(adopted.source)
    assert back.dtype == BFLOAT16.dtype and (back == 0.5).all()


def test_a_producer_that_takes_nothing_back_gets_numpy(x):
    assert type(empty_like(adopt(Producer(x), "q"), (2, 3), np.float32).source) is np.ndarray


F16 = np.ones((1, 1, 1, 64), np.float16)
BAD = {
    "list": (F16.tolist(), ["list", "NumPy, CuPy, PyTorch"]),
    "number": (3, ["int", "NumPy, CuPy, PyTorch"]),
    "float8 tensor": (Tensor(F16, dtype="float8_e4m3fn"), ["float8_e4m3fn", "bfloat16", "half()"]),
    "tensor that requires grad": (
        Tensor(F16, requires_grad=True),
        ["requires grad", "no autograd", "flashcore_numba.integrations.pytorch", "k.detach()"],
    ),
    "negated tensor": (Tensor(F16, negative=True), ["no plain memory", "k.resolve_neg()"]),
    "negated tensor on a gpu": (
        Tensor(F16, device="cuda", negative=True),
        ["no plain memory", "k.resolve_neg()"],
    ),
    "sparse tensor": (Tensor(F16, layout="sparse_coo"), ["sparse_coo", "strided"]),
    "tensor on another device": (Tensor(F16, device="meta"), ["device", "cpu and cuda"]),
    "dlpack on another device": (OnDevice(8), ["device type 8", "host memory (1) and CUDA"]),
    "dlpack on a gpu": (OnDevice(2), ["on a GPU", "no driver here"]),
    "tensor on a gpu": (Tensor(F16, device="cuda"), ["on a GPU", "no driver here"]),
    "interface": (Interface(), ["on a GPU", "no driver here"]),
    "interface with a mask": (Interface(mask=F16), ["masked", "plain"]),
    "interface of bytes": (Interface(typestr="|V2"), ["V2", "float16"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_array_is_named(case, monkeypatch):
    monkeypatch.setattr(gpu, "why_not", lambda: "no driver here")
    array, words = BAD[case]
    with pytest.raises(ArgumentError) as caught:
        adopt(array, "k")
    message = str(caught.value)
    assert message.startswith("k "), message
    assert [word for word in words if word not in message] == [], message


def test_unreadable_dlpack_is_named():
    class Broken(Producer):
        def __dlpack__(self, **options):
            raise BufferError("bfloat16 is not for export")

    with pytest.raises(
        ArgumentError, match=r"v cannot be read through DLPack \(bfloat16 is not for export\)"
    ):
        adopt(Broken(F16), "v")


def test_mixed_kinds_are_named(x):
    q, k = adopt(x, "q"), adopt(Tensor(x), "k")
    same_kind(q=q, k=q, out=None)
    with pytest.raises(ArgumentError, match="k is PyTorch on the host but q is NumPy on the host"):
        same_kind(q=q, k=k, v=q)


def test_overlap_knows_interleaved_from_shared(x):
    packed = np.zeros((2, 4, 2, 3, 64), np.float16)
    assert not overlap(packed[:, :, 0], packed[:, :, 1])
    assert overlap(packed[:, :, 0], packed[:, 1:3, 0])
    assert overlap(x, x[1:])
    assert not overlap(x[:1], x[1:])
