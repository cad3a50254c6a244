"""A stand-in for a GPU, CuPy, PyTorch and the driver: it notes what launches were given, and runs none."""

import ctypes
import struct
import sys
import threading
import types

import numpy as np
import pytest

import cuda_reference.gpu
from cuda_reference import TensorMap, driver, packed, tensor_map
from flashcore_numba.core import gpu
from flashcore_numba.core.element import named
from flashcore_numba.run import executor, plans, workspace

SHAPE = (1, 8, 512, 64)


class FakeGpu:
    """Notes launches, each (kernel, sizes, stream, args, device): `long_way` CuPy's, `launched` a plan's."""

    def __init__(self):
        self.current, self.stream, self.top, self.capturing = 0, 7, 1 << 30, None
        self.long_way, self.launched, self.devices = [], [], []
        self.kernels, self.without_context, self.pause = {}, False, threading.Event().wait
        self.recorded, self.graphs, self.graph_launches, self.inference = {}, [], 0, False
        self.early, self.allocated, self.modes, self.ties = [], [], threading.local(), []
        self.numbers, self.capture_number, self.zeroed = {}, 0, []

    def unsafe(self, what):
        """CUDA refuses it beside a capture, in other threads too, and the capture is lost."""
        assert self.capturing is None or getattr(self.modes, "mode", 0) == 2, f"{what} during a capture"

    def memory(self, size):
        self.unsafe("memory is allocated")
        self.allocated.append(size)
        at, self.top = self.top, self.top + -(-size // 256) * 256
        return types.SimpleNamespace(ptr=at, device_id=self.current)

    def load(self, source):
        self.unsafe("a kernel is loaded")
        found = self.kernels.setdefault(source, Kernel(self, source, len(self.kernels) + 1))
        found.loads += 1
        return found

    # The driver.
    def cuThreadExchangeStreamCaptureMode(self, mode):
        mode = mode._obj
        mode.value, self.modes.mode = getattr(self.modes, "mode", 0), mode.value
        return 0

    def cuStreamGetId(self, stream, number):
        number._obj.value = self.numbers.get(stream.value or 0, 5000 + (stream.value or 0))
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream, status, number, graph, *_):
        if stream.value == self.capturing:
            status._obj.value, number._obj.value, graph._obj.value = 1, self.capture_number, 77
        return 0

    def cuUserObjectCreate(self, made, pointer, destroy, count, flags):
        assert (count, flags) == (1, 1)
        made._obj.value = len(self.ties) + 1
        self.ties.append([pointer.value, destroy.value, None])
        return 0

    def cuGraphRetainUserObject(self, graph, made, count, flags):
        assert (count, flags) == (1, 1)
        self.ties[made.value - 1][2] = graph.value
        return 0

    def destroy_graphs(self):
        for pointer, destroy, graph in self.ties:
            assert graph == 77
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(destroy)(pointer)
        self.ties.clear()

    def cuTensorMapReplaceAddress(self, place, address):
        if self.without_context:
            return packed.INVALID_CONTEXT
        ctypes.memmove(place.value, struct.pack("Q", address.value), 8)
        return 0

    def launchKernel(self, function, *rest):
        sizes, stream, parameters, extra = list(rest[:7]), *rest[7:]
        assert extra == 0
        if self.without_context:
            raise DriverError(packed.INVALID_CONTEXT)
        kernel = next(k for k in self.kernels.values() if k.handle == function)
        self.pause(0)
        launched = self.recorded.get(stream, self.launched)
        places = (ctypes.c_uint64 * len(kernel.lengths)).from_address(parameters)
        args = [ctypes.string_at(at, n) for at, n in zip(places, kernel.lengths, strict=True)]
        launched.append((kernel.source, sizes, stream, args, self.current))

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        config = config._obj
        attribute = packed._Attribute.from_address(config.attributes)
        assert (config.count, attribute.id, attribute.value[0], extra) == (1, 6, 1, None)
        try:
            self.launchKernel(function.value, *config.sizes, config.stream or 0, parameters.value, 0)
        except DriverError as error:
            return error.status
        self.early.append(next(k.source for k in self.kernels.values() if k.handle == function.value))
        return 0

    # Graphs.
    def graphLaunch(self, graph, stream):
        self.pause(0)
        self.graph_launches += 1
        for source, sizes, _, args, device in self.graphs[graph]:
            assert device == self.current
            self.launched.append((source, sizes, stream, args, device))


class DriverError(RuntimeError):
    def __init__(self, status):
        super().__init__(status)
        self.status = status


def check_status(status):
    if status:
        raise DriverError(status)


class Kernel:
    def __init__(self, stub, source, handle):
        self.stub, self.source, self.handle, self.loads = stub, source, handle, 0

    def use_device(self):
        self.stub.without_context = False

    def __call__(self, grid, block, args, shared_mem=0):
        args = [as_bytes(value) for value in args]
        self.lengths = [len(value) for value in args]
        three = [(*((x,) if isinstance(x, int) else x), 1, 1)[:3] for x in (grid, block)]
        sizes = [*three[0], *three[1], shared_mem]
        self.stub.long_way.append((self.source, sizes, self.stub.stream, args, self.stub.current))


def as_bytes(value):
    if value is None:
        return bytes(8)
    if isinstance(value, TensorMap):
        return bytes(value.for_gpu())
    return value.tobytes() if isinstance(value, np.generic) else struct.pack("Q", value.data.ptr)


def encoded(address, *layout):
    data = struct.pack("Q", address) + repr(layout).encode()[:100]
    return np.frombuffer(data.ljust(128, b"\0"), np.dtype((np.void, 128)))[0]


@pytest.fixture
def stub(monkeypatch):
    stub = FakeGpu()

    class ndarray:
        def __init__(self, shape, dtype, data=None, strides=None):
            self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
            self.itemsize, self.nbytes = self.dtype.itemsize, int(np.prod(shape)) * self.dtype.itemsize
            packed = np.empty((1,), self.dtype)[:0].reshape(0, *self.shape).strides[1:]
            self.strides = strides or packed
            self.flags = types.SimpleNamespace(c_contiguous=self.strides == packed)
            self.data = data or stub.memory(self.nbytes)
            self.device = types.SimpleNamespace(id=self.data.device_id)

        def view(self):
            return ndarray(self.shape, self.dtype, self.data, self.strides)

        def copy(self, order):
            return ndarray(self.shape, self.dtype)

        def swapaxes(self, a, b):
            shape, strides = list(self.shape), list(self.strides)
            shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
            return ndarray(shape, self.dtype, self.data, tuple(strides))

        def reshape(self, *shape):
            assert self.flags.c_contiguous
            return ndarray(shape, self.dtype, self.data)

        def __getitem__(self, index):
            assert index is None
            step = self.shape[0] * self.strides[0]
            return ndarray((1, *self.shape), self.dtype, self.data, (step, *self.strides))

    class Device:
        def __init__(self, number=None):
            self.id = stub.current if number is None else number

        def __enter__(self):
            self.before, stub.current = stub.current, self.id
            stub.devices.append(self.id)

        def __exit__(self, *_):
            stub.current = self.before

    class MemoryPointer:
        def __init__(self, memory, offset):
            self.ptr, self.device_id = memory.ptr + offset, memory.device_id

    class Stream:
        def __init__(self, ptr=None, non_blocking=False):
            self.ptr, self.before = ptr or 1000 + len(stub.graphs), []

        def synchronize(self):
            pass

        def begin_capture(self):
            stub.recorded[self.ptr] = []

        def end_capture(self):
            stub.graphs.append(stub.recorded.pop(self.ptr))
            return types.SimpleNamespace(graphExec=len(stub.graphs) - 1)

        @classmethod
        def from_external(cls, handle):
            return cls(handle.__cuda_stream__()[1])

        def __enter__(self):
            self.before.append(stub.stream)
            stub.stream = self.ptr
            return self

        def __exit__(self, *_):
            stub.stream = self.before.pop()

    ndarray.__module__, ndarray.__qualname__ = "cupy", "ndarray"
    cupy = types.ModuleType("cupy")
    cupy.ndarray, cupy.empty = ndarray, ndarray
    cupy.cuda = types.SimpleNamespace(
        Device=Device,
        alloc=stub.memory,
        Memory=stub.memory,
        runtime=types.SimpleNamespace(
            memsetAsync=lambda at, value, size, stream: stub.zeroed.append((at, at + size)),
            getDevice=lambda: stub.current,
            streamIsCapturing=lambda stream: stream == stub.capturing,
            graphLaunch=stub.graphLaunch,
        ),
        driver=types.SimpleNamespace(
            launchKernel=stub.launchKernel, check_status=check_status, CUDADriverError=DriverError
        ),
        get_current_stream=lambda: Stream(stub.stream),
        Stream=Stream,
        MemoryPointer=MemoryPointer,
        UnownedMemory=lambda at, size, owner, device: types.SimpleNamespace(ptr=at, device_id=device),
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cuda_reference.gpu, "load", stub.load)
    monkeypatch.setattr(driver, "driver", lambda: stub)
    monkeypatch.setattr(tensor_map, "_encoded", encoded)
    monkeypatch.setattr(gpu, "compute_capability", lambda device=0: (9, 0))
    monkeypatch.setattr(gpu, "shared_limit", lambda device=0: 232448)
    monkeypatch.setattr(executor, "_sm_count", lambda device: 132)
    stub.array = lambda shape=SHAPE, strides=None, data=None, dtype=np.float16: ndarray(
        shape, dtype, data, strides
    )
    for name in ("_idle", "_counters"):
        monkeypatch.setattr(workspace, name, {})
    for name in ("_tied", "_released"):
        monkeypatch.setattr(workspace, name, [])
    plans.forget()
    yield stub
    plans.forget()


@pytest.fixture
def fake_torch(stub, monkeypatch):
    """PyTorch as far as attention() uses it, with a current stream of its own."""
    torch = types.ModuleType("torch")
    for name in ("strided", "float16", "bfloat16", "float32", "int32"):
        setattr(torch, name, f"torch.{name}")

    class Tensor:
        is_cuda, requires_grad, negative, layout = True, False, False, torch.strided

        def __init__(self, shape, dtype, device):
            element = named(name := dtype.removeprefix("torch."))
            with driver.Allowed():  # as PyTorch's own allocator does
                self.array = sys.modules["cupy"].ndarray(shape, element.dtype if element else name)
            self.array.data.device_id = device
            self.shape, self.dtype = self.array.shape, dtype
            self.device = types.SimpleNamespace(type="cuda", index=device)

        def stride(self):
            return tuple(step // self.array.itemsize for step in self.array.strides)

        def is_contiguous(self):
            return (
                self.array.strides == np.empty((1,), self.array.dtype)[:0].reshape(0, *self.shape).strides[1:]
            )

        def is_neg(self):
            return self.negative

        def get_device(self):
            return self.device.index

        def element_size(self):
            return self.array.itemsize

        def data_ptr(self):
            return self.array.data.ptr

    Tensor.__module__, Tensor.__qualname__ = "torch", "Tensor"
    torch.Tensor, torch.is_inference_mode_enabled = Tensor, lambda: stub.inference
    torch.empty = lambda shape, dtype, device: Tensor(shape, dtype, getattr(device, "index", device))
    torch.empty_strided = lambda shape, steps, dtype, device: torch.empty(shape, dtype, device)
    torch.empty_like = lambda other: Tensor(other.shape, other.dtype, other.get_device())
    torch.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=70 + device)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(gpu, "why_not", lambda: None)
    return torch


def three(stub, shape=SHAPE, kv_shape=None):
    return stub.array(shape), stub.array(kv_shape or shape), stub.array(kv_shape or shape)


def both_ways(stub, call):
    """What a planned call launches, and what the long way does with the very same memory."""
    stub.launched.clear()
    stub.long_way.clear()
    plans._spares.clear()
    workspace.forget()
    top = stub.top
    call()
    assert not stub.long_way
    fast, stub.top = list(stub.launched), top
    plans.forget()
    call()
    return fast, stub.long_way
