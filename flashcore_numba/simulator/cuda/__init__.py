"""Stands for `numba.cuda` where Numba is absent: `from flashcore_numba.simulator import cuda`.

A kernel written for Numba needs another import line and nothing else. A launch runs in the simulator, on
NumPy arrays, and raises SimulationError for what is wrong with the kernel.
"""

from flashcore_numba.simulator import types
from flashcore_numba.simulator.atomics import Atomics
from flashcore_numba.simulator.cuda import libdevice
from flashcore_numba.simulator.cuda.device_array import (
    device_array,
    device_array_like,
    is_available,
    pinned_array,
    stream,
    synchronize,
    to_device,
)
from flashcore_numba.simulator.cuda.kernel import jit
from flashcore_numba.simulator.intrinsics import SUPPORTED
from flashcore_numba.simulator.stub import KernelName

__all__ = [
    "device_array",
    "device_array_like",
    "is_available",
    "jit",
    "libdevice",
    "pinned_array",
    "stream",
    "synchronize",
    "to_device",
    "types",
]

_MEMBERS = {
    "atomic": [name for name in vars(Atomics) if not name.startswith("_") and name != "change"],
    "shared": ["array"],
    "local": ["array"],
    "const": ["array_like"],
}
_IN_KERNELS = {name: KernelName(name, *_MEMBERS.get(name, ())) for name in SUPPORTED}


def __getattr__(name: str) -> object:
    """A name for kernels, or a number type."""
    if name in _IN_KERNELS:
        return _IN_KERNELS[name]
    if isinstance(found := vars(types).get(name), types.Type):
        return found
    raise AttributeError(f"cuda.{name}: the simulator has no such part of Numba's CUDA")


def __dir__() -> list[str]:
    return sorted([*__all__, *_IN_KERNELS])
