"""What stands for `numba.cuda` inside a kernel. Every function gets the number of its call site first."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flashcore_numba.simulator.atomics import Atomics
from flashcore_numba.simulator.control import Frame
from flashcore_numba.simulator.memory import LocalArray, View
from flashcore_numba.simulator.problems import Line
from flashcore_numba.simulator.rules import DIVISION, INTEGERS, Value, char_of, convert, plain, strong
from flashcore_numba.simulator.vecmath import as_dtype, fused

if TYPE_CHECKING:
    from flashcore_numba.simulator.lanes import Lanes

WARP = 32
WORDS = "ilIL"  # the integers of 32 and 64 bits
BITS = np.arange(WARP)
FULL = 0xFFFFFFFF  # the mask that names every lane
BARRIERS = {"syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or"}
SUPPORTED = BARRIERS | {
    *("threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize", "grid", "gridsize"),
    *("shared", "local", "const", "atomic", "syncwarp"),
    *("threadfence", "threadfence_block", "threadfence_system"),
    *("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"),
    *("all_sync", "any_sync", "eq_sync", "ballot_sync", "activemask", "lanemask_lt"),
    *("fma", "popc", "brev", "clz", "ffs", "cbrt", "selp"),
    *("ldca", "ldcg", "ldcs", "ldlu", "ldcv", "stcg", "stcs", "stwb", "stwt"),
}
"""The names of `numba.cuda` that a kernel may use."""


class Arrival(NamedTuple):
    """One warp at a barrier: where, and what it brings to a reduction over the block."""

    site: int
    name: str
    here: np.ndarray
    predicate: Any


class Waiting(NamedTuple):
    """One warp in a loop that waits for others: where, and whether its last turn changed nothing at all.

    `divided` says that some of its lanes are not in the loop: they may hold what the others wait for.
    """

    site: int
    idle: bool
    divided: bool


def reduce_block(name: str, predicates: np.ndarray, here: np.ndarray) -> np.ndarray:
    """The result of a barrier with a reduction; one row per block."""
    votes = predicates.astype(bool)
    if name == "syncthreads_count":
        return (votes & here).sum(1).astype(np.int32)
    if name == "syncthreads_and":
        return (votes | ~here).all(1).astype(np.int32)
    return (votes & here).any(1).astype(np.int32)


class CudaModule:
    """The CUDA names a kernel uses, for one group of lanes."""

    warpsize: Value = np.int32(WARP)

    def __init__(self, lanes: "Lanes") -> None:
        self.lanes, self.launch = lanes, lanes.launch
        self.threadIdx, self.blockIdx = lanes.threadIdx, lanes.blockIdx
        self.laneid = (lanes.tid % WARP).astype(np.int32)
        (bx, by, bz), (gx, gy, gz) = self.launch.block, self.launch.grid
        self.blockDim = SimpleNamespace(x=np.int32(bx), y=np.int32(by), z=np.int32(bz))
        self.gridDim = SimpleNamespace(x=np.int32(gx), y=np.int32(gy), z=np.int32(gz))
        self.shared = SimpleNamespace(array=self._shared_array)
        self.local = SimpleNamespace(array=self._local_array)
        self.const = SimpleNamespace(array_like=lambda site, array: array)
        self.atomic = Atomics(lanes)

    def grid(self, site: int, ndim: int) -> Value:
        """Absolute thread position; threads vary fastest along x."""
        _check_dimensions(ndim)
        position = tuple(
            convert(getattr(self.threadIdx, axis), "l")
            + convert(getattr(self.blockIdx, axis), "l") * int(getattr(self.blockDim, axis))
            for axis in "xyz"[:ndim]
        )
        return position[0] if ndim == 1 else position

    def gridsize(self, site: int, ndim: int) -> Value:
        _check_dimensions(ndim)
        axes = zip(self.launch.block, self.launch.grid, strict=True)
        size = tuple(threads * blocks for threads, blocks in axes)[:ndim]
        return size[0] if ndim == 1 else size

    # Memory

    def _shared_array(
        self,
        site: int,
        shape: int | tuple[int, ...],
        dtype: Any,
        alignment: int | None = None,
        *,
        frame: Frame,
    ) -> View:
        wanted = shape if isinstance(shape, tuple) else (shape,)
        static = math.prod(wanted) > 0
        compiled = self.lanes.specialisation(frame)
        memory, extents = self.lanes.group.shared_memory(site, wanted, as_dtype(dtype), compiled)
        if static:  # the dynamic pool starts at a multiple of 16 bytes, Numba's static arrays where they may
            memory.alignment = alignment or memory.itemsize
        several = len(self.lanes.group.blocks) > 1
        return View(memory, self.lanes.block * memory.block_size if several else 0, extents)

    def _local_array(
        self, site: int, shape: int | tuple[int, ...], dtype: Any, alignment: int | None = None
    ) -> LocalArray:
        shape = shape if isinstance(shape, tuple) else (shape,)
        dtype = as_dtype(dtype)
        self.launch.counter.local_bytes[site] = math.prod(shape) * dtype.itemsize
        return LocalArray(shape, dtype, self.lanes.n)

    def _cached_load(self, site: int, array: Any, index: Any) -> Value:
        return self.lanes.load(array, index, site)

    def _cached_store(self, site: int, array: Any, index: Any, value: Value) -> None:
        self.lanes.store(array, index, value, site)

    ldca = ldcg = ldcs = ldlu = ldcv = _cached_load
    stcg = stcs = stwb = stwt = _cached_store

    def threadfence(self, site: int) -> None:
        lanes = self.lanes
        group = lanes.group
        if group.fenced is None:
            group.fenced = np.zeros(len(group.blocks), bool)
        group.fenced[lanes.block[lanes.active()]] = True

    threadfence_system = threadfence

    def threadfence_block(self, site: int) -> None:
        pass

    # Barriers

    def _barrier(self, site: int, name: str = "syncthreads", predicate: Value = 0) -> Any:
        lanes, group = self.lanes, self.lanes.group
        _takes(name, "bhilBHIL", predicate)
        here = lanes.active()
        complete = self._check_arrival(site, here)
        self.launch.meet("barrier", site, lanes)
        if complete:
            lanes.warp_syncs, lanes.known_syncs = np.zeros_like(lanes.warp_syncs), None
            lanes.acquired = np.zeros_like(lanes.acquired)
        if group.scheduled:
            return Arrival(site, name, here, predicate)
        if complete:
            group.end_epoch()
        else:
            lanes.epoch = lanes.epoch + here
        if name == "syncthreads":
            return None
        blocks = len(group.blocks)
        votes = np.broadcast_to(predicate, lanes.n).reshape(blocks, -1)
        reduced = reduce_block(name, votes, here.reshape(blocks, -1))
        return np.repeat(reduced, lanes.n // blocks)

    def _check_arrival(self, site: int, here: np.ndarray) -> bool:
        """Report blocks whose threads do not arrive together; True when all blocks of the group are here."""
        lanes = self.lanes
        returned = lanes.exited
        alive = lanes.without(lanes.everyone, returned)
        if lanes.mask is alive and returned is None:
            return True
        alive = np.ones(lanes.n, bool) if alive is None else alive
        blocks = len(lanes.group.blocks)

        def by_block(mask: np.ndarray) -> np.ndarray:
            return mask.reshape(blocks, -1)

        arriving = np.repeat(by_block(here).any(1), lanes.n // blocks)
        missing = arriving & alive & ~here
        if missing.any():
            first, other = int(np.flatnonzero(here)[0]), int(np.flatnonzero(missing)[0])
            text = (
                f"{int(here.sum())} thread(s), e.g. {lanes.who(first)}, wait here; "
                f"{int(missing.sum())}, e.g. {lanes.who(other)}, do not come"
            )
            divided = lanes.divided_at
            cause = (": the branch at ", Line(divided[-1]), " divided them") if divided else ()
            threads = (lanes.first(here), lanes.first(missing))
            self.launch.problem("divergent barrier", site, None, (text, *cause), True, threads=threads)
        if returned is not None and (arriving & returned).any():
            left = int((arriving & returned).sum())
            text = f"{left} thread(s) of the block returned before this barrier"
            self.launch.problem("barrier after exit", site, None, text)
        return np.array_equal(here, alive)

    def syncthreads(self, site: int) -> Value:
        return self._barrier(site)

    def syncthreads_count(self, site: int, predicate: Value) -> Value:
        return self._barrier(site, "syncthreads_count", predicate)

    def syncthreads_and(self, site: int, predicate: Value) -> Value:
        return self._barrier(site, "syncthreads_and", predicate)

    def syncthreads_or(self, site: int, predicate: Value) -> Value:
        return self._barrier(site, "syncthreads_or", predicate)

    def syncwarp(self, site: int, mask: Value = FULL) -> None:
        """Orders the accesses of the lanes that the mask names before and after it."""
        lanes = self.lanes
        groups = self._meeting(site, mask)
        self.launch.meet("syncwarp", site, lanes)
        here = lanes.per_warp(lanes.active())
        running = lanes.without(lanes.everyone, lanes.exited)
        alive = lanes.per_warp(True if running is None else running)
        whole = [(group == alive).all(1) | ~here.any(1) for group in groups]
        if lanes.known_syncs is None and not np.logical_or.reduce(whole).all():
            lanes.known_syncs = np.repeat(lanes.warp_syncs[:, None], WARP, 1)
        lanes.warp_syncs = lanes.warp_syncs + lanes.active()
        if lanes.known_syncs is not None:
            known = lanes.known_syncs.reshape(-1, WARP, WARP)
            for group in groups:
                together = np.where(group[:, :, None], known, 0).max(1)
                together = np.where(group, lanes.warp_syncs.reshape(-1, WARP), together)
                known = np.where(group[:, :, None], together[:, None], known)
            lanes.known_syncs = known.reshape(-1, WARP)

    # Warp shuffles and votes

    def _meeting(self, site: int, mask: Value) -> list[np.ndarray]:
        """The lanes that execute a warp instruction, one row per warp, in groups of one mask each.

        A lane meets those that its mask names, of which each must execute the call with this mask or have
        exited; parts of a warp with masks of their own meet each for itself.
        """
        lanes = self.lanes
        here = lanes.per_warp(lanes.active())
        if lanes.mask is None and type(mask) is int and mask & FULL == FULL:
            return [here]
        masks = lanes.per_warp(mask).astype(np.int64) & FULL
        running = lanes.without(lanes.everyone, lanes.exited)
        alive = lanes.per_warp(True if running is None else running)
        groups, wrong = [], np.zeros(here.shape, bool)
        for value in np.unique(masks[here]).tolist() or [FULL]:
            named = (value >> BITS & 1).astype(bool)
            group = here & (masks == value)
            wrong |= (group & ~named) | (named & alive & ~group & group.any(1, keepdims=True))
            groups.append(group)
        if wrong.any():
            divided = lanes.divided_at
            cause = (" (branch at ", Line(divided[-1]), ")") if divided else ()
            lane = int(np.flatnonzero(wrong.ravel())[0])
            what = "the mask does not name the lanes that execute the call"
            pieces = (what, *cause, f", e.g. {lanes.who(lane)}")
            self.launch.problem("warp mask", site, None, pieces, threads=(lanes.first(wrong.ravel()),))
        return groups

    def _shuffle(self, site: int, mask: Value, value: Value, source: Value) -> np.ndarray:
        lanes = self.lanes
        _takes("a shuffle", "ilfd", value)
        _takes("the mask of a shuffle", WORDS, mask)
        value = strong(value)
        own = lanes.per_warp(self.laneid)
        source = lanes.per_warp(source)
        source = np.where((source >= 0) & (source < WARP), source, own)
        groups = self._meeting(site, mask)
        self.launch.meet("shuffle", site, lanes)
        shuffled = np.take_along_axis(lanes.per_warp(value), source, 1).ravel()
        everybody = lanes.mask is None and len(groups) == 1
        return shuffled if everybody else self._without_absent(site, shuffled, source, groups)

    def _without_absent(
        self, site: int, shuffled: np.ndarray, source: np.ndarray, groups: list[np.ndarray]
    ) -> np.ndarray:
        """What comes from lanes that do not take part is undefined: a NaN, reported once it is stored.

        An integer cannot say so: it gets arbitrary bits, and the launch finds out what depends on them.
        """
        lanes = self.lanes
        missing = np.zeros(source.shape, bool)
        for group in groups:
            missing |= group & ~np.take_along_axis(group, source, 1)
        absent = missing.ravel()
        if not absent.any():
            return shuffled
        if shuffled.dtype.kind != "f":
            return np.where(absent, self.launch.undefined(site, shuffled.dtype), shuffled)
        self.launch.absent.add(site)
        self.launch.nans.setdefault(site, "the value of a lane that does not execute the shuffle")
        lanes.nan_sites = np.where(absent & (lanes.nan_sites < 0), site, lanes.nan_sites)
        return np.where(absent, shuffled.dtype.type(np.nan), shuffled)

    def shfl_sync(self, site: int, mask: Value, value: Value, lane: Value) -> Value:
        return self._shuffle(site, mask, value, _distance(lane))

    def shfl_xor_sync(self, site: int, mask: Value, value: Value, distance: Value) -> Value:
        return self._shuffle(site, mask, value, self.laneid ^ _distance(distance))

    def shfl_up_sync(self, site: int, mask: Value, value: Value, distance: Value) -> Value:
        return self._shuffle(site, mask, value, self.laneid - _distance(distance))

    def shfl_down_sync(self, site: int, mask: Value, value: Value, distance: Value) -> Value:
        return self._shuffle(site, mask, value, self.laneid + _distance(distance))

    def _vote(
        self, site: int, mask: Value, predicate: Value, reduce: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        lanes = self.lanes
        _takes("a vote", INTEGERS, predicate)
        _takes("the mask of a vote", WORDS, mask)
        groups = self._meeting(site, mask)
        self.launch.meet("vote", site, lanes)
        first, *others = (np.repeat(reduce(lanes.per_warp(predicate), group), WARP) for group in groups)
        for group, other in zip(groups[1:], others, strict=True):
            first = np.where(group.ravel(), other, first)
        return first

    def all_sync(self, site: int, mask: Value, predicate: Value) -> Value:
        return self._vote(site, mask, predicate, lambda p, here: (p.astype(bool) | ~here).all(1))

    def any_sync(self, site: int, mask: Value, predicate: Value) -> Value:
        return self._vote(site, mask, predicate, lambda p, here: (p.astype(bool) & here).any(1))

    def eq_sync(self, site: int, mask: Value, predicate: Value) -> Value:
        def agree(p: np.ndarray, here: np.ndarray) -> np.ndarray:
            p = p.astype(bool)
            return (p | ~here).all(1) | (~p | ~here).all(1)

        return self._vote(site, mask, predicate, agree)

    def ballot_sync(self, site: int, mask: Value, predicate: Value) -> Value:
        return self._vote(site, mask, predicate, lambda p, here: _word(p.astype(bool) & here).view(np.int32))

    def activemask(self, site: int) -> Value:
        here = self.lanes.per_warp(self.lanes.active())
        return np.repeat(_word(here), WARP)

    def lanemask_lt(self, site: int) -> Value:
        return ((np.int64(1) << self.laneid) - 1).astype(np.uint32)

    # Arithmetic

    def fma(self, site: int, a: Value, b: Value, c: Value) -> Value:
        return self.lanes.count("fma", site, fused(a, b, c))

    def selp(self, site: int, condition: Value, a: Value, b: Value) -> Value:
        _takes("selp", "?", condition)
        _takes("selp", "hilHILfd", a, b)
        if char_of(a) != char_of(b):
            kinds = " and ".join(np.dtype(char_of(value)).name for value in (a, b))
            raise TypeError(f"Numba has selp for two values of one type, not for {kinds}")
        return self.lanes.if_exp(condition, a, b)

    def cbrt(self, site: int, x: Value) -> Value:
        return np.cbrt(x if char_of(x) in "fd" else convert(x, DIVISION[char_of(x) + "f"]))

    def popc(self, site: int, x: Value) -> Value:
        x = _integer(x)
        return plain(np.bitwise_count(_bits_of(x)).astype(x.dtype))

    def brev(self, site: int, x: Value) -> Value:
        """The bits of a 32-bit integer in reverse; of 64 bits for a uint64 alone, as Numba resolves it."""
        wide = char_of(x) == "L"
        bits = _bits(convert(x, "L" if wide else "I"))
        width = bits.shape[-1]
        reverse = (bits.astype(np.uint64) << np.arange(width, dtype=np.uint64)[::-1]).sum(-1, dtype=np.uint64)
        return reverse if wide else reverse.astype(np.uint32)

    def clz(self, site: int, x: Value) -> Value:
        """Leading zeros of an integer, in its own width."""
        x = _integer(x)
        bits = _bits(x)
        width = bits.shape[-1]
        return plain((width - (bits * np.arange(1, width + 1)).max(-1)).astype(x.dtype))

    def ffs(self, site: int, x: Value) -> Value:
        """One more than the number of the lowest set bit; 0 for 0."""
        bits = _bits(_integer(x))
        return np.where(bits.any(-1), bits.argmax(-1) + 1, 0).astype(np.uint32)[()]


def _check_dimensions(ndim: Any) -> None:
    if ndim not in (1, 2, 3) or type(ndim) is not int:
        raise TypeError("the dimensions of a grid are 1, 2 or 3, written as a literal")


def _takes(what: str, kinds: str, *values: Value) -> None:
    """Refuse numbers of types that Numba does not compile this for."""
    for value in values:
        if char_of(value) not in kinds:
            names = ", ".join(np.dtype(kind).name for kind in kinds)
            raise TypeError(f"Numba has {what} for {names}, not for {np.dtype(char_of(value)).name}")


def _distance(distance: Value) -> np.ndarray:
    """How far a shuffle reaches, or from which lane: PTX takes the low five bits."""
    _takes("a shuffle's distance", WORDS, distance)
    return np.asarray(distance).astype(np.int64) & WARP - 1


def _word(votes: np.ndarray) -> np.ndarray:
    """One row of truth values a warp as the bits of a uint32."""
    return (votes << BITS).sum(1).astype(np.uint32)


def _integer(x: Value) -> Value:
    """With a NumPy type; a truth value is an int8, as Numba resolves it."""
    return convert(x, "b") if char_of(x) == "?" else strong(x)


def _bits_of(x: Value) -> Value:
    """An integer as the unsigned one with the same bits."""
    if x.dtype.kind not in "iu":
        raise TypeError(f"an integer is needed here, not {x.dtype}")
    return x.view(f"u{x.itemsize}")


def _bits(x: Value) -> np.ndarray:
    """The bits of an integer along a new last axis, the lowest first."""
    unsigned = np.asarray(_bits_of(x))
    return (unsigned[..., None] >> np.arange(8 * unsigned.itemsize, dtype=unsigned.dtype) & 1).astype(
        np.int64
    )
