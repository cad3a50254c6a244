"""What a stage would launch, without running it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_reference import Source
from flashcore_numba.core.multiprocessors import EXAMPLE_SHARED_LIMIT
from flashcore_numba.core.shapes import parse
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.run.registers import stand_in_for
from flashcore_numba.simulator import scratch
from flashcore_numba.stages import Stage


@dataclass(frozen=True)
class Recorded:
    """One launch: a kernel (in CUDA C a `Source`), blocks, threads, and bytes of dynamic shared memory."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int


class DryRun:
    """An executor that runs nothing and keeps what would be launched."""

    def __init__(self, sm_count: int = EXAMPLE_SM_COUNT) -> None:
        self.sm_count, self.shared_limit = sm_count, EXAMPLE_SHARED_LIMIT
        self.launches: list[Recorded] = []
        self.asked_for: list[tuple[tuple[int, ...], np.dtype]] = []  # scratch memory

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        self.asked_for.append((shape, np.dtype(dtype)))
        return np.asarray(scratch(shape, dtype))

    def counter(self, count: int = 1) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.launches.append(Recorded(kernel, _extents(grid), _extents(block), shared_bytes))

    @property
    def sources(self) -> list[Source]:
        """The kernels in CUDA C, each once."""
        return list(dict.fromkeys(each.kernel for each in self.launches if isinstance(each.kernel, Source)))


def recorded(stage: Stage, variant: str | None, shape: str, causal: bool = False) -> DryRun:
    """What the stage launches at a shape, BxHxSxD, on a GPU like the recorded one."""
    recorder = DryRun()
    problem = stand_in_for(stage, parse(shape), causal)
    stage.run(problem, recorder, variant or stage.default_variant, np.empty)
    return recorder


def _extents(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(map(int, size))
