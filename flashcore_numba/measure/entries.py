"""The stages as timed entries: which runs there are, and how one is captured, replayed and called."""

import copy
from contextlib import contextmanager

PREPARING = 3  # calls after which `attention()` has its plan and its graph


class Captured:
    """What is captured into a CUDA graph on one CuPy stream, launch by launch; satisfies `timing.Entry`.

    A subclass has `_launch`, which queues one launch on the stream.
    """

    launches, launch_us = 1, 0.0
    call = None

    def __init__(self, label, stream):
        self.label, self.stream = label, stream

    @contextmanager
    def active(self):
        with self.stream:
            yield

    def capture(self, launches):
        with self.stream:
            self.stream.begin_capture()
            try:
                for _ in range(launches):
                    self._launch()
            finally:
                self.graph = self.stream.end_capture()

    def replay(self):
        self.graph.launch(self.stream)

    def cold(self, flush):
        """The same with a `Flush` before each launch, in a graph of its own."""
        pair = copy.copy(self)
        pair._launch = lambda: (flush._launch(), self._launch())
        return pair


class Flush(Captured):
    """Empties the L2: writes a buffer of twice its size, given in bytes."""

    def __init__(self, stream, l2_bytes):
        import cupy

        super().__init__("flush", stream)
        with stream:
            self.buffer = cupy.full(2 * l2_bytes // 4, 0, cupy.float32)
        self._launch()  # compiled before a capture
        stream.synchronize()

    def _launch(self):
        with self.stream:
            self.buffer.fill(1)


class StageEntry(Captured):
    """A run of the ladder on CuPy arrays."""

    kind = "stage"

    def __init__(self, run, problem, stream):
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

    def _launch(self):
        self.executor.start()
        with self.stream:
            self.run.stage.launch(self.problem, self.replayed, self.executor, variant=self.run.variant)

    def _call(self):
        from flashcore_numba.attention import attention

        p = self.problem
        attention(p.q, p.k, p.v, causal=p.causal, scale=p.scale, stage=self.run.stage, out=self.called)

    def poison(self):
        """Fill the outputs with NaN, so that what the timed runs do not write is seen."""
        with self.stream:
            for out in self._outputs():
                out.fill(float("nan"))

    def outputs(self):
        """What the timed runs wrote, as NumPy arrays [B, H, S_q, D]: by the replays, and by the calls."""
        self.stream.synchronize()
        return [out.get() for out in self._outputs()]

    def _outputs(self):
        return [out for out in (self.replayed, self.called) if out is not None]


class KeepScratch:
    """An executor that gives every launch the same scratch arrays.

    A graph keeps addresses, not arrays: scratch memory that went back to the pool after the capture could be
    given to somebody else while the graph still writes to it. It also keeps the filling of scratch out of the
    timed graph.
    """

    def __init__(self, executor):
        self.executor, self.arrays, self.used, self.counted = executor, [], 0, None
        self.sm_count = executor.sm_count

    def start(self):
        self.used = 0

    def empty(self, shape, dtype):
        if self.used == len(self.arrays):
            self.arrays.append(self.executor.empty(shape, dtype))
        self.used += 1
        return self.arrays[self.used - 1]

    def counter(self):
        if self.counted is None:
            self.counted = self.executor.counter()
        return self.counted

    def launch(self, *args, **options):
        self.executor.launch(*args, **options)
