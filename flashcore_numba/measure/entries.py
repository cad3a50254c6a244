"""The stages as timed entries: which runs there are, and how one is captured, replayed and called."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.runs import Run

PREPARING = 3  # calls after which `attention()` has its plan and its graph


class Captured:
    """What is captured into a CUDA graph on one CuPy stream, launch by launch; satisfies `timing.Entry`.

    A subclass has `_launch`, which queues one launch on the stream.
    """

    launches, launch_us = 1, 0.0
    call: Callable[[], Any] | None = None
    flush: "Flush | None" = None  # captured before each launch

    def __init__(self, label: str, stream: Any) -> None:
        self.label, self.stream = label, stream

    @contextmanager
    def active(self) -> Iterator[None]:
        with self.stream:
            yield

    def capture(self, launches: int) -> None:
        with self.stream:
            self.stream.begin_capture()
            try:
                for _ in range(launches):
                    if self.flush:
                        self.flush._launch()
                    self._launch()
            finally:
                self.graph = self.stream.end_capture()

    def replay(self) -> None:
        self.graph.launch(self.stream)

    def _launch(self) -> None:
        raise NotImplementedError

    def cold(self, flush: "Flush") -> "Captured":
        """The same with a `Flush` before each launch, in a graph of its own."""
        pair = copy.copy(self)
        pair.flush = flush
        return pair


class Flush(Captured):
    """Empties the L2: writes a buffer of twice its size, given in bytes."""

    def __init__(self, stream: Any, l2_bytes: int) -> None:
        import cupy

        super().__init__("flush", stream)
        with stream:
            self.buffer = cupy.full(2 * l2_bytes // 4, 0, cupy.float32)
        self._launch()  # compiled before a capture
        stream.synchronize()

    def _launch(self) -> None:
        with self.stream:
            self.buffer.fill(1)


class StageEntry(Captured):
    """A run of the ladder on CuPy arrays."""

    kind = "stage"

    def __init__(self, run: Run, problem: Problem, stream: Any) -> None:
        import cupy

        from flashcore_numba.run.executor import Gpu

        super().__init__(run.label, stream)
        self.run, self.problem = run, problem
        with stream:
            self.replayed = cupy.full(problem.q.shape, cupy.nan, cupy.float16)
            self.called = cupy.full(problem.q.shape, cupy.nan, cupy.float16) if run.is_default else None
        self.executor = KeepScratch(Gpu(stream))
        # attention() chooses no variant, so only the default variant has a caller's side.
        self.call = self._call if run.is_default else None
        self._launch()
        if self.call:
            with self.active():
                for _ in range(PREPARING):
                    self.call()
        stream.synchronize()

    def _launch(self) -> None:
        self.executor.start()
        with self.stream:
            self.run.stage.launch(self.problem, self.replayed, self.executor, variant=self.run.variant)

    def _call(self) -> None:
        from flashcore_numba.attention import attention

        p = self.problem
        attention(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=self.run.stage, out=self.called)

    def poison(self) -> None:
        """Fill the outputs with NaN, so that what the timed runs do not write is seen."""
        with self.stream:
            for out in self._outputs():
                out.fill(float("nan"))

    def outputs(self) -> list[np.ndarray]:
        """What the timed runs wrote, as NumPy arrays [B, H, S_q, D]: by the replays, and by the calls."""
        self.stream.synchronize()
        return [out.get() for out in self._outputs()]

    def _outputs(self) -> list[Any]:
        return [out for out in (self.replayed, self.called) if out is not None]


class KeepScratch:
    """An executor that gives every launch the same scratch arrays.

    A graph keeps addresses, not arrays: scratch memory that went back to the pool after the capture could be
    given to somebody else while the graph still writes to it. It also keeps the filling of scratch out of the
    timed graph.
    """

    def __init__(self, executor: Any) -> None:
        self.executor, self.used = executor, 0
        self.arrays: list[Any] = []
        self.counted: Any = None
        self.sm_count = executor.sm_count

    def start(self) -> None:
        self.used = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.used == len(self.arrays):
            self.arrays.append(self.executor.empty(shape, dtype))
        self.used += 1
        return self.arrays[self.used - 1]

    def counter(self) -> Any:
        if self.counted is None:
            self.counted = self.executor.counter()
        return self.counted

    def launch(self, *args: Any, **options: Any) -> None:
        self.executor.launch(*args, **options)
