"""What a launch is given: extents and arguments, checked and turned into what a rewritten kernel uses."""

import inspect
import numbers

import numpy as np

from .memory import GLOBAL, Allocation, Memory, ScratchArray, View

__all__ = ["bind", "three"]

ALIGN = 256  # device allocations start at a multiple


def three(name: str, value) -> tuple[int, int, int]:
    """A grid or block as three extents."""
    extents = tuple(value) if isinstance(value, tuple | list) else (value,)
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) and int(n) > 0 for n in extents)
    if not 1 <= len(extents) <= 3 or not whole:
        raise ValueError(f"{name}: {value!r} is not one to three positive integers")
    x, y, z = (*map(int, extents), 1, 1)[:3]
    return x, y, z


def bind(kernel, args: tuple) -> tuple[list, list[Memory]]:
    """The arguments as the kernel sees them, and the global memories behind the arrays."""
    parameters = inspect.signature(kernel).parameters
    if len(args) != len(parameters):
        names = ", ".join(parameters)
        raise TypeError(f"{kernel.__name__}({names}) takes {len(parameters)} arguments, got {len(args)}")
    memories: list[Memory] = []
    return [_argument(value, name, memories) for value, name in zip(args, parameters, strict=True)], memories


def _argument(value, name: str, memories: list[Memory]):
    if isinstance(value, np.ndarray):
        return _array(value, name, memories)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if type(value) is float:
        return np.float64(value)
    if isinstance(value, np.number) or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(_argument(item, name, memories) for item in value)
    raise TypeError(f"argument {name}: {type(value).__name__} is neither a NumPy array nor a number")


def _array(array: np.ndarray, name: str, memories: list[Memory]) -> View:
    itemsize = array.itemsize
    if array.dtype.kind not in "fiubc" or not array.dtype.isnative:
        raise TypeError(f"argument {name}: an array of {array.dtype}; kernels take numbers")
    if any(step < 0 or step % itemsize for step in array.strides):
        what = "negative or no multiple of the item size"
        raise ValueError(f"argument {name}: strides {array.strides} are {what}")
    steps = [step // itemsize for step in array.strides]
    last = sum((n - 1) * step for n, step in zip(array.shape, steps, strict=True))
    extent = last + 1 if array.size else 0
    flat = np.lib.stride_tricks.as_strided(array.view(np.ndarray), (extent,), (itemsize,))
    written = array.written() if isinstance(array, ScratchArray) else None
    if written is not None:
        known = written.all()
        written = None if known else np.lib.stride_tricks.as_strided(written, (extent, 1), (1, 1))
    base = sum(-(-max(1, memory.flat.nbytes) // ALIGN) * ALIGN for memory in memories)
    allocation = Allocation(name, GLOBAL, flat.nbytes, max(itemsize, flat.nbytes))
    memories.append(Memory(allocation, flat, base, written))
    return View(memories[-1], 0, array.shape, steps)
