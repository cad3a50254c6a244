"""What a stage would launch, without running it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_reference import Source
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import parse
from flashcore_numba.run.compiler import EXAMPLE_SM_COUNT
from flashcore_numba.simulator import scratch
from flashcore_numba.stages import Stage


@dataclass(frozen=True)
class Recorded:
    """One launch: a kernel (in CUDA C a `Source`), blocks, threads, and bytes of dynamic shared memory."""

    kernel: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int


class Recorder:
    """An executor that runs nothing and keeps what would be launched."""

    def __init__(self, sm_count: int = EXAMPLE_SM_COUNT) -> None:
        self.sm_count = sm_count
        self.launches: list[Recorded] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.asarray(scratch(shape, dtype))

    def counter(self) -> np.ndarray:
        return np.zeros(1, np.uint32)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        self.launches.append(Recorded(kernel, _extents(grid), _extents(block), shared_bytes))

    @property
    def sources(self) -> list[Source]:
        """The kernels in CUDA C, each once."""
        return list(dict.fromkeys(each.kernel for each in self.launches if isinstance(each.kernel, Source)))


def recorded(stage: Stage, variant: str | None, shape: str, causal: bool = False) -> Recorder:
    """What the stage launches at a shape, BxHxSxD, on a GPU like the recorded one."""
    s = parse(shape)
    q, k, v = (np.zeros((s.batch, s.heads, s.seq, s.head_dim), FLOAT16.dtype) for _ in range(3))
    recorder = Recorder()
    stage.run(Problem(q, k, v, causal), recorder, variant or stage.default_variant)
    return recorder


def _extents(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(map(int, size))
