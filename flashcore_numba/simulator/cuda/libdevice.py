"""The functions of `numba.cuda.libdevice` that the simulator knows, for kernels where Numba is absent."""

from flashcore_numba.simulator.stub import KernelName
from flashcore_numba.simulator.vecmath import LIBDEVICE

_FUNCTIONS = {name: KernelName(f"libdevice.{name}") for name in LIBDEVICE}


def __getattr__(name: str) -> KernelName:
    if name not in _FUNCTIONS:
        raise AttributeError(f"cuda.libdevice.{name}: the simulator knows {', '.join(sorted(_FUNCTIONS))}")
    return _FUNCTIONS[name]


def __dir__() -> list[str]:
    return sorted(_FUNCTIONS)
