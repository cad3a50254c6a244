"""Runs Numba CUDA kernels without a GPU, counts what they do and reports what is wrong with them.

The unchanged source of a kernel is rewritten in memory and executed with all lanes as NumPy vectors under
masks. Numba may be absent: then `cuda` and the number types here stand for Numba's.
"""

from flashcore_numba.simulator import cuda, types
from flashcore_numba.simulator.launch import Launch, simulate
from flashcore_numba.simulator.memory import ScratchArray, scratch
from flashcore_numba.simulator.probe import Probed, probe
from flashcore_numba.simulator.problems import KINDS, Problem, SimulationError, Unsupported
from flashcore_numba.simulator.record import Event
from flashcore_numba.simulator.report import Row
from flashcore_numba.simulator.types import (
    boolean,
    complex64,
    complex128,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)

__all__ = [
    "KINDS",
    "Event",
    "Launch",
    "Probed",
    "Problem",
    "Row",
    "ScratchArray",
    "SimulationError",
    "Unsupported",
    "boolean",
    "complex64",
    "complex128",
    "cuda",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "probe",
    "scratch",
    "simulate",
    "types",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "void",
]
