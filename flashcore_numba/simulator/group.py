"""Blocks that run together, and their shared memory."""

import math
from typing import TYPE_CHECKING

import numpy as np

from flashcore_numba.simulator import races
from flashcore_numba.simulator.memory import SHARED, Allocation, Memory

if TYPE_CHECKING:
    from flashcore_numba.simulator.launch import Launch

MAX_STATIC_SHARED = 48 * 1024
MAX_SHARED = 227 * 1024  # a block, static and dynamic, on compute capability 9.0


class Group:
    """Blocks that run together in lockstep, a single one when warps take turns, and their shared memory."""

    def __init__(self, launch: "Launch", blocks: list[int]) -> None:
        self.launch, self.blocks = launch, blocks
        self.scheduled = launch.scheduled
        self.fenced: np.ndarray | None = None  # blocks with a thread that executed threadfence
        self.signalled = np.zeros(len(blocks), bool)  # and with one that changed global memory atomically
        self.memories: dict = {}
        self.merged: dict = {}  # several shared arrays that one instruction accesses -> one memory
        self.allocations: list[Allocation] = []
        self.pool: tuple | None = None  # dynamic shared memory: allocation, bytes, which were written

    def shared_memory(
        self, site: int, shape: tuple[int, ...], dtype: np.dtype, compiled: tuple
    ) -> tuple[Memory, tuple[int, ...]]:
        """The memory and the shape of a shared array; shape 0 is the dynamic pool as elements of `dtype`.

        All calls of a function share its arrays; for arguments of other types it is `compiled` once more.
        """
        dynamic = math.prod(shape) == 0
        key = ("dynamic", dtype) if dynamic else (*self.launch.program.shared_arrays[site], compiled)
        if dynamic:
            shape = (self.launch.shared_bytes // dtype.itemsize,)
        if key not in self.memories:
            name = self.launch.program.name_of(site)
            make = self._dynamic_memory if dynamic else self._static_memory
            self.memories[key] = make(name, math.prod(shape) * dtype.itemsize, dtype, key)
        return self.memories[key], shape

    def _allocate(self, name: str, nbytes: int) -> tuple[Allocation, np.ndarray]:
        padded = -(-nbytes // 128) * 128
        total = padded * len(self.blocks)
        allocation = Allocation(name, SHARED, total, padded)
        self.allocations.append(allocation)
        return allocation, np.full(total, 0xFF, np.uint8)  # 0xFF is NaN in every float type

    def _static_memory(self, name: str, nbytes: int, dtype: np.dtype, key: tuple) -> Memory:
        counter = self.launch.counter
        counter.shared_bytes[name, key] = nbytes
        static = sum(size for key, size in counter.shared_bytes.items() if key != "dynamic")
        if static > MAX_STATIC_SHARED:
            raise ValueError(
                f"{name}: {static} bytes of static shared memory; a block has at most {MAX_STATIC_SHARED}: "
                f"take dynamic shared memory (shape 0 and shared_bytes=...)"
            )
        if static + self.launch.shared_bytes > MAX_SHARED:
            raise ValueError(
                f"{name}: {static} static and {self.launch.shared_bytes} dynamic bytes of shared memory; "
                f"a block has at most {MAX_SHARED}"
            )
        allocation, raw = self._allocate(name, nbytes)
        flat = raw.view(dtype)
        return Memory(allocation, flat, written=np.zeros((len(flat), 1), bool))

    def _dynamic_memory(self, name: str, nbytes: int, dtype: np.dtype, key: tuple) -> Memory:
        if self.pool is None:
            allocation, raw = self._allocate(name, self.launch.shared_bytes)
            self.pool = (allocation, raw, np.zeros(len(raw), bool))
            self.launch.counter.shared_bytes["dynamic"] = self.launch.shared_bytes
        allocation, raw, written = self.pool
        return Memory(allocation, raw.view(dtype), written=written.reshape(-1, dtype.itemsize))

    def end_epoch(self) -> None:
        """All threads of all blocks of the group are at a barrier."""
        for allocation in [*self.allocations, *self.launch.allocations]:
            races.end_epoch(self.launch, allocation)
        for memory in self.memories.values():
            if memory.written is not None and memory.written.all():
                memory.written = None

    def finish(self) -> None:
        self.end_epoch()
        for memory in (*self.merged.values(), *self.memories.values()):
            self.launch.flush(memory)
