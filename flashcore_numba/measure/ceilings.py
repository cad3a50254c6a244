"""The ceilings of a GPU, measured: how fast each of its units is at best, by a kernel that does nothing else.

The kernels are ceilings.cu and ceilings_sm90.cu of `probes/`. Each is timed like a stage, in a CUDA graph,
and its output is compared with what the host computes, so that a number never stands for work left out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuda_reference import Source, source
from flashcore_numba.core.element import FLOAT16
from flashcore_numba.measure.entries import Captured
from flashcore_numba.measure.timing import Clock, calibrate

NEEDS = (7, 5)  # compute capability of the kernels
CHAINS = 8  # of ceilings.cu
VECTOR = 16  # bytes
REPLAYS = 5
CLOSE = 2e-4  # of the largest sum: one lost round in a thousand is far outside

# The amounts (operations or bytes) that one unit of a figure stands for, each microsecond.
PER_US = {
    "fp32_tflops": 1e6,
    "tensor_tflops": 1e6,
    "mma_sync_tflops": 1e6,
    "exp_gops": 1e3,
    "l1_gbs": 1e3,
    "l2_gbs": 1e3,
    "dram_gbs": 1e3,
    "read_gbs": 1e3,
}
NAMES = (*PER_US, "launch_us")


@dataclass(frozen=True)
class Work:
    """One launch of a micro-benchmark: `amount` operations or bytes; then `found` must equal `expected`."""

    kernel: Source
    grid: int
    block: int
    args: tuple
    amount: float = 0.0
    found: Any = None
    expected: Any = None
    shared_bytes: int = 0

    def launch(self, executor: Any) -> None:
        executor.launch(self.kernel, self.grid, self.block, *self.args, shared_bytes=self.shared_bytes)

    def right(self) -> bool:
        """Whether the last launch computed what it had to. `found` must be finished."""
        if self.found is None:
            return True
        return bool(abs(self.found - self.expected).max() <= CLOSE * abs(self.expected).max())


# A benchmark takes the array module, NumPy or CuPy, in whose memory it works.
Make = Callable[[Any], Work]


def empty() -> Make:
    """A kernel that does nothing."""
    return lambda xp: Work(source("ceilings", "empty"), 1, 32, ())


def fma(blocks: int, rounds: int = 16384) -> Make:
    """float32 fused multiply-adds, which count 2."""

    def make(xp: Any) -> Work:
        out = xp.zeros(blocks * 1024, xp.float32)
        args = (out, np.float32(1), np.float32(1), np.int32(rounds))
        expected = xp.full(1, CHAINS * rounds + sum(range(CHAINS)), xp.float32)
        return _work("fma_chains", blocks, args, 2 * CHAINS * rounds * out.size, out, expected)

    return make


def ex2(blocks: int, rounds: int = 2048) -> Make:
    """Results of ex2 on the special-function units."""

    def make(xp: Any) -> Work:
        out = xp.zeros(blocks * 1024, xp.float32)
        x, total = np.arange(CHAINS, dtype=np.float64), 0.0
        for _ in range(rounds):
            x = 2.0**-x
            total += x.sum()
        args = (out, np.int32(rounds))
        return _work("ex2_chains", blocks, args, CHAINS * rounds * out.size, out, xp.full(1, total))

    return make


def mma(blocks: int, warps: int, rounds: int = 8192) -> Make:
    """Multiply-adds, which count 2, of mma.sync m16n8k16: fp16 in, float32 sums, operands in registers."""

    def make(xp: Any) -> Work:
        a, b = _small(16, 16), _small(16, 8)
        group, pair = np.divmod(np.arange(32), 4)
        rows = np.stack([group, group + 8, group, group + 8])[..., None]
        columns = np.stack([2 * pair, 2 * pair, 2 * pair + 8, 2 * pair + 8])[..., None] + [0, 1]
        in_b = np.stack([2 * pair, 2 * pair + 8])[..., None] + [0, 1]
        of_lane = (a.astype(np.float64) @ b)[rows[:2], columns[:2]].sum((0, 2))
        out = xp.zeros(blocks * warps * 32, xp.float32)
        registers = [part.view(np.uint32)[..., 0] for part in (a[rows, columns], b[in_b, group[:, None]])]
        args = (*map(xp.asarray, registers), out, np.int32(rounds))
        expected = xp.asarray(np.tile(CHAINS * rounds * of_lane, blocks * warps))
        amount = 2 * 16 * 8 * 16 * CHAINS * rounds * blocks * warps
        return _work("mma_chains", blocks, args, amount, out, expected, 32 * warps)

    return make


def wgmma(blocks: int, rounds: int = 1024) -> Make:
    """Multiply-adds, which count 2, of wgmma m64n256k16 by two warpgroups, operands in shared memory."""

    def make(xp: Any) -> Work:
        a, b = _small(64, 64), _small(256, 64)
        product = a.astype(np.float64) @ b.T
        rows = np.arange(128) // 32 * 16 + np.arange(128) % 32 // 4  # of the first of a lane's two rows
        columns = np.arange(0, 256, 8) + np.arange(128)[:, None] % 4 * 2  # the first of two, every eighth
        of_lane = sum(
            product[rows[:, None] + down, columns + right].sum(1) for down in (0, 8) for right in (0, 1)
        )
        out = xp.zeros(blocks * 256, xp.float32)
        args = (xp.asarray(a), xp.asarray(b), out, np.int32(rounds))
        return Work(
            source("ceilings_sm90", "wgmma_chains"),
            blocks,
            256,
            args,
            amount=2 * 2 * 64 * 256 * 64 * rounds * blocks,
            found=out,
            expected=xp.asarray(np.tile(rounds * of_lane, 2 * blocks)),
            shared_bytes=a.nbytes + b.nbytes,
        )

    return make


def shared(blocks: int, rounds: int = 1024) -> Make:
    """Bytes that shared memory gives, 16 per lane, without conflicts."""

    def make(xp: Any) -> Work:
        vectors = np.arange(2048)
        tile = vectors % 3 + vectors % 5 + vectors % 7 + vectors % 11
        read = np.arange(CHAINS) * 128  # vectors, from the first of a round on
        starts = np.bincount(np.arange(rounds) % 32)  # how many rounds start 32 n vectors on
        of_thread = sum(
            times * tile[(np.arange(1024) + 32 * n)[:, None] % 1024 + read].sum(1)
            for n, times in enumerate(starts)
        )
        out = xp.zeros(blocks * 1024, xp.float32)
        expected = xp.asarray(np.tile(of_thread, blocks))
        args = (out, np.int32(rounds))
        return _work("shared_reads", blocks, args, VECTOR * CHAINS * rounds * out.size, out, expected)

    return make


def l2(blocks: int, chunks: int, sweeps: int = 2) -> Make:
    """Bytes of global memory that come from the L2: `chunks` (a power of two, at least 8) of 16 KiB."""

    def make(xp: Any) -> Work:
        data = np.arange(chunks * 1024 * 4) % 13
        out = xp.zeros(blocks * 1024, xp.float32)
        args = (xp.asarray(data, xp.float32), out, np.int32(chunks), np.int32(sweeps))
        expected = np.tile(sweeps * data.reshape(chunks, 1024, 4).sum((0, 2)), blocks)
        return _work("l2_reads", blocks, args, data.size * 4 * sweeps * blocks, out, xp.asarray(expected))

    return make


def copy(blocks: int) -> Make:
    """Bytes read from and written to device memory, 32 KiB each a block."""

    def make(xp: Any) -> Work:
        given = xp.arange(blocks * 2048 * 4, dtype=xp.float32)
        out = xp.zeros_like(given)
        return _work("copy", blocks, (given, out), 2 * given.nbytes, out, given, 512)

    return make


def read(blocks: int, rounds: int) -> Make:
    """Bytes read from device memory, 64 KiB per block and round; what is written is 2 KiB per block."""

    def make(xp: Any) -> Work:
        data = (xp.arange(rounds * blocks * 512 * CHAINS * 4, dtype=xp.int32) % 13).astype(xp.float32)
        out = xp.zeros(blocks * 512, xp.float32)
        expected = data.reshape(rounds, blocks, CHAINS, 512, 4).sum((0, 2, 4)).ravel()
        return _work("reads", blocks, (data, out, np.int32(rounds)), data.nbytes, out, expected, 512)

    return make


def _work(
    kernel: str,
    blocks: int,
    args: tuple[Any, ...],
    amount: float,
    found: Any,
    expected: Any,
    threads: int = 1024,
) -> Work:
    return Work(source("ceilings", kernel), blocks, threads, args, amount, found, expected)


def _small(*shape: int) -> np.ndarray:
    """Whole numbers from -2 to 2 as float16: their products add up without rounding."""
    return np.random.default_rng().integers(-2, 3, shape).astype(FLOAT16.dtype)


def benchmarks(
    compute_capability: tuple[int, int], sm_count: int, l2_bytes: int
) -> dict[str, tuple[Make, ...]]:
    """By name of `NAMES`, what may reach that ceiling on such a GPU: the best of them counts.

    The L2 is read in a buffer of a quarter to a half of its size: it may hold a second copy for its other
    half. The copy goes through eight times its size, what only reads through 32 times.
    """
    chunks = 8
    while 2 * chunks * 1024 * VECTOR <= l2_bytes / 2:
        chunks *= 2
    with_mma = (mma(sm_count, 8), mma(sm_count, 16))
    with_wgmma = (wgmma(sm_count),) if compute_capability == (9, 0) else ()
    return {
        "fp32_tflops": (fma(sm_count),),
        "mma_sync_tflops": with_mma,
        "tensor_tflops": with_wgmma or with_mma,
        "exp_gops": (ex2(sm_count),),
        "l1_gbs": (shared(sm_count),),
        "l2_gbs": (l2(sm_count, chunks),),
        "dram_gbs": (copy(8 * l2_bytes // (2048 * VECTOR)),),
        "read_gbs": tuple(
            read(per_sm * sm_count, -(-32 * l2_bytes // (per_sm * sm_count * 512 * CHAINS * VECTOR)))
            for per_sm in (2, 3, 4)
        ),
        "launch_us": (empty(),),
    }


class _Entry(Captured):
    """A micro-benchmark on a GPU."""

    def __init__(self, label: str, make: Make, stream: Any) -> None:
        import cupy

        from flashcore_numba.run.executor import Gpu

        super().__init__(label, stream)
        self.executor = Gpu(stream)
        with stream:
            self.work = make(cupy)
        self._launch()  # compiled and loaded before the capture
        stream.synchronize()

    def _launch(self) -> None:
        self.work.launch(self.executor)

    def right(self) -> bool:
        with self.stream:
            return self.work.right()


def measure(clock: Any, tell: Callable[[str], None] | None = None) -> dict[str, float | None] | None:
    """The ceilings of the current GPU, on `clock.stream`; None where the kernels do not run.

    `NAMES` gives the keys: fp32_tflops, tensor_tflops and mma_sync_tflops (10^12 operations per second, a
    multiply-add is two), exp_gops (10^9 results per second), l1_gbs, l2_gbs, dram_gbs, read_gbs (10^9 bytes
    per second; dram: read plus written; read: device memory too, but nothing is written), launch_us
    (microseconds of an empty kernel in a graph). tensor_tflops is wgmma's on compute capability 9.0,
    elsewhere mma.sync's. A figure that could not be measured is None, and `tell` is called with the reason,
    one sentence.
    """
    from flashcore_numba.records import environment

    gpu = environment.gpu()
    capability = tuple(gpu["compute_capability"])
    if capability < NEEDS:
        return None
    found = benchmarks(capability, gpu["sm_count"], gpu["l2_bytes"])
    return rates(found, clock, lambda name, make: _Entry(name, make, clock.stream), tell)


def rates(
    found: Mapping[str, Iterable[Make]],
    clock: Clock,
    prepare: Callable[[str, Make], Any],
    tell: Callable[[str], None] | None = None,
) -> dict[str, float | None]:
    """Time each benchmark and return the best rate by name; see `measure`.

    `prepare(name, make)` gives the entry to time, which has `work` and `right()` beside what `timing.Entry`
    has.
    """
    best: dict[str, float | None] = dict.fromkeys(found)
    for name, makes in found.items():
        for make in makes:
            try:
                entry = prepare(name, make)
                calibrate(entry, clock)
                us = min(clock.replays(entry, REPLAYS))
                if not entry.right():
                    raise ArithmeticError(f"{entry.work.kernel.entry} computed wrong sums")
            except Exception as error:  # a ceiling that cannot be measured must not cost the whole run
                if tell:
                    tell(f"{name} was not measured: {type(error).__name__}: {error}"[:200])
                continue
            rate = us if name == "launch_us" else entry.work.amount / us / PER_US[name]
            best[name] = max(rate, best[name] or 0.0)
    return best
