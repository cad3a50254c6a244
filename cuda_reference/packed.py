"""Launches that are made again and again, each time at other addresses: packed once, for the CUDA driver."""

from collections.abc import Callable, Sequence
from ctypes import (
    Structure,
    addressof,
    byref,
    c_int,
    c_uint,
    c_uint64,
    c_void_p,
    create_string_buffer,
    memmove,
)
from functools import partial
from typing import Any

import numpy as np

from cuda_reference import driver
from cuda_reference.driver import INVALID_CONTEXT, Allowed
from cuda_reference.tensor_map import TensorMap

MOST_GRAPHS, MOST_SEEN = 8, 64  # of one plan; other addresses are launched kernel by kernel
MAP_BYTES = MAP_ALIGNMENT = 128  # of a CUtensorMap


class PackedLaunches:
    """Launches one after the other: `launches(addresses, stream, captured)` queues them on the stream of that
    handle; captured: whether that stream is being captured.

    launches: (kernel, grid, block, args, shared_mem) as a `GpuKernel` takes them, each made before, so that
    it has its shared memory. arrays: what `addresses` will stand for, in that order; each array and each
    array of a `TensorMap` among the args is one of them, the very object. No array is kept alive. The device
    of the kernels must be the current one. Threads may call at the same time.

    Addresses that come back are launched as a CUDA graph, which takes the driver less than half the time;
    a graph holds addresses and no memory. On a stream that is being captured the kernels themselves go into
    the caller's graph.

    Raises ValueError for an argument whose place cannot be told from `arrays`, and CuPy's CUDADriverError for
    what the driver refuses.
    """

    def __init__(self, launches: Sequence[tuple], arrays: Sequence[Any]) -> None:
        import cupy

        self._cuda, self._count, self._graph_launch = cupy.cuda, len(arrays), cupy.cuda.runtime.graphLaunch
        plain = cupy.cuda.driver.launchKernel
        self._kernels = [kernel for kernel, *_ in launches]  # kept loaded
        self._steps = [
            (
                partial(
                    _launch_early if kernel.source.early else plain,
                    *(int(kernel.handle), *three(grid), *three(block), int(shared_mem)),
                ),
                [_packed(value, arrays) for value in args],
            )
            for kernel, grid, block, args, shared_mem in launches
        ]
        self._free: list[_Buffer] = []
        self._seen: set[tuple[int, ...]] = set()
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._graphs_made = 0

    def __call__(self, addresses: tuple[int, ...], stream: int, captured: bool) -> None:
        if captured:
            self._launch(addresses, stream)
            return
        # Popping and appending need no lock. What was taken out serves this thread alone; no thread waits.
        graph = self._graphs.pop(addresses, None)
        if graph is None:
            self._launch(addresses, stream)
            self._prepare(addresses)
            return
        self._graph_launch(graph.graphExec, stream)
        self._graphs[addresses] = graph

    def _launch(self, addresses: tuple[int, ...], stream: int) -> None:
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = _Buffer(self._steps, self._count)
        try:
            buffer.launch(addresses, stream)
        except self._cuda.driver.CUDADriverError as error:
            if error.status != INVALID_CONTEXT:
                raise
            self._kernels[0].use_device()  # only the first thing asked of the driver can have missed it
            buffer.launch(addresses, stream)
        self._free.append(buffer)

    def _prepare(self, addresses: tuple[int, ...]) -> None:
        """Make a graph of these addresses when they come a second time."""
        if addresses not in self._seen:
            if len(self._seen) < MOST_SEEN:
                self._seen.add(addresses)
            return
        if self._graphs_made >= MOST_GRAPHS:
            return
        self._graphs_made += 1
        with Allowed():
            aside = self._cuda.Stream(non_blocking=True)
            aside.begin_capture()
            try:
                self._launch(addresses, aside.ptr)
            finally:
                graph = aside.end_capture()
        self._graphs[addresses] = graph


class _Buffer:
    """Memory for the arguments of one thread's launches. The driver has copied them when a launch returns."""

    def __init__(self, steps: list, count: int) -> None:
        values = [value for _, args in steps for value in args]
        maps = sum(len(data) == MAP_BYTES for data, _ in values)
        size = MAP_BYTES * maps + 8 * (count + 2 * len(values))
        self.memory = create_string_buffer(size + MAP_ALIGNMENT)
        self.addresses: tuple[int, ...] | None = None  # what is written in the words and maps
        self.maps: list[list[Any]] = []  # slot, address inside, where the map lies
        self.calls: list[tuple[Callable, int]] = []  # and where the pointers to its parameters lie
        at = -(-addressof(self.memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        words_at = at + MAP_BYTES * maps
        self.words = (c_uint64 * count).from_address(words_at)
        value_at = words_at + 8 * count
        for launch, args in steps:
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
            self.calls.append((launch, value_at))
            value_at += 8 * len(places)

    def launch(self, addresses: tuple[int, ...], stream: int) -> None:
        if addresses != self.addresses:
            self.write(addresses)
        for launch, parameters in self.calls:
            launch(stream, parameters, 0)

    def write(self, addresses: tuple[int, ...]) -> None:
        self.addresses = None
        self.words[:] = addresses  # type: ignore[call-overload]
        for entry in self.maps:
            slot, inside, place = entry
            if addresses[slot] != inside:
                driver.check(driver.driver().cuTensorMapReplaceAddress(place, c_void_p(addresses[slot])))
                entry[1] = addresses[slot]
        self.addresses = addresses


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


class _Attribute(Structure):
    """CUlaunchAttribute of the CUDA driver API."""

    _fields_ = (("id", c_int), ("_", c_int), ("value", c_int * 16))


class _Config(Structure):
    """CUlaunchConfig of the CUDA driver API."""

    _fields_ = (
        ("sizes", c_uint * 7),  # grid, block, dynamic shared memory
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


PROGRAMMATIC_STREAM_SERIALIZATION = 6
_MAY_BEGIN_EARLY = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (c_int * 16)(1))


def _launch_early(handle: int, *rest: int) -> None:
    """`cupy.cuda.driver.launchKernel` of a kernel that may begin before the one before it has ended."""
    *sizes, stream, parameters, _ = rest
    config = _Config((c_uint * 7)(*sizes), stream, addressof(_MAY_BEGIN_EARLY), 1)
    launch = driver.driver().cuLaunchKernelEx
    driver.check(launch(byref(config), c_void_p(handle), c_void_p(parameters), None))


def three(size: Any) -> tuple[int, int, int]:
    """The x, y and z of a grid or block that is given as a number or as one to three of them."""
    x, y, z = (*((size,) if isinstance(size, int) else size), 1, 1)[:3]
    return int(x), int(y), int(z)
