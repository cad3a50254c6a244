"""`cuda.jit` where Numba is absent: a launch runs in the simulator."""

import functools
from collections.abc import Callable
from typing import Any

from flashcore_numba.simulator.launch import simulate
from flashcore_numba.simulator.types import Type


class Kernel:
    """A function decorated with `jit`.

    `kernel[grid, block](*args)` runs it on NumPy arrays, in place, and raises SimulationError for a race or
    another problem; `simulate(kernel, grid, block, *args)` returns the counters too. A device function can be
    called only from a kernel.
    """

    def __init__(self, function: Callable, device: bool = False) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.device = function, device

    def __getitem__(self, configuration: tuple) -> Callable[..., None]:
        """`kernel[grid, block, stream, shared_bytes]`: the stream is ignored, and it and the bytes of dynamic
        shared memory may be left out. Raises ValueError for another number of items."""
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError(
                f"{self.py_func.__name__}[{configuration!r}]: a launch is kernel[grid, block](...), or "
                "kernel[grid, block, stream, shared_bytes](...)"
            )
        grid, block, _, shared_bytes = (*configuration, 0, 0)[:4]

        def launch(*args: Any) -> None:
            simulate(self, grid, block, *args, shared_bytes=shared_bytes).check()

        return launch

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Callable[..., None]:
        """A launch of `ntasks` threads at least, `tpb` (128 by default) in a block."""
        block = tpb or 128
        return self[-(-ntasks // block), block, stream, sharedmem]

    def __call__(self, *args: Any) -> None:
        name = self.py_func.__name__
        if self.device:
            raise TypeError(f"{name}(...) is a device function: only a kernel or another one can call it")
        raise ValueError(f"{name}(...) has no grid: a kernel is launched by {name}[grid, block](...)")


def jit(func_or_sig: Any = None, **options: Any) -> Any:
    """Numba's decorator, with or without arguments.

    Signatures and options are for Numba's compiler and change nothing here: the types are those of the
    arguments of a launch. Raises TypeError for what is neither a function nor a signature.
    """
    decorate = functools.partial(Kernel, device=bool(options.get("device")))
    if func_or_sig is None or isinstance(func_or_sig, str | list | tuple | Type):
        return decorate
    if not callable(func_or_sig):
        raise TypeError(f"jit: {func_or_sig!r} is neither a function nor a signature")
    return decorate(func_or_sig)
