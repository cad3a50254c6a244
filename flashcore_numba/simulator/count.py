"""Counting: what the recorded accesses and operations cost.

A warp request is one row of 32 addresses. Global memory moves sectors of 32 bytes; shared memory serves one
wavefront per cycle, in which each of its 32 banks delivers one 4-byte word to any number of lanes (CUDA C++
Programming Guide, "Shared Memory"). A request of 8 or 16 bytes a lane goes in passes of a half or a quarter
warp; when all lanes that differ in bit 0, or all that differ in bit 1, read one address in pairs, each pass
serves twice as many lanes. An H200 does so under Nsight Compute (`tests/simulator/bank_patterns.json`).
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcore_numba.simulator.access import Access
from flashcore_numba.simulator.control import Mask
from flashcore_numba.simulator.masks import LaneSet
from flashcore_numba.simulator.memory import GLOBAL, SHARED, Memory, Merged

SECTOR, BANKS, WORD, WARP = 32, 32, 4, 32
ROWS = 1024  # logged accesses counted at a time
HASH = np.random.default_rng(1).integers(-(2**62), 2**62, WARP + 1) | 1


@dataclass
class Traffic:
    """Totals of one access site.

    `unique` counts each element once per request; `ideal_wavefronts` is what the same bytes would need
    without bank conflicts; `worst` is the largest number of sectors or wavefronts of one request.
    """

    space: str = ""
    array: str = ""
    itemsize: int = 0
    requests: int = 0
    lanes: int = 0
    unique: int = 0
    sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    worst: int = 0

    bytes_requested = property(lambda self: self.lanes * self.itemsize)
    bytes_needed = property(lambda self: self.unique * self.itemsize)
    bytes_moved = property(lambda self: self.sectors * SECTOR)
    conflicts = property(lambda self: self.wavefronts - self.ideal_wavefronts)


def sectors_of(elements: np.ndarray, itemsize: int) -> np.ndarray:
    """The sector that each lane's element is in, [32]; -1 for a lane that takes no part (element -1).

    `elements` [32] counts in units of `itemsize` bytes from the start of an allocation.
    """
    return np.where(elements < 0, -1, elements * itemsize // SECTOR)


def turns_of(elements: np.ndarray, itemsize: int) -> np.ndarray:
    """In which wavefront each lane of one shared-memory request is served, [32] from 0 on; -1 for no part.

    `elements` [32] counts in units of `itemsize` bytes, -1 for a lane that takes no part. How many
    wavefronts, and which lanes share a pass, is the rule of the counters; within a pass the words of a bank
    are numbered by their address, as the hardware does not tell its order.
    """
    unit, width = max(WORD, itemsize), WARP
    if unit > WORD:
        paired = _pairs_agree(elements[None], 1) | _pairs_agree(elements[None], 2)
        width = WARP * WORD // unit * (2 if paired[0] else 1)
    turns, before = np.full(WARP, -1), 0
    for start in range(0, WARP, width):
        words = elements[start : start + width] * itemsize // unit
        here = elements[start : start + width] >= 0
        for bank in range(BANKS * WORD // unit):
            mine = here & (words % (BANKS * WORD // unit) == bank)
            turns[start : start + width][mine] = before + np.unique(words[mine], return_inverse=True)[1]
        before = max(before, int(turns.max()) + 1)
    return turns


def _first_of_each(
    elements: np.ndarray, unit_of: Callable[[np.ndarray], np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Per row: marks one lane of each distinct unit (element, sector, word) touched; and the sorted units.

    Lanes that take no part hold -1.
    """
    ordered = np.sort(elements, axis=1)
    units = ordered if unit_of is None else unit_of(ordered)
    present = ordered >= 0
    new = present.copy()
    new[:, 1:] &= (units[:, 1:] != units[:, :-1]) | ~present[:, :-1]
    return new, units


def count_wavefronts(elements: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
    """Per request: its wavefronts, and its passes, which is how few they could be.

    A pass takes as many wavefronts as its busiest bank has distinct words. Narrow neighbours share a word; an
    8- or 16-byte element spans two or four banks. A pass without an active lane costs nothing.
    """
    unit = max(WORD, itemsize)
    if unit == WORD:
        return _busiest_bank(elements, itemsize), np.ones(len(elements), int)
    paired = _pairs_agree(elements, 1) | _pairs_agree(elements, 2)
    wavefronts, passes = np.empty((2, len(elements)), int)
    for doubled in (False, True):
        rows = np.flatnonzero(paired == doubled)
        width = WARP * WORD // unit * (2 if doubled else 1)
        each = _busiest_bank(elements[rows].reshape(-1, width), itemsize).reshape(-1, WARP // width)
        wavefronts[rows], passes[rows] = each.sum(1), (each > 0).sum(1)
    return wavefronts, passes


def _pairs_agree(elements: np.ndarray, bit: int) -> np.ndarray:
    """Per request: do any two active lanes that differ in `bit` touch the same element?"""
    partner = elements[:, np.arange(WARP) ^ bit]
    return ((elements == partner) | (elements < 0) | (partner < 0)).all(1)


def _busiest_bank(elements: np.ndarray, itemsize: int) -> np.ndarray:
    """Per row: the number of distinct words in the bank that has most of them."""
    unit = max(WORD, itemsize)
    new, words = _first_of_each(elements, lambda e: e * itemsize // unit)
    banks = BANKS * WORD // unit
    row = np.broadcast_to(np.arange(len(elements))[:, None], elements.shape)
    slots = (row * banks + words % banks)[new]
    return np.bincount(slots, minlength=len(elements) * banks).reshape(-1, banks).max(1)


class Counter:
    """All counts of one launch, by site."""

    def __init__(self) -> None:
        self.traffic: dict[tuple[int, int], Traffic] = defaultdict(Traffic)  # (site, op)
        self.barriers: dict[int, int] = defaultdict(int)
        self.collectives: dict[tuple[str, int], int] = defaultdict(int)  # (kind, site)
        self.operations: dict[tuple[str, int, int], int] = defaultdict(int)  # (kind, bits, site)
        self.local_bytes: dict[int, int] = {}
        self.shared_bytes: dict = {}
        self.footprint: dict[str, np.ndarray] = {}  # array name -> which sectors were ever touched
        self._active_cache: dict = {}

    def active(self, lanes: LaneSet, mask: Mask) -> tuple[int, int]:
        """How many warps have an active lane, and how many lanes are active."""
        if mask is None:
            return lanes.n // WARP, lanes.n
        hit = self._active_cache.get(id(mask))
        if hit is None or hit[0] is not mask:
            if len(self._active_cache) > 1000:
                self._active_cache.clear()
            warps = int(mask.reshape(-1, WARP).any(1).sum())
            hit = self._active_cache[id(mask)] = (mask, (warps, int(mask.sum())))
        return hit[1]

    def operation(self, kind: str, site: int, itemsize: int, lanes: LaneSet) -> None:
        self.operations[kind, itemsize * 8, site] += self.active(lanes, lanes.mask)[1]

    def barrier(self, site: int, lanes: LaneSet) -> None:
        self.barriers[site] += self.active(lanes, lanes.mask)[0]

    def collective(self, kind: str, site: int, lanes: LaneSet) -> None:
        self.collectives[kind, site] += self.active(lanes, lanes.mask)[0]

    def count(self, memory: Memory, log: list) -> None:
        """Count accesses to one memory, all those of one site together."""
        by_site = defaultdict(list)
        for access in log:
            if not access.counted:
                continue
            by_site[access.site, access.op, access.width].append(access)
        for (site, op, width), accesses in by_site.items():
            traffic = self.traffic[site, op]
            traffic.space = memory.space
            names = [*traffic.array.split("/"), *memory.name.split("/")]
            traffic.array = "/".join(dict.fromkeys(filter(None, names)))
            traffic.itemsize = width * memory.itemsize
            vectors = [access for access in accesses if isinstance(access.element, np.ndarray)]
            single = [access for access in accesses if not isinstance(access.element, np.ndarray)]
            self._count_broadcasts(memory, traffic, single)
            for start in range(0, len(vectors), ROWS):
                self._count_vectors(memory, traffic, vectors[start : start + ROWS], width)

    def _count_broadcasts(self, memory: Memory, traffic: Traffic, accesses: list[Access]) -> None:
        """One address for all lanes: one sector; one wavefront, two for 16 bytes, which take two passes."""
        wavefronts = max(1, traffic.itemsize // (2 * WORD))
        for access in accesses:
            warps, lanes = self.active(access.lanes, access.mask)
            traffic.requests += warps
            traffic.lanes += lanes
            traffic.unique += warps
            traffic.worst = max(traffic.worst, 1 if memory.space == GLOBAL else wavefronts)
            if memory.space == GLOBAL:
                traffic.sectors += warps
            else:
                traffic.wavefronts += warps * wavefronts
                traffic.ideal_wavefronts += warps * wavefronts
        if accesses and memory.space == GLOBAL:
            self._touch(memory, np.array([int(access.element) for access in accesses]))

    def _count_vectors(self, memory: Memory, traffic: Traffic, accesses: list[Access], width: int) -> None:
        elements = np.concatenate([access.element for access in accesses]).reshape(-1, WARP)
        if any(access.mask is not None for access in accesses):
            masks = [np.ones(a.lanes.n, bool) if a.mask is None else a.mask for a in accesses]
            on = np.concatenate(masks).reshape(-1, WARP)
            elements = np.where(on, elements, -width)[on.any(1)]
        if memory.space == GLOBAL:
            self._touch(memory, elements[elements >= 0] if elements.min() < 0 else elements)
        if width > 1:
            elements = elements // width
        itemsize, base = traffic.itemsize, memory.base
        elements, times = self._distinct(elements, itemsize, base)

        def total(per_request: np.ndarray) -> int:
            return int((times * per_request).sum())

        traffic.requests += int(times.sum())
        traffic.lanes += total((elements >= 0).sum(1))
        traffic.unique += total(_first_of_each(elements)[0].sum(1))
        if memory.space == GLOBAL:
            sectors = _first_of_each(elements, lambda e: (e * itemsize + base) // SECTOR)[0].sum(1)
            traffic.sectors += total(sectors)
            traffic.worst = max(traffic.worst, int(sectors.max()))
        elif memory.space == SHARED:
            wavefronts, ideal = count_wavefronts(elements, itemsize)
            traffic.wavefronts += total(wavefronts)
            traffic.ideal_wavefronts += total(ideal)
            traffic.worst = max(traffic.worst, int(wavefronts.max()))

    def _distinct(self, elements: np.ndarray, itemsize: int, base: int) -> tuple[np.ndarray, np.ndarray]:
        """Requests of one shape and alignment cost the same: one of each kind, and how often it occurs."""
        top = elements.max(1)
        shape = np.where(elements < 0, 1, elements - top[:, None]) @ HASH[:WARP]
        shape += (top * itemsize + base) % (BANKS * WORD) * HASH[WARP]
        _, first, times = np.unique(shape, return_index=True, return_counts=True)
        return elements[first], times

    def _touch(self, memory: Memory, elements: np.ndarray) -> None:
        """Mark sectors as touched; an allocation starts on a sector boundary."""
        if isinstance(memory, Merged):
            for member, start in zip(memory.members, memory.starts, strict=True):
                mine = (elements >= start) & (elements < start + len(member.flat))
                self._touch(member, elements[mine] - start)
            return
        sectors = -(-memory.flat.nbytes // SECTOR) + 1
        touched = self.footprint.setdefault(memory.name, np.zeros(sectors, bool))
        touched[elements * memory.itemsize // SECTOR] = True
