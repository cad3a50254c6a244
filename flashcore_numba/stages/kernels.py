"""What the kernels of a stage are written in, and what follows from that."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernels:
    """One language. The fields say what a stage in it needs or can, so that nobody asks for the language.

    unit: what does its multiply-adds, CUDA cores in float32 or tensor cores. strided_rows: whether outputs
    with one number per row may have any strides. divides_keys: whether a launcher may divide the keys among
    blocks, and the work by the size of the GPU. by_shape: whether the kernel that is launched depends on more
    of the shape than the head dimension. planned: whether a call can keep a plan of the launches.
    counts_for_nan: whether the simulator follows a NaN to its origin only while it counts arithmetic.
    endless_after: seconds after which a launch on the simulator is taken for an endless loop where wrong
    kernels are tried; None where the simulator finds one by itself.
    """

    unit: str
    strided_rows: bool
    divides_keys: bool
    by_shape: bool
    planned: bool
    counts_for_nan: bool
    endless_after: float | None


NUMBA = Kernels("fp32", True, False, False, False, True, None)
CUDA_C = Kernels("tensor", False, True, True, True, False, 60.0)
KINDS = {"Numba": NUMBA, "CUDA C": CUDA_C, "NumPy": NUMBA}  # NumPy has no kernel; its one stage is lesson 00
