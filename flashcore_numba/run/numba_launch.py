"""Launches of Numba's kernels on CuPy arrays, on any stream, without a wait that a CUDA graph forbids."""

import warnings
from functools import lru_cache
from typing import Any

from numba import cuda
from numba.cuda.core.errors import NumbaPerformanceWarning
from numba.cuda.cudadrv import driver
from numba.cuda.typing.typeof import Purpose, typeof

from cuda_reference.extents import block_extents, grid_extents
from flashcore_numba.core.errors import UnsupportedError

DEFAULT_SHARED_LIMIT = 48 * 1024  # bytes of dynamic shared memory that a kernel gets without asking


def launch(kernel: Any, grid: Any, block: Any, args: tuple, shared_bytes: int, stream: int) -> None:
    """Queue a kernel on the stream with this address, of the current device, which has the arrays.

    Raises UnsupportedError for a grid or block that CUDA does not allow, and where a block may not have that
    much dynamic shared memory.
    """
    import cupy

    device = cupy.cuda.Device().id
    places = [_place(argument, cupy.ndarray) for argument in args]
    values = [value for value, _ in places]
    if shared_bytes > DEFAULT_SHARED_LIMIT:
        types = tuple(kind or typeof(value, Purpose.argument) for value, kind in places)
        room = _shared_room(kernel, types, device)
        if shared_bytes > room:
            raise UnsupportedError(
                f"{kernel.py_func.__name__} needs {shared_bytes} bytes of dynamic shared memory a block: "
                f"this GPU has room for {room}"
            )
    _configured(kernel, grid, block, stream, device, shared_bytes)(*values)


def check_extents(kernel: str, grid: Any, block: Any) -> None:
    """Raise UnsupportedError, which names the kernel, for blocks or threads that CUDA does not allow."""
    try:
        grid_extents(grid)
        block_extents(block)
    except ValueError as error:
        raise UnsupportedError(f"{kernel}: {error}") from None


def _place(argument: Any, kind: type) -> tuple[Any, Any]:
    """An argument as Numba takes it, with views of the arrays of this kind; and its type, of an array."""
    if isinstance(argument, tuple):
        return tuple(_place(each, kind)[0] for each in argument), None
    if not isinstance(argument, kind):
        return argument, None
    array: Any = argument
    # No strides means contiguous: Numba would trip over a stray stride of an axis of length one.
    strides = None if array.flags.c_contiguous else array.strides
    return _numba_view(array.data.ptr, array.shape, strides, array.dtype.str, array.device.id)


# A view describes memory without owning it, so one that outlives its memory harms nobody. Making one costs
# more than a launch. Given the CuPy array itself, Numba would wait for its stream: a CUDA graph forbids that.
@lru_cache(maxsize=1024)
def _numba_view(
    pointer: int, shape: tuple, strides: tuple | None, typestr: str, device: int
) -> tuple[Any, Any]:
    """A Numba device array over this memory, and its Numba type; `device` tells equal addresses apart."""
    interface = {
        "version": 3,
        "data": (pointer, False),
        "shape": shape,
        "strides": strides,
        "typestr": typestr,
    }
    view = cuda.from_cuda_array_interface(interface, sync=False)
    return view, typeof(view, Purpose.argument)


@lru_cache(maxsize=256)
def _configured(kernel: Any, grid: Any, block: Any, stream: int, device: int, shared_bytes: int) -> Any:
    """The kernel with its launch configuration, without Numba's advice that small grids leave a GPU idle."""
    check_extents(kernel.py_func.__name__, grid, block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return kernel[grid, block, cuda.external_stream(stream) if stream else 0, shared_bytes]


@lru_cache(maxsize=256)
def _shared_room(kernel: Any, types: tuple, device: int) -> int:
    """Bytes of dynamic shared memory that a block of this kernel may have, once opted in to more than 48 KB.

    CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later: the opt-in is a call for
    each kernel and device, which Numba does not make.
    """
    import cupy

    function = kernel.compile(types).library.get_cufunc()
    room = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - function.attrs.shared
    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    driver.driver.cuKernelSetAttribute(attribute, room, function.handle, device)
    return room
