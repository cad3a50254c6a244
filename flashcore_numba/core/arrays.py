"""Any array in, the caller's kind of array out, without a copy.

`adopt` gives a NumPy or CuPy view of an array of any supported kind. The kinds are NumPy, CuPy, PyTorch (CPU
and CUDA), Numba device arrays, and whatever else exports `__cuda_array_interface__` or `__dlpack__`. CuPy
and PyTorch are imported only when an argument needs them.
"""

import math
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cuda_reference.shown import shown
from flashcore_numba.core import gpu
from flashcore_numba.core.element import ACCEPTED_NAMES, BFLOAT16, E4M3, named
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.core.problem import address, placed_on

MOST_WORK = 100_000  # of NumPy's search for a common byte: well below a second
KINDS = "NumPy, CuPy, PyTorch, Numba device arrays, or anything with __cuda_array_interface__ or __dlpack__"


@dataclass(frozen=True, eq=False)
class Adopted:
    """An argument of the caller: `source` as passed, `view` of its memory as NumPy or CuPy array."""

    source: Any
    view: Any
    kind: str  # "NumPy", "CuPy", "PyTorch", "Numba", or the name of another package

    @property
    def where(self) -> str:
        """`NumPy on the host`, `PyTorch on GPU 0`."""
        return f"{self.kind} on {placed_on(self.view)}"


def adopt(array: Any, name: str, e4m3: bool = False) -> Adopted:
    """A NumPy or CuPy view of `array`, which an error calls `name`. Nothing is copied. e4m3: whether tensors
    may be of float8_e4m3fn, of which CuPy gets the bytes as uint8.

    Raises ArgumentError for a list, a tensor that requires grad, a view that negates its memory, a float type
    that NumPy does not have, a device that is neither host nor NVIDIA GPU, and for a GPU array where CuPy is
    missing.
    """
    package = type(array).__module__.partition(".")[0]
    if isinstance(array, np.ma.MaskedArray):
        raise ArgumentError(
            f"{name} is a masked array: a plain array is needed, for example {name}.filled(0)"
        )
    if isinstance(array, np.ndarray):
        return Adopted(array, np.asarray(array), "NumPy")  # without what a subclass makes of its operators
    if package == "cupy":
        return Adopted(array, array, "CuPy")
    if package == "torch" or _is_tensor(array):
        return Adopted(array, _view_of_torch(array, name, e4m3), "PyTorch")
    if package in ("numba", "numba_cuda") and _has(array, "__cuda_array_interface__"):
        return Adopted(array, _view_of_interface(array, name), "Numba")
    # DLPack first: it orders our stream after the producer's, which the older interface may leave out.
    if _has(array, "__dlpack__") and _has(array, "__dlpack_device__"):
        return Adopted(array, _view_of_dlpack(array, name), package)
    if _has(array, "__cuda_array_interface__"):
        return Adopted(array, _view_of_interface(array, name), package)
    raise ArgumentError(f"{name} is of type {type(array).__qualname__}: accepted are {KINDS}")


def _is_tensor(array: Any) -> bool:
    """Whether it is of a class that somebody derived from PyTorch's, which may not be imported."""
    return isinstance(array, getattr(sys.modules.get("torch"), "Tensor", ()))


def _has(array: Any, attribute: str) -> bool:
    try:
        return hasattr(array, attribute)
    except Exception:  # a class that answers with another error than AttributeError
        return False


def same_kind(**arguments: Adopted | None) -> None:
    """Raise unless all arguments are of one kind and in one place; None stands for an absent one."""
    (first_name, first), *others = ((name, a) for name, a in arguments.items() if a is not None)
    for name, other in others:
        if other.where != first.where:
            raise ArgumentError(
                f"{name} is {other.where} but {first_name} is {first.where}: "
                "all arrays must be of one kind in one place"
            )


def empty_like(like: Adopted, shape: tuple[int, ...], dtype: Any) -> Adopted:
    """Uninitialised C-contiguous memory of the caller's kind, on the same device.

    A package that is none of the four gets back what its array API namespace's `from_dlpack` makes of the
    memory, or the NumPy or CuPy array itself where it has none.
    """
    dtype = np.dtype(dtype)
    on_host = isinstance(like.view, np.ndarray)
    try:
        if like.kind == "PyTorch":
            torch = sys.modules["torch"]
            source = torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.source.device)
            return Adopted(source, _view_of_torch(source, "out"), like.kind)
        memory = np.empty(shape, dtype) if on_host else None
    except (MemoryError, ValueError, RuntimeError) as error:  # a stride of 0 makes an input of any size
        if not on_host:
            raise
        raise ArgumentError(
            f"the output has shape {shape}, {math.prod(shape) * dtype.itemsize} bytes, which cannot be "
            "allocated: split the input"
        ) from error
    if on_host:
        return _for_package(like, memory)
    import cupy

    with cupy.cuda.Device(like.view.device.id):
        view = cupy.empty(shape, dtype)
        if like.kind == "Numba":
            from numba import cuda

            return Adopted(cuda.as_cuda_array(view, sync=False), view, like.kind)
    return _for_package(like, view)


def overlap(a: Any, b: Any) -> bool:
    """Whether two NumPy or CuPy arrays share a byte of memory, or may: strides of no slice can make it hard
    to tell.
    """
    if placed_on(a) != placed_on(b):
        return False
    return share_memory(Outline(a).at(address(a)), Outline(b).at(address(b)))


def share_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """`overlap` of arrays on the host, or of what `Outline.at` gives."""
    try:
        return np.shares_memory(a, b, max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class Outline:
    """Shape and strides of an array: all but its address that NumPy needs to compare memory."""

    def __init__(self, array: Any) -> None:
        self._layout = {
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": array.dtype.str,
        }

    def at(self, place: int) -> np.ndarray:
        """The same at this address, which may be a GPU's: an array that nobody may read."""
        return np.asarray(SimpleNamespace(__array_interface__=self._layout | {"data": (place, True)}))


def _for_package(like: Adopted, view: Any) -> Adopted:
    if like.kind in ("NumPy", "CuPy"):
        return Adopted(view, view, like.kind)
    namespace = like.source.__array_namespace__() if hasattr(like.source, "__array_namespace__") else None
    from_dlpack = getattr(namespace, "from_dlpack", None)
    return Adopted(view if from_dlpack is None else from_dlpack(view), view, like.kind)


def _need_gpu(name: str) -> None:
    reason = gpu.why_not()
    if reason:
        raise ArgumentError(f"{name} is on a GPU, which cannot be used: {reason}")


def _view_of_torch(tensor: Any, name: str, e4m3: bool = False) -> Any:
    if tensor.requires_grad:
        raise ArgumentError(
            f"{name} requires grad: this function has no autograd; for gradients call attention of "
            f"flashcore_numba.integrations.pytorch, or pass {name}.detach()"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    element = named(dtype)
    if (element is None and not hasattr(np, dtype)) or (element is E4M3 and not e4m3):
        also = f", and {E4M3.name}" if e4m3 else f", so pass {name}.half() or {name}.bfloat16()"
        raise ArgumentError(f"{name} has dtype {dtype}: accepted are {ACCEPTED_NAMES}{also}")
    if str(tensor.layout) != "torch.strided":
        raise ArgumentError(f"{name} has layout {tensor.layout}: a strided (dense) tensor is needed")
    if tensor.is_neg():
        raise ArgumentError(
            f"{name} is no plain memory of numbers but a view that negates them: pass {name}.resolve_neg()"
        )
    if tensor.device.type == "cpu":
        try:
            if element not in (BFLOAT16, E4M3):
                return tensor.numpy()
            bits = sys.modules["torch"].int16 if element is BFLOAT16 else sys.modules["torch"].uint8
            return tensor.view(bits).numpy().view(element.dtype)
        except RuntimeError as error:
            raise ArgumentError(f"{name} is no plain memory of numbers: {shown(error)}") from error
    if tensor.device.type != "cuda":
        raise ArgumentError(f"{name} is on the device {tensor.device}: accepted are cpu and cuda")
    _need_gpu(name)
    itemsize = tensor.element_size()
    strides = tuple(step * itemsize for step in tensor.stride())
    return _cupy_view(
        tensor.data_ptr(),
        tuple(tensor.shape),
        strides,
        "uint8" if element is E4M3 else element.dtype if element else dtype,  # CuPy knows no e4m3
        tensor.device.index,
        tensor,
    )


def _view_of_interface(array: Any, name: str) -> Any:
    """A CuPy view; an array with a stream of its own goes through CuPy, which waits for that stream."""
    try:
        interface = dict(array.__cuda_array_interface__)
        dtype = np.dtype(interface["typestr"])
        pointer, shape = int(interface["data"][0]), tuple(map(int, interface["shape"]))
        strides = interface.get("strides")
        strides = None if strides is None else tuple(map(int, strides))
    except Exception as error:  # whatever its class does
        raise ArgumentError(
            f"{name} is of type {type(array).__qualname__}, whose __cuda_array_interface__ cannot be read: "
            f"{shown(error)}"
        ) from error
    if interface.get("mask") is not None:
        raise ArgumentError(f"{name} is a masked array: a plain array is needed")
    if dtype.kind not in "fiub":
        raise ArgumentError(f"{name} has dtype {dtype}: accepted are {ACCEPTED_NAMES}")
    _need_gpu(name)
    import cupy

    if interface.get("stream") is not None:
        return cupy.asarray(array)
    if strides is None:
        strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    device = cupy.cuda.runtime.pointerGetAttributes(pointer).device if pointer else cupy.cuda.Device().id
    return _cupy_view(pointer, shape, tuple(strides), dtype, device, array)


def _view_of_dlpack(array: Any, name: str) -> Any:
    """A NumPy or CuPy view through DLPack, whose exchange makes our stream wait for the producer's."""
    try:
        kind, device = (int(x) for x in array.__dlpack_device__())
    except Exception as error:  # whatever its class does
        raise ArgumentError(
            f"{name} is of type {type(array).__qualname__}, which does not say where it is: {shown(error)}"
        ) from error
    host, cuda, cuda_pinned, managed = 1, 2, 3, 13  # DLDeviceType of dlpack.h
    if kind not in (host, cuda, cuda_pinned, managed):
        raise ArgumentError(
            f"{name} is on DLPack device type {kind}: accepted are host memory (1) and CUDA (2, 3, 13)"
        )
    if kind in (cuda, managed):
        _need_gpu(name)
    try:
        if kind in (host, cuda_pinned):
            return np.from_dlpack(array)
        import cupy

        with cupy.cuda.Device(device):
            return cupy.from_dlpack(array)
    except Exception as error:  # whatever its class does
        told = str(error)[:200] if isinstance(error, BufferError | RuntimeError) else shown(error)
        raise ArgumentError(
            f"{name} cannot be read through DLPack ({told}): accepted are {ACCEPTED_NAMES}"
        ) from error


def _cupy_view(pointer: int, shape: tuple, strides: tuple, dtype: Any, device: int, owner: Any) -> Any:
    """A CuPy array over memory that `owner` keeps alive."""
    import cupy

    dtype = np.dtype(dtype)
    span = sum((n - 1) * abs(step) for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
    size = 0 if 0 in shape else span
    memory = cupy.cuda.UnownedMemory(pointer, size, owner, device)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
