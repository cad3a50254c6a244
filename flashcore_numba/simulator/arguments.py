"""What a launch is given: extents and arguments, checked and turned into what a rewritten kernel uses."""

import inspect
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from flashcore_numba.simulator.memory import GLOBAL, Allocation, Memory, ScratchArray, View
from flashcore_numba.simulator.rules import INT64_MAX, INT64_MIN, plain

Family = list[tuple[str, np.ndarray]]
ALIGN = 256  # device allocations start at a multiple


def three(name: str, value: Any) -> tuple[int, int, int]:
    """A grid or block as three extents."""
    extents = tuple(value) if isinstance(value, tuple | list) else (value,)
    whole = all(isinstance(n, numbers.Integral) and not isinstance(n, bool) and int(n) > 0 for n in extents)
    if not 1 <= len(extents) <= 3 or not whole:
        raise ValueError(f"{name}: {value!r} is not one to three positive integers")
    x, y, z = (*map(int, extents), 1, 1)[:3]
    return x, y, z


def bind(kernel: Callable, args: tuple) -> tuple[list, list[Memory]]:
    """The arguments as the kernel sees them, and the global memories behind the arrays."""
    parameters = inspect.signature(kernel).parameters
    if len(args) != len(parameters):
        names = ", ".join(parameters)
        raise TypeError(f"{kernel.__name__}({names}) takes {len(parameters)} arguments, got {len(args)}")
    families: list[Family] = []
    for value, name in zip(args, parameters, strict=True):
        _collect(value, name, families)
    views = _memories(families)
    memories = list(dict.fromkeys(views.values()))
    return [_argument(value, name, views) for value, name in zip(args, parameters, strict=True)], memories


def _collect(value: Any, name: str, families: list[Family]) -> None:
    """Check the arrays of an argument and put them into families: arrays that share elements."""
    if isinstance(value, tuple):
        for item in value:
            _collect(item, name, families)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind not in "fiubc" or not value.dtype.isnative:
            raise TypeError(f"argument {name}: an array of {value.dtype}; kernels take numbers")
        if any(step < 0 or step % value.itemsize for step in value.strides):
            what = "negative or no multiple of the item size"
            raise ValueError(f"argument {name}: strides {value.strides} are {what}")
        related = [family for family in families if any(_share(value, other) for _, other in family)]
        families[:] = [family for family in families if all(family is not other for other in related)]
        families.append([*(member for family in related for member in family), (name, value)])


def _argument(value: Any, name: str, memories: dict[int, Memory]) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value, memories[id(value)])
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return plain(value)
    if isinstance(value, numbers.Integral):
        whole = int(value)
        if not INT64_MIN <= whole < 2**64:
            raise ValueError(f"argument {name}: an integer of {whole.bit_length()} bits; 64 are the most")
        return whole if whole <= INT64_MAX else np.uint64(whole)
    if type(value) is float:
        return np.float64(value)
    if isinstance(value, np.number) or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(_argument(item, name, memories) for item in value)
    raise TypeError(f"argument {name}: {type(value).__name__} is neither a NumPy array nor a number")


def _bounds(array: np.ndarray) -> tuple[int, int]:
    """The address of the first byte, and the address after the last."""
    last = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    start = array.ctypes.data
    return start, start + (last + array.itemsize if array.size else 0)


def _share(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return np.shares_memory(a, b, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return False


def _array(array: np.ndarray, memory: Memory) -> View:
    """The array as the kernel sees it."""
    offset = (array.ctypes.data - memory.flat.ctypes.data) // array.itemsize if array.size else 0
    return View(memory, offset, array.shape, [step // array.itemsize for step in array.strides])


def _memories(families: list[Family]) -> dict[int, Memory]:
    """The memory of each array, by its id: one allocation a family, and in it a memory a type of element."""
    found: dict[int, Memory] = {}
    base = 0
    for family in families:
        name = "/".join(dict.fromkeys(name for name, _ in family))
        start, first = min(((_bounds(array)[0], array) for _, array in family), key=lambda pair: pair[0])
        nbytes = max(_bounds(array)[1] for _, array in family) - start
        raw = np.lib.stride_tricks.as_strided(first.view(np.ndarray), (1,), (first.itemsize,)).view(np.uint8)
        raw = np.lib.stride_tricks.as_strided(raw, (nbytes,), (1,))
        allocation = Allocation(name, GLOBAL, nbytes, max(first.itemsize, nbytes))
        kinds = list(dict.fromkeys(array.dtype for _, array in family))
        alike = len({kind.itemsize for kind in kinds}) == 1
        written = first.written() if isinstance(first, ScratchArray) and alike else None
        if written is not None:
            known = len(family) == 1 and written.all()
            extent = nbytes // first.itemsize
            written = None if known else np.lib.stride_tricks.as_strided(written, (extent, 1), (1, 1))
        allocation.several = len(kinds) > 1
        memories = {}
        for kind in kinds:
            flat = raw[: nbytes // kind.itemsize * kind.itemsize].view(kind)
            memories[kind] = Memory(allocation, flat, base, written)
        for argument, array in family:
            if (array.ctypes.data - start) % array.itemsize:
                message = "it shares memory with another argument, and starts between its elements"
                raise ValueError(f"argument {argument}: {message}")
            found[id(array)] = memories[array.dtype]
        base += -(-max(1, nbytes) // ALIGN) * ALIGN
    return found
