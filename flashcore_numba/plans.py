"""Plans: what `attention()` keeps of a call on a GPU, so that the next call like it has only to launch.

Checking the arguments, choosing a stage and packing what its kernels take depends on how the arrays are laid
out, not on where they lie. The first call of a layout does all of it and keeps the launches; the calls after
it put in the addresses. Plans serve CuPy arrays and PyTorch tensors whose rows start at multiples of 16
bytes, and stages in CUDA C; all other calls go the long way each time.

A plan holds compiled kernels: it does not see that a file has been edited since. `forget()` after an edit.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .problem import ALIGNMENT, Problem

if TYPE_CHECKING:
    from cuda_reference.packed import PackedLaunches

__all__ = ["Call", "Plan", "Recorder", "find", "forget", "keep", "torchs_stream"]

HALF = np.dtype(np.float16)
NO_OUT = ("no out",)
MOST = 512  # plans; a program that never repeats a layout starts over after so many

LEGACY = (0, 1)  # handles of the default stream, which cannot be captured

_plans: "dict[tuple, Plan]" = {}
# A CUDA graph keeps addresses, not memory: scratch memory that it was given is nobody else's from then on.
_captured: list[Any] = []


def forget() -> None:
    """Drop all plans, so that the next calls read the kernels' files again."""
    _plans.clear()


class Call:
    """The arrays of one call: `key`, all that its plan depends on, and where they lie.

    addresses: of q, k, v and out, 0 without one. key: None for a call that no plan can serve.
    """

    __slots__ = ("addresses", "device", "key", "out", "torch")

    def __init__(self, q: Any, k: Any, v: Any, out: Any, options: tuple) -> None:
        self.key, self.out, kind = None, out, type(q)
        if type(k) is not kind or type(v) is not kind or (out is not None and type(out) is not kind):
            return
        described = _READERS.get((kind.__module__, kind.__qualname__))
        if described is None:
            return
        (q_layout, q_at), (k_layout, k_at), (v_layout, v_at) = described(q), described(k), described(v)
        out_layout, out_at = (NO_OUT, 0) if out is None else described(out)
        if not (q_layout and k_layout and v_layout and out_layout):
            return
        if (q_at | k_at | v_at | out_at) % ALIGNMENT:
            return
        self.torch, self.device = described is _torch, q_layout[0]
        self.addresses = (q_at, k_at, v_at, out_at)
        # True == 1 and 1 == 1.0, but only one of them may be a good argument.
        self.key = (self.torch, q_layout, k_layout, v_layout, out_layout, options, *map(type, options))


def _cupy(array: Any) -> tuple[tuple, int]:
    """(device, shape, strides) and the address; no layout for what a plan does not serve."""
    data = array.data
    if array.dtype is not HALF:
        return (), 0
    return (data.device_id, array.shape, array.strides), data.ptr


def _torch(tensor: Any) -> tuple[tuple, int]:
    torch = sys.modules["torch"]
    plain = tensor.dtype is torch.float16 and tensor.layout is torch.strided
    if not (plain and tensor.is_cuda) or tensor.requires_grad:
        return (), 0
    return (tensor.get_device(), tensor.shape, tensor.stride()), tensor.data_ptr()


_READERS = {("cupy", "ndarray"): _cupy, ("torch", "Tensor"): _torch}


def find(call: Call) -> "Plan | None":
    try:
        return None if call.key is None else _plans.get(call.key)
    except TypeError:  # an argument without a hash is a bad one: the long way says so
        return None


def keep(call: Call, plan: "Plan | None") -> None:
    if plan is None or call.key is None:
        return
    if len(_plans) >= MOST:
        _plans.clear()
    _plans[call.key] = plan


class Plan:
    """The launches of one stage for arrays of one layout, kind and device."""

    def __init__(
        self, launches: "PackedLaunches", problem: Problem, out: Any, lse: bool, scratch: list[int]
    ) -> None:
        self._launches, self._scratch, self._lse = launches, scratch, lse
        self._shape = tuple(problem.q.shape)
        self._sizes = [_span(x) for x in (problem.q, problem.k, problem.v)]
        self._out_size = _span(out)

    def run(self, call: Call) -> Any:
        """What `attention()` returns; None, and nothing is launched, where `out` may overlap an input."""
        import cupy

        if call.out is not None and self._may_overlap(call.addresses):
            return None
        if cupy.cuda.runtime.getDevice() == call.device:
            return self._torch(call, cupy) if call.torch else self._cupy(call, cupy)
        with cupy.cuda.Device(call.device):
            return self._torch(call, cupy) if call.torch else self._cupy(call, cupy)

    def _cupy(self, call: Call, cupy: Any) -> Any:
        out, lse, (q_at, k_at, v_at, out_at), lse_at = call.out, None, call.addresses, 0
        if out is None:
            out = cupy.ndarray(self._shape, np.float16)
            out_at = out.data.ptr
        if self._lse:
            lse = cupy.ndarray(self._shape[:3], np.float32)
            lse_at = lse.data.ptr
        stream = cupy.cuda.get_current_stream().ptr
        self._launch(cupy, [q_at, k_at, v_at, out_at, lse_at], stream)
        return out if lse is None else (out, lse)

    def _torch(self, call: Call, cupy: Any) -> Any:
        torch = sys.modules["torch"]
        out, lse, (q_at, k_at, v_at, out_at), lse_at = call.out, None, call.addresses, 0
        if out is None:
            out = torch.empty(self._shape, dtype=torch.float16, device=call.device)
            out_at = out.data_ptr()
        if self._lse:
            lse = torch.empty(self._shape[:3], dtype=torch.float32, device=call.device)
            lse_at = lse.data_ptr()
        stream = torch.cuda.current_stream(call.device).cuda_stream
        # CuPy's pool gives scratch memory out in the order of its current stream.
        with torchs_stream(call.device) if self._scratch else nullcontext():
            self._launch(cupy, [q_at, k_at, v_at, out_at, lse_at], stream)
        return out if lse is None else (out, lse)

    def _launch(self, cupy: Any, addresses: list[int], stream: int) -> None:
        if not self._scratch:
            self._launches(addresses, stream)
            return
        memory = [cupy.cuda.alloc(size) for size in self._scratch]  # freed in the order of the stream
        if stream not in LEGACY and cupy.cuda.runtime.streamIsCapturing(stream):
            _captured.append(memory)
        self._launches([*addresses, *(each.ptr for each in memory)], stream)

    def _may_overlap(self, addresses: tuple[int, ...]) -> bool:
        *inputs, out = addresses
        end = out + self._out_size
        return any(at < end and out < at + size for at, size in zip(inputs, self._sizes, strict=True))


class Recorder:
    """An executor that notes what a stage asks of `Gpu` and passes it on.

    An array that stands for two arguments would leave open which of them a launch meant: give the stage
    `recorder.problem`, which has views of its own.
    """

    def __init__(self, executor: Any, problem: Problem) -> None:
        self._executor = executor
        self._notes: list[tuple] = []
        self._scratch: list[Any] = []
        self.problem = replace(problem, q=problem.q.view(), k=problem.k.view(), v=problem.v.view())

    @property
    def sm_count(self) -> int:
        return self._executor.sm_count

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = self._executor.empty(shape, dtype)
        self._scratch.append(array)
        return array

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self._executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)
        self._notes.append((kernel, grid, block, args, shared_bytes))

    def plan(self, out: Any, lse: Any) -> Plan | None:
        """The plan of what was launched; None where an argument is neither an array of the call nor a number.

        `out` and `lse` are the arrays that the stage was given.
        """
        from cuda_reference import Source
        from cuda_reference.gpu import load
        from cuda_reference.packed import PackedLaunches

        if not all(isinstance(kernel, Source) for kernel, *_ in self._notes):
            return None
        p = self.problem
        launches = [(load(kernel), *rest) for kernel, *rest in self._notes]
        try:
            packed = PackedLaunches(launches, (p.q, p.k, p.v, out, lse, *self._scratch))
        except ValueError:
            return None
        sizes = [prod(x.shape) * x.dtype.itemsize for x in self._scratch]
        return Plan(packed, p, out, lse is not None, sizes)


def _span(array: Any) -> int:
    """Bytes from the first element of an array to the end of its last one."""
    steps = zip(array.shape, array.strides, strict=True)
    return sum((size - 1) * step for size, step in steps) + array.dtype.itemsize


class _Handle:
    """A CUDA stream by its address, in the protocol that `cupy.cuda.Stream.from_external` reads."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def torchs_stream(device: int) -> AbstractContextManager:
    """PyTorch's current stream of a device as a CuPy stream."""
    import cupy
    import torch

    return cupy.cuda.Stream.from_external(_Handle(torch.cuda.current_stream(device).cuda_stream))
