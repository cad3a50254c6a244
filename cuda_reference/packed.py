"""Launches that are made again and again, each time at other addresses: packed once, for the CUDA driver."""

from collections.abc import Sequence
from ctypes import CDLL, addressof, c_uint, c_uint64, c_void_p, create_string_buffer, memmove
from functools import cache
from typing import Any

import numpy as np

from .gpu import GpuKernel
from .tensor_map import TensorMap

__all__ = ["PackedLaunches"]

INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: this thread has not used the GPU before
MAP_BYTES = MAP_ALIGNMENT = 128  # of a CUtensorMap


class PackedLaunches:
    """Launches one after the other: `launches(addresses, stream)` queues them on the stream of that handle.

    launches: (kernel, grid, block, args, shared_mem) as a `GpuKernel` takes them, each made before, so that
    it has its shared memory. arrays: what `addresses` will stand for, in that order; each array and each
    array of a `TensorMap` among the args is one of them, the very object. No array is kept alive. The device
    of the kernels must be the current one. Threads may call at the same time.

    Raises ValueError for an argument whose place cannot be told from `arrays`, and CuPy's CUDADriverError for
    what the driver refuses.
    """

    def __init__(self, launches: Sequence[tuple], arrays: Sequence[Any]) -> None:
        self._count = len(arrays)
        self._kernels = [kernel for kernel, *_ in launches]  # kept loaded
        self._steps = [
            (
                (c_void_p(kernel.handle), *_sizes(grid), *_sizes(block), c_uint(shared_mem)),
                [_packed(value, arrays) for value in args],
            )
            for kernel, grid, block, args, shared_mem in launches
        ]
        self._free: list[_Buffer] = []

    def __call__(self, addresses: list[Any], stream: int) -> None:
        try:  # popping and appending need no lock, and nobody waits for a thread whose launch waits
            buffer = self._free.pop()
        except IndexError:
            buffer = _Buffer(self._steps, self._count)
        buffer.launch(addresses, stream, self._kernels)
        self._free.append(buffer)


class _Buffer:
    """Memory for the arguments of one thread's launches. The driver has copied them when a launch returns."""

    def __init__(self, steps: list, count: int) -> None:
        values = [value for _, args in steps for value in args]
        maps = sum(len(data) == MAP_BYTES for data, _ in values)
        size = MAP_BYTES * maps + 8 * (count + 2 * len(values))
        self.memory = create_string_buffer(size + MAP_ALIGNMENT)
        self.maps: list[list[Any]] = []  # slot, address inside, where the map lies
        self.calls: list[tuple[tuple, c_void_p]] = []
        at = -(-addressof(self.memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        words_at = at + MAP_BYTES * maps
        self.words = (c_uint64 * count).from_address(words_at)
        value_at = words_at + 8 * count
        for configuration, args in steps:
            places = []
            for data, slot in args:
                if slot is not None and len(data) != MAP_BYTES:
                    places.append(words_at + 8 * slot)
                    continue
                if len(data) == MAP_BYTES:
                    place, at = at, at + MAP_BYTES
                    self.maps.append([slot, None, c_void_p(place)])
                else:
                    place, value_at = value_at, value_at + 8
                memmove(place, data, len(data))
                places.append(place)
            pointers = (c_uint64 * len(places)).from_address(value_at)
            pointers[:] = places
            self.calls.append((configuration, c_void_p(value_at)))
            value_at += 8 * len(places)

    def launch(self, addresses: list[Any], stream: int, kernels: list[GpuKernel]) -> None:
        self.words[:] = addresses
        for entry in self.maps:
            slot, inside, place = entry
            if addresses[slot] != inside:
                _check(_driver().cuTensorMapReplaceAddress(place, c_void_p(addresses[slot])))
                entry[1] = addresses[slot]
        launch, handle = _driver().cuLaunchKernel, c_void_p(stream)
        for (configuration, parameters), kernel in zip(self.calls, kernels, strict=True):
            status = launch(*configuration, handle, parameters, None)
            if status == INVALID_CONTEXT:
                kernel.use_device()
                status = launch(*configuration, handle, parameters, None)
            if status:
                _check(status)


def _packed(value: Any, arrays: Sequence[Any]) -> tuple[bytes, int | None]:
    """The bytes of an argument, and which of `arrays` gives it its address."""
    if value is None:
        return bytes(8), None
    if isinstance(value, np.generic):
        return value.tobytes(), None
    array = value.array if isinstance(value, TensorMap) else value
    slot = next((i for i, each in enumerate(arrays) if each is array), None)
    if slot is None:
        raise ValueError(f"a {type(value).__qualname__} among the arguments is none of the arrays")
    return (value.for_gpu().tobytes() if isinstance(value, TensorMap) else bytes(8)), slot


def _sizes(size: Any) -> tuple[c_uint, c_uint, c_uint]:
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return c_uint(int(x)), c_uint(int(y)), c_uint(int(z))


@cache
def _driver() -> CDLL:
    return CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status:
        import cupy

        cupy.cuda.driver.check_status(status)
