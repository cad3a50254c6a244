"""The stages as timed entries: which runs there are, and how one is captured, replayed and called."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from flashcore_numba.checks.forward import operation
from flashcore_numba.core.executor import Executor
from flashcore_numba.core.features import OFF
from flashcore_numba.core.wrapping import Passing
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

    def cold(self, flush: "Flush") -> Self:
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
    """A run on a problem of its operation whose arrays are CuPy's."""

    kind = "stage"

    def __init__(self, run: Run, problem: Any, stream: Any) -> None:
        from flashcore_numba.run.executor import Gpu

        super().__init__(run.label, stream)
        self.run, self.problem = run, problem
        with stream:
            self.replayed = self._poisoned()
            # A caller chooses no variant, so only the default variant has a caller's side.
            caller = operation(run.stage).caller if run.is_default else None
            self.called = self._poisoned() if caller else None
        self.executor = KeepScratch(Gpu(stream))
        if caller and self.called:
            self.call = caller(problem, run.stage, self.called)
        self._launch()
        if self.call:
            with self.active():
                for _ in range(PREPARING):
                    self.call()
        stream.synchronize()

    def _launch(self) -> None:
        self.executor.start()
        with self.stream:
            self.run.stage.launch(
                self.problem, executor=self.executor, variant=self.run.variant, **self.replayed
            )

    def cold(self, flush: Flush) -> Self:
        """With outputs of its own, so that those of the warm replays are there to be judged."""
        pair = super().cold(flush)
        with self.stream:
            pair.replayed = self._poisoned()
        return pair

    def _poisoned(self) -> dict[str, Any]:
        """NaN in memory for each output that is always written; of packed sequences as [total, H, D_v]."""
        import cupy

        packed = getattr(self.problem, "features", OFF).ragged

        def empty(shape: tuple[int, ...], dtype: Any) -> Any:
            if packed and len(shape) == 4:
                _, heads, rows, dim = shape
                return cupy.full((rows, heads, dim), cupy.nan, dtype).swapaxes(0, 1)[None]
            return cupy.full(shape, cupy.nan, dtype)

        return self.run.stage.allocate(self.problem, empty, optional=False)

    def poison(self) -> None:
        """Fill the outputs with NaN, so that what the timed runs do not write is seen."""
        with self.stream:
            for outputs in self._outputs():
                for each in outputs.values():
                    each.fill(float("nan"))

    def outputs(self) -> list[dict[str, np.ndarray]]:
        """What the timed runs wrote, as NumPy arrays by name: the replays, and the calls."""
        self.stream.synchronize()
        return [{name: each.get() for name, each in outputs.items()} for outputs in self._outputs()]

    def _outputs(self) -> list[dict[str, Any]]:
        return [outputs for outputs in (self.replayed, self.called) if outputs is not None]


class KeepScratch(Passing):
    """An executor that gives every launch the same scratch arrays.

    A graph keeps addresses, not arrays: scratch memory that went back to the pool after the capture could be
    given to somebody else while the graph still writes to it. It also keeps the filling of scratch out of the
    timed graph.
    """

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor)
        self.used = 0
        self.arrays: list[Any] = []
        self.counted: Any = None

    def start(self) -> None:
        self.used = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if self.used == len(self.arrays):
            self.arrays.append(super().empty(shape, dtype))
        self.used += 1
        return self.arrays[self.used - 1]

    def counter(self, count: int = 1) -> Any:
        if self.counted is None:
            self.counted = super().counter(count)
        return self.counted
