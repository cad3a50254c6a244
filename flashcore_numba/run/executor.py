"""Where a stage runs: the same launch function on the simulator, on a GPU, or only through the compiler.

An executor has `empty(shape, dtype)`, scratch memory for a stage, `counter()`, a uint32 [1] that is 0 and
that every launch must leave 0, `launch(kernel, grid, block, *args, shared_bytes=0)`, and `sm_count`, the
multiprocessors that a grid should fill. `Problem` arrays go in as they are: NumPy for `Simulator` and
`Compiler`, CuPy for `Gpu`. A kernel is Numba's, or a `cuda_reference.Source`: then numbers are NumPy scalars
of the parameters' types.
"""

import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv import driver
from numba.cuda.typing.typeof import Purpose, typeof

from cuda_reference import Source, load
from cuda_reference.driver import Allowed, graph_of
from cuda_reference.extents import block_extents, grid_extents
from flashcore_numba.core.problem import UnsupportedError, check_time_limit
from flashcore_numba.run import workspace
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.cpu_launch import Counter, run_on_cpu
from flashcore_numba.simulator import scratch, simulate

DEFAULT_SHARED_LIMIT = 48 * 1024  # bytes of dynamic shared memory that a kernel gets without asking


def why_not_simulated(language: str) -> str | None:
    """Why `Simulator` cannot run stages of this language here, in one sentence; None when it can."""
    if language == "Numba":
        return None
    from cuda_reference.cpu import why_not

    return why_not()


def simulated(stages: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """The stages that `Simulator` can run here, and a sentence for each reason why the others cannot."""
    able: list[Any] = []
    missing: dict[str, list[str]] = {}
    for stage in stages:
        reason = why_not_simulated(stage.language)
        if reason is None:
            able.append(stage)
        else:
            missing.setdefault(reason, []).append(stage.label)
    return able, [f"{', '.join(labels)}: not run, {reason}" for reason, labels in missing.items()]


class Simulator:
    """Runs each launched kernel on NumPy arrays; `launches` collects what the simulator counted and found.

    Options are those of `flashcore_numba.simulator.simulate`: order, count_blocks, races, ops, record,
    calls, time_limit (seconds that a launch may take, None for no limit). CUDA C kernels run on the CPU
    executor, see `cpu_launch.run_on_cpu`.
    """

    def __init__(self, *, sm_count: int = EXAMPLE_SM_COUNT, **options: Any) -> None:
        check_time_limit(options.get("time_limit"))
        self.sm_count, self.options = sm_count, options
        self.launches: list[Any] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Scratch memory that knows what was written: a read before a write is reported."""
        return scratch(shape, dtype)

    def counter(self) -> np.ndarray:
        """A launch that leaves it at another number than 0 is reported."""
        return Counter.zero()

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        if isinstance(kernel, Source):
            self.launches.append(run_on_cpu(kernel, grid, block, args, shared_bytes, self.options))
            return
        result = simulate(kernel, grid, block, *args, shared_bytes=shared_bytes, **self.options)
        self.launches.append(result)

    def check(self) -> None:
        """Raise the first problem that a launch reported: a race, a bad index, a read never written."""
        for launch in self.launches:
            launch.check()


class Gpu:
    """Queues each launched kernel on one CuPy stream (None: the current one), and never waits for it.

    The arrays' device must be the current one. A launch can be captured into a CUDA graph, the first one too:
    kernels are loaded and memory is allocated beside the capture, and the graph keeps the memory. Call `done`
    when all is queued, unless what `empty` and `counter` gave is to be used again.
    """

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream
        self._pieces: list[workspace.Piece] = []

    @property
    def sm_count(self) -> int:
        import cupy

        return _sm_count(cupy.cuda.Device().id)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Uninitialised memory of CuPy's pool; freeing it is ordered with the stream."""
        import cupy

        if graph_of(self._handle()) is not None:
            return self._array(self._take(prod(shape) * np.dtype(dtype).itemsize).at, shape, dtype)
        with Allowed(), nullcontext() if self.stream is None else self.stream:
            return cupy.empty(shape, dtype)

    def counter(self) -> Any:
        return self._array(self._take(0).counter, (1,), np.uint32)

    def done(self, *owners: Any) -> None:
        """What `empty` and `counter` gave may serve other calls from here on; a graph that is captured keeps
        `owners`, whose memory the launches use."""
        while self._pieces:
            workspace.give_back(self._pieces.pop())
        if any(owner is not None for owner in owners):
            workspace.keep(self._handle(), owners)

    def _handle(self) -> int:
        import cupy

        return (cupy.cuda.get_current_stream() if self.stream is None else self.stream).ptr

    def _take(self, size: int) -> workspace.Piece:
        import cupy

        self._pieces.append(workspace.take(cupy.cuda.Device().id, self._handle(), size))
        return self._pieces[-1]

    def _array(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        import cupy

        size = prod(shape) * np.dtype(dtype).itemsize
        memory = cupy.cuda.UnownedMemory(address, size, self, cupy.cuda.Device().id)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        """Queue `kernel`; raises UnsupportedError for a grid or block that CUDA does not allow, and where a
        block may not have that much shared memory."""
        with Allowed():
            if isinstance(kernel, Source):
                self._launch_cuda(kernel, grid, block, args, shared_bytes)
            else:
                self._launch_numba(kernel, grid, block, args, shared_bytes)

    def _launch_numba(self, kernel: Any, grid: Any, block: Any, args: tuple, shared_bytes: int) -> None:
        import cupy

        device = cupy.cuda.Device().id
        stream = self.stream if self.stream is not None else cupy.cuda.get_current_stream()
        places = [_place(a) if isinstance(a, cupy.ndarray) else (a, None) for a in args]
        values = [value for value, _ in places]
        if shared_bytes > DEFAULT_SHARED_LIMIT:
            types = tuple(kind or typeof(value, Purpose.argument) for value, kind in places)
            room = _shared_room(kernel, types, device)
            if shared_bytes > room:
                raise UnsupportedError(
                    f"{kernel.py_func.__name__} needs {shared_bytes} bytes of dynamic shared memory a block: "
                    f"this GPU has room for {room}"
                )
        _configured(kernel, grid, block, stream.ptr, device, shared_bytes)(*values)

    def _launch_cuda(self, kernel: Source, grid: Any, block: Any, args: tuple, shared_bytes: int) -> None:
        from cuda_reference.gpu import SharedMemoryError

        _allowed(kernel.label, grid, block)
        with nullcontext() if self.stream is None else self.stream:
            try:
                load(kernel)(grid, block, args, shared_mem=shared_bytes)
            except SharedMemoryError as error:
                raise UnsupportedError(str(error)) from None


@cache
def _sm_count(device: int) -> int:
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]  # asks for a hundred others too


def _place(array: Any) -> tuple[Any, Any]:
    # No strides means contiguous: Numba would trip over a stray stride of an axis of length one.
    strides = None if array.flags.c_contiguous else array.strides
    return _numba_view(array.data.ptr, array.shape, strides, array.dtype.str, array.device.id)


# A view describes memory without owning it, so one that outlives its memory harms nobody. Making one costs
# more than a launch. Given the CuPy array itself, Numba would wait for its stream: a CUDA graph forbids that.
@lru_cache(maxsize=1024)
def _numba_view(
    pointer: int, shape: tuple, strides: tuple | None, typestr: str, device: int
) -> tuple[Any, Any]:
    """A Numba device array over this memory, and its Numba type; `device` tells equal addresses apart."""
    interface = {
        "version": 3,
        "data": (pointer, False),
        "shape": shape,
        "strides": strides,
        "typestr": typestr,
    }
    view = cuda.from_cuda_array_interface(interface, sync=False)
    return view, typeof(view, Purpose.argument)


@lru_cache(maxsize=256)
def _configured(kernel: Any, grid: Any, block: Any, stream: int, device: int, shared_bytes: int) -> Any:
    """The kernel with its launch configuration, without Numba's advice that small grids leave a GPU idle."""
    _allowed(kernel.py_func.__name__, grid, block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return kernel[grid, block, cuda.external_stream(stream) if stream else 0, shared_bytes]


def _allowed(kernel: str, grid: Any, block: Any) -> None:
    try:
        grid_extents(grid)
        block_extents(block)
    except ValueError as error:
        raise UnsupportedError(f"{kernel}: {error}") from None


@lru_cache(maxsize=256)
def _shared_room(kernel: Any, types: tuple, device: int) -> int:
    """Bytes of dynamic shared memory that a block of this kernel may have, once opted in to more than 48 KB.

    CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later: the opt-in is a call for
    each kernel and device, which Numba does not make.
    """
    import cupy

    function = kernel.compile(types).library.get_cufunc()
    room = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - function.attrs.shared
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, room, function.handle, device)
    return room
