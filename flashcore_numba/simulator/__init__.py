"""Runs Numba CUDA kernels without a GPU, counts what they do and reports what is wrong with them.

The unchanged source of a kernel is rewritten in memory and executed with all lanes as NumPy vectors under
masks.
"""

from flashcore_numba.simulator.launch import Launch, simulate
from flashcore_numba.simulator.memory import ScratchArray, scratch
from flashcore_numba.simulator.probe import Probed, probe
from flashcore_numba.simulator.problems import KINDS, Problem, SimulationError, Unsupported
from flashcore_numba.simulator.record import Event
from flashcore_numba.simulator.report import Row

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
