"""What a stage's launcher asks of the place where it runs."""

from typing import Any, Protocol

import numpy as np


class Executor(Protocol):
    """A place to run: a GPU, the simulator, the compiler alone, or one that looks on and passes on.

    The arrays of a problem go in as they are, NumPy's or CuPy's.
    """

    @property
    def sm_count(self) -> int:
        """The multiprocessors that a grid should fill: those of the GPU, or of the one that is played."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Uninitialised scratch memory, C-contiguous, for this call of the launcher alone."""

    def counter(self) -> Any:
        """A uint32 [1] that is 0, and that every launch which uses it leaves 0."""

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        """Run `kernel`, or queue it, with `shared_bytes` bytes of dynamic shared memory for each block.

        kernel: Numba's, or a `cuda_reference.Source`, whose numbers are NumPy scalars of the parameters'
        types. grid, block: blocks and threads, an int or up to three. Launches of one executor run in their
        order.

        Raises UnsupportedError for a grid, a block or a size of shared memory that is not to be had there.
        """


class Passing:
    """An executor that passes everything on to another one; subclasses look on, or change one thing."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    @property
    def sm_count(self) -> int:
        return self.executor.sm_count

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.executor.empty(shape, dtype)

    def counter(self) -> Any:
        return self.executor.counter()

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.executor.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)


class Idle:
    """An executor that runs nothing: NumPy arrays for memory that no kernel touches; `launch` is the
    subclass's."""

    def __init__(self, sm_count: int) -> None:
        self.sm_count = sm_count

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def counter(self) -> np.ndarray:
        return np.zeros(1, np.uint32)
