"""Where a stage runs: the simulator, which takes NumPy arrays, and a GPU, which takes CuPy's.

Both are a `core.executor.Executor`, as is `run.compiler.Compiler`.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import cache
from math import prod
from typing import Any

import numpy as np

from cuda_reference import Source, load
from cuda_reference.driver import Allowed, graph_of
from flashcore_numba.core import gpu
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT
from flashcore_numba.core.problem import checked_time_limit
from flashcore_numba.run import numba_launch, workspace
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.cpu_launch import Counter, run_on_cpu
from flashcore_numba.run.numba_launch import check_extents
from flashcore_numba.simulator import scratch, simulate


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

    sm_count, shared_limit: of the GPU that a launcher is told of.
    """

    def __init__(
        self, *, sm_count: int = EXAMPLE_SM_COUNT, shared_limit: int = EXAMPLE_SHARED_LIMIT, **options: Any
    ) -> None:
        if "time_limit" in options:
            options["time_limit"] = checked_time_limit(options["time_limit"])
        self.sm_count, self.shared_limit, self.options = sm_count, shared_limit, options
        self.launches: list[Any] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Scratch memory that knows what was written: a read before a write is reported."""
        return scratch(shape, dtype)

    def counter(self, count: int = 1) -> np.ndarray:
        """A launch that leaves it at another number than 0 is reported."""
        return Counter.zero(count)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        if shared_bytes > self.shared_limit:
            name = kernel.label if isinstance(kernel, Source) else kernel.py_func.__name__
            raise UnsupportedError(
                f"{name} needs {shared_bytes} bytes of dynamic shared memory per block: "
                f"this GPU has room for {self.shared_limit}"
            )
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

    @property
    def shared_limit(self) -> int:
        import cupy

        return gpu.shared_limit(cupy.cuda.Device().id)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Uninitialised memory of CuPy's pool; freeing it is ordered with the stream."""
        import cupy

        if graph_of(self._handle()) is not None:
            return self._array(self._take(prod(shape) * np.dtype(dtype).itemsize).at, shape, dtype)
        with Allowed(), nullcontext() if self.stream is None else self.stream:
            return cupy.empty(shape, dtype)

    def counter(self, count: int = 1) -> Any:
        return self._array(self._take(0, count).counter, (count,), np.uint32)

    def done(self, *owners: Any) -> None:
        """What `empty` and `counter` gave may serve other calls from here on; a graph that is captured keeps
        `owners`, whose memory the launches use.
        """
        while self._pieces:
            workspace.give_back(self._pieces.pop())
        if any(owner is not None for owner in owners):
            workspace.keep(self._handle(), owners)

    def _handle(self) -> int:
        import cupy

        return (cupy.cuda.get_current_stream() if self.stream is None else self.stream).ptr

    def _take(self, size: int, counters: int = 1) -> workspace.Piece:
        import cupy

        device = cupy.cuda.Device().id
        self._pieces.append(workspace.take(device, self._handle(), size, counters=counters))
        return self._pieces[-1]

    def _array(self, address: int, shape: tuple[int, ...], dtype: Any) -> Any:
        import cupy

        size = prod(shape) * np.dtype(dtype).itemsize
        memory = cupy.cuda.UnownedMemory(address, size, self, cupy.cuda.Device().id)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        """Queue `kernel`; raises UnsupportedError for a grid or block that CUDA does not allow, and where a
        block may not have that much shared memory.
        """
        with Allowed():
            if isinstance(kernel, Source):
                self._launch_cuda(kernel, grid, block, args, shared_bytes)
            else:
                numba_launch.launch(kernel, grid, block, args, shared_bytes, self._handle())

    def _launch_cuda(self, kernel: Source, grid: Any, block: Any, args: tuple, shared_bytes: int) -> None:
        from cuda_reference.gpu import SharedMemoryError

        check_extents(kernel.label, grid, block)
        with nullcontext() if self.stream is None else self.stream:
            try:
                load(kernel)(grid, block, args, shared_mem=shared_bytes)
            except SharedMemoryError as error:
                raise UnsupportedError(str(error)) from None


@cache
def _sm_count(device: int) -> int:
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]  # asks for a hundred others too
