"""The two clocks on a GPU, both CUDA events on one stream: graph replays, and single calls."""

from collections.abc import Callable
from typing import Any

import cupy

from flashcore_numba.measure.sensors import Reading, Sensors
from flashcore_numba.measure.timing import REPLAY_US, Entry

Pair = tuple[cupy.cuda.Event, cupy.cuda.Event]  # before and after what is timed


class GpuClock:
    """Times entries on a CuPy stream; satisfies `timing.Clock`.

    `sensors` is read while the replays run on the GPU, so the clock rates it sees are those of the timed
    work.
    """

    def __init__(self, stream: cupy.cuda.Stream, sensors: Sensors | None = None) -> None:
        self.stream, self.sensors = stream, sensors
        self.reading: Reading | None = None

    def replays(self, entry: Entry, count: int) -> list[float]:
        with entry.active():
            # Not timed: brings back into the L2 what the previous entry's turn drove out, which a launch of
            # 40 ms would not notice.
            if entry.launch_us < 10 * REPLAY_US:
                entry.replay()
            pairs = [self._timed(entry.replay) for _ in range(count)]
            self.reading = self.sensors.read() if self.sensors else None
            self.stream.synchronize()
        return [_microseconds(pair) / entry.launches for pair in pairs]

    def calls(self, entry: Entry, count: int) -> list[float]:
        if entry.call is None:
            return []
        times = []
        with entry.active():
            if entry.launch_us < 10 * REPLAY_US:
                entry.call()
            for _ in range(count):
                self.stream.synchronize()  # the GPU is idle: no call hides behind the one before
                pair = self._timed(entry.call)
                self.stream.synchronize()
                times.append(_microseconds(pair))
        return times

    def _timed(self, work: Callable[[], Any]) -> Pair:
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self.stream)
        work()
        stop.record(self.stream)
        return start, stop


def _microseconds(pair: Pair) -> float:
    return cupy.cuda.get_elapsed_time(*pair) * 1e3
