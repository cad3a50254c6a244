"""Where a stage runs: the same launch function on the simulator, on a GPU, or only through the compiler."""

from typing import Any

import numpy as np

from .simulator import simulate

__all__ = ["Gpu", "Simulator"]


class Simulator:
    """Runs each launched kernel on NumPy arrays; `launches` collects what the simulator counted and found.

    Options are those of `flashcore_numba.simulator.simulate`: order, count_blocks, races, ops.
    """

    def __init__(self, **options: Any) -> None:
        self.options, self.launches = options, []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Scratch memory, poisoned where the type has a NaN, so that a read before a write shows."""
        dtype = np.dtype(dtype)
        return np.full(shape, np.nan, dtype) if dtype.kind == "f" else np.empty(shape, dtype)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        result = simulate(kernel, grid, block, *args, shared_bytes=shared_bytes, **self.options)
        self.launches.append(result)

    def check(self) -> None:
        """Raise the first problem that a launch reported: a race, a bad index, a read never written."""
        for launch in self.launches:
            launch.check()


class Gpu:
    """Queues each launched kernel on one CuPy stream (None: the current one), and never waits for it."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream
