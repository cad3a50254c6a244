"""Runs Numba CUDA kernels without a GPU, counts what they do and reports what is wrong with them.

The unchanged source of a kernel is rewritten in memory and executed with all lanes as NumPy vectors under
masks.
"""

from .launch import Launch, simulate
from .memory import ScratchArray, scratch
from .probe import Probed, probe
from .problems import KINDS, Problem, SimulationError, Unsupported
from .record import Event
from .report import Row

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
    "probe",
    "scratch",
    "simulate",
]
