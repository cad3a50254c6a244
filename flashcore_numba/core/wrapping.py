"""Executors that pass on to another one, or run nothing."""

from typing import Any

import numpy as np

from flashcore_numba.core.executor import Array, Executor
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT


class Passing:
    """An executor that passes everything on to another one; subclasses look on, or change one thing."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    @property
    def sm_count(self) -> int:
        return self.executor.sm_count

    @property
    def shared_limit(self) -> int:
        return self.executor.shared_limit

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self.executor.empty(shape, dtype)

    def counter(self, count: int = 1) -> Array:
        return self.executor.counter(count)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)


class Idle:
    """An executor that runs nothing: NumPy arrays for memory that no kernel touches; `launch` is the
    subclass's.
    """

    def __init__(self, sm_count: int, shared_limit: int = EXAMPLE_SHARED_LIMIT) -> None:
        self.sm_count, self.shared_limit = sm_count, shared_limit

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def counter(self, count: int = 1) -> np.ndarray:
        return np.zeros(count, np.uint32)
