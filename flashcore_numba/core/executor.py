"""What a stage's launcher asks of the place where it runs."""

from typing import Any, Protocol

Array = Any  # NumPy's or CuPy's, as the problem's


class Executor(Protocol):
    """A place to run: a GPU, the simulator, the compiler alone, or one that looks on and passes on.

    The arrays of a problem go in as they are, NumPy's or CuPy's.
    """

    @property
    def sm_count(self) -> int:
        """The multiprocessors that a grid should fill: those of the GPU, or of the one that is played."""

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory, static and dynamic, that a block may have there."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Uninitialised scratch memory, C-contiguous, for this call of the launcher alone."""

    def counter(self, count: int = 1) -> Array:
        """A uint32 [count] that is 0, and that every launch which uses it leaves 0."""

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        """Run `kernel`, or queue it, with `shared_bytes` bytes of dynamic shared memory for each block.

        kernel: Numba's, or a `cuda_reference.Source`, whose numbers are NumPy scalars of the parameters'
        types. grid, block: blocks and threads, an int or up to three. Launches of one executor run in their
        order.

        Raises UnsupportedError for a grid, a block or a size of shared memory that is not to be had there.
        """
