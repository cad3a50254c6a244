"""Runs a kernel on the GPU, through CuPy."""

from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from cuda_reference.compile import Compiled, compile
from cuda_reference.driver import PORTABLE_CLUSTER, allow_large_clusters, graph_of
from cuda_reference.extents import block_extents, grid_extents
from cuda_reference.packed import PackedLaunches
from cuda_reference.source import Source
from cuda_reference.tensor_map import TensorMap

NULL = np.uint64(0)
DEFAULT_SHARED_LIMIT = 48 * 1024  # bytes, static and dynamic, that a block gets without asking


class SharedMemoryError(ValueError):
    """A launch asks for more shared memory than a block of this GPU may have."""


class GpuKernel:
    """A kernel on one GPU: `kernel(grid, block, args, shared_mem=0)` queues it on CuPy's current stream.

    registers, local_bytes and shared_bytes are what the driver says of the loaded kernel: per thread, per
    thread, and static per block, up to where the dynamic part begins. `compiled` is what the assembler said.
    """

    def __init__(self, compiled: Compiled) -> None:
        import cupy

        self.compiled = compiled
        self._kernel = cupy.RawModule(path=str(compiled.cubin)).get_function(compiled.source.entry)
        self._device = cupy.cuda.Device()
        self._opted_in = False
        if self.source.cluster > PORTABLE_CLUSTER:
            allow_large_clusters(self.handle)

    @property
    def source(self) -> Source:
        return self.compiled.source

    @property
    def registers(self) -> int:
        return self._kernel.num_regs

    @property
    def local_bytes(self) -> int:
        return self._kernel.local_size_bytes

    @property
    def shared_bytes(self) -> int:
        return self._kernel.shared_size_bytes

    @property
    def handle(self) -> int:
        """The driver's CUfunction."""
        return self._kernel.kernel.ptr

    def use_device(self) -> None:
        """Make the kernel's device the current one of this thread."""
        self._device.use()

    @cached_property
    def shared_room(self) -> int:
        """Bytes of dynamic shared memory that a block of this kernel may have."""
        return self._device.attributes["MaxSharedMemoryPerBlockOptin"] - self.shared_bytes

    def __call__(self, grid: Any, block: Any, args: tuple, shared_mem: int = 0) -> None:
        """Raises SharedMemoryError, and ValueError for a grid or block that CUDA does not allow."""
        grid, block = grid_extents(grid), block_extents(block)
        if shared_mem > self.shared_room:
            raise SharedMemoryError(
                f"{self.compiled.source.label} needs {shared_mem} bytes of dynamic shared memory a block: "
                f"this GPU has room for {self.shared_room}"
            )
        if shared_mem > DEFAULT_SHARED_LIMIT - self.shared_bytes and not self._opted_in:
            # CUDA C++ Programming Guide, "Shared Memory" of 7.x and later: more than 48 KB must be asked for.
            self._kernel.max_dynamic_shared_size_bytes = self.shared_room
            self._opted_in = True
        self.use_device()  # a thread that has not used the GPU has no context yet, and tensor maps need one
        if self.source.early:
            self._launch_early(grid, block, args, shared_mem)
        else:
            self._kernel(grid, block, tuple(map(_argument, args)), shared_mem=shared_mem)

    def _launch_early(self, grid: Any, block: Any, args: tuple, shared_mem: int) -> None:
        import cupy

        arrays = [each.array if isinstance(each, TensorMap) else each for each in args]
        arrays = [array for array in arrays if isinstance(array, cupy.ndarray)]
        launches = PackedLaunches([(self, grid, block, args, shared_mem)], arrays)
        stream = cupy.cuda.get_current_stream().ptr
        launches(tuple(array.data.ptr for array in arrays), stream, graph_of(stream) is not None)


def _argument(value: Any) -> Any:
    if value is None:
        return NULL
    return value.for_gpu() if isinstance(value, TensorMap) else value


_loaded: dict[tuple[Source, str, int], GpuKernel] = {}
_lock = Lock()


def load(source: Source) -> GpuKernel:
    """The kernel on the current device, compiled and loaded once as long as its files stay the same."""
    import cupy

    device = cupy.cuda.Device()
    key = (source, source.digest, device.id)
    with _lock:
        if key not in _loaded:
            capability = device.compute_capability  # "90"
            _loaded[key] = GpuKernel(compile(source, (int(capability[:-1]), int(capability[-1]))))
        return _loaded[key]
