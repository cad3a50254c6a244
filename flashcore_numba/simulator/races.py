"""The race check: two parties touch one cell, at least one of them writes, and nothing orders them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flashcore_numba.simulator.access import ATOMIC, LOAD, STORE, Access
from flashcore_numba.simulator.memory import SHARED, Allocation

if TYPE_CHECKING:
    from flashcore_numba.simulator.launch import Launch

WARP = 32
NOBODY, SEVERAL, TOGETHER = -1, -2, -3
MIX = np.uint64(0x9E37_79B9_7F4A_7C15)


class Batch:
    """Accesses as flat vectors, one entry per lane and cell.

    A cell is an element of the allocation's smallest type; wide accesses and wider types touch several.
    """

    def __init__(self, allocation: Allocation, accesses: Sequence[Access]) -> None:
        self.unit = unit = allocation.itemsize
        columns = []
        for number, access in enumerate(accesses):
            lanes, mask = access.lanes, access.mask
            pick = slice(None) if mask is None else mask
            ids = lanes.ids[pick]
            span = access.width * access.memory.itemsize // unit
            element = access.element
            element = element[pick] if isinstance(element, np.ndarray) else np.full(len(ids), element)
            cells = element if span == access.width else element * (access.memory.itemsize // unit)
            fields = [ids, access.warp_syncs[pick], access.epoch[pick], lanes.block_number[pick]]
            fields.append(np.full(len(ids), number))
            if span > 1:
                cells = (cells[:, None] + np.arange(span)).ravel()
                fields = [np.repeat(field, span) for field in fields]
            columns.append((cells, *fields))
        counts = [len(column[0]) for column in columns]
        self.cells, self.ids, self.warp_syncs, self.epoch, self.block, self.number = map(
            np.concatenate, zip(*columns, strict=True)
        )
        self.site = np.repeat([access.site for access in accesses], counts)
        self.op = np.repeat([access.op for access in accesses], counts)

    def add_bits(self, accesses: Sequence[Access]) -> None:
        """The column `bits`: what each entry stored into its cell; 0 for a load or an atomic operation."""
        columns, size = [], min(self.unit, 8)
        for access in accesses:
            cells = access.lanes.n if access.mask is None else int(access.mask.sum())
            cells *= access.width * access.memory.itemsize // self.unit
            if access.op != STORE:
                columns.append(np.zeros(cells, np.uint64))
                continue
            values = access.value if access.width > 1 else (access.value,)
            with np.errstate(all="ignore"):
                stored = np.stack(
                    [np.broadcast_to(v, access.lanes.n).astype(access.memory.flat.dtype) for v in values], 1
                )
            bits = (stored if access.mask is None else stored[access.mask]).view(f"u{size}").astype(np.uint64)
            bits = bits.reshape(cells, -1)  # two halves of a complex128
            columns.append(bits[:, 0] if self.unit == size else bits[:, 0] * MIX ^ bits[:, 1])
        self.bits = np.concatenate(columns)

    def only(self, keep: np.ndarray) -> "Batch":
        part = object.__new__(Batch)
        for name, values in vars(self).items():
            setattr(part, name, values[keep] if name != "unit" else values)
        return part


class Touched:
    """For each cell and each op (load, store, atomic): the block that did it, and the last site."""

    CONFLICTS = ((LOAD, STORE), (LOAD, ATOMIC), (STORE, STORE), (STORE, ATOMIC))

    def __init__(self, size: int) -> None:
        self.block, self.site = np.full((2, 3, size), NOBODY, np.int64)
        self.bits = np.zeros(size, np.uint64)
        self.mixed = np.zeros(size, bool)  # cells that got different values

    def add(self, batch: Batch) -> Iterator[tuple[int, int]]:
        """Add accesses; yields (index in the batch, the other site) of the conflicts found."""
        for op in (LOAD, STORE, ATOMIC):
            self._note(op, batch.only(batch.op == op))
        for pair in self.CONFLICTS:
            for mine, theirs in {pair, pair[::-1]}:
                known = self.block[theirs][batch.cells]
                clash = (batch.op == mine) & (known != NOBODY) & (known != batch.block)
                if mine == theirs:
                    clash &= self.mixed[batch.cells]
                which = np.flatnonzero(clash)
                other_site = self.site[theirs][batch.cells[which]]
                pairs = np.stack([batch.site[which], other_site])
                _, first = np.unique(pairs, axis=1, return_index=True)
                yield from zip(which[first].tolist(), other_site[first].tolist(), strict=True)

    def _note(self, op: int, batch: Batch) -> None:
        block, cells = self.block[op], batch.cells
        earlier = block[cells]
        block[cells], self.site[op][cells] = batch.block, batch.site
        if op == STORE:
            differs = (earlier != NOBODY) & (self.bits[cells] != batch.bits)
            self.bits[cells] = batch.bits
            differs |= self.bits[cells] != batch.bits
            self.mixed[cells[differs]] = True
        several = (block[cells] != batch.block) | ((earlier != NOBODY) & (earlier != batch.block))
        block[cells[several]] = SEVERAL


def _party(batch: Batch, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Who touches a slot: the atomics of several do not race with each other and are one party."""
    atomic = batch.op == ATOMIC
    if not atomic.any():
        return ids
    places, own = slots[atomic], ids[atomic]
    owner, several = np.empty(int(slots.max()) + 1, np.int64), np.zeros(int(slots.max()) + 1, bool)
    owner[places] = own
    several[places[owner[places] != own]] = True
    return np.where(atomic & several[slots], np.iinfo(np.int64).max, ids)


def _dense(*keys: np.ndarray) -> np.ndarray:
    """Small integers that are equal exactly where all keys are equal."""
    combined = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        _, key = np.unique(key, return_inverse=True)
        combined = combined * (int(key.max()) + 1) + key
    return np.unique(combined, return_inverse=True)[1]


def _slots(allocation: Allocation, batch: Batch, *times: np.ndarray) -> np.ndarray:
    """Cells at different times as different numbers: accesses in different epochs cannot race."""
    if allocation.space != SHARED:
        return _dense(batch.cells, batch.block, *times)
    slots, most = batch.cells, len(batch.cells) * 8 + (1 << 20)
    for time in times:
        time = time - time.min()
        slots = slots * (int(time.max()) + 1) + time
    return slots if int(slots.max()) < most else _dense(batch.cells, *times)


def _contested(cells: np.ndarray, op: np.ndarray, party: np.ndarray) -> np.ndarray:
    """Marks the accesses to cells that somebody writes and that two parties touch: no others can conflict."""
    size = int(cells.max()) + 1
    written, owner = np.zeros(size, bool), np.empty(size, np.int64)
    written[cells[op != LOAD]] = True
    owner[cells] = party
    mixed = np.zeros(size, bool)
    mixed[cells[owner[cells] != party]] = True
    return (written & mixed)[cells]


def end_epoch(launch: "Launch", allocation: Allocation) -> None:
    """The group's threads passed a barrier: check their accesses since the last one against each other."""
    accesses, written = allocation.recent, allocation.written
    allocation.recent, allocation.recent_lanes, allocation.written = [], 0, False
    if launch.scheduled and allocation.space != SHARED:  # other blocks may wait somewhere before theirs
        others = [access for access in accesses if access.lanes.group is not launch.group]
        if others:
            accesses = [access for access in accesses if access.lanes.group is launch.group]
            allocation.recent = others
            allocation.written = any(access.op != LOAD for access in others)
    if not written or not accesses:
        return
    batch = Batch(allocation, accesses)
    contested = _contested(batch.cells, batch.op, _party(batch, batch.ids, batch.cells))
    if contested.any():
        batch.add_bits(accesses)
    batch = batch.only(contested)
    if len(batch.cells) == 0:
        return
    # syncwarp orders the lanes of one warp, but not one warp and another.
    if any(access.known_syncs is not None for access in accesses):
        _check_partial_syncs(launch, allocation, batch, accesses)
    else:
        _check(launch, allocation, batch, batch.ids, _slots(allocation, batch, batch.epoch, batch.warp_syncs))
        if not np.any(batch.warp_syncs != batch.warp_syncs[0]):
            return
    _check(launch, allocation, batch, batch.ids // WARP, _slots(allocation, batch, batch.epoch))


def _check_partial_syncs(
    launch: "Launch", allocation: Allocation, batch: Batch, accesses: Sequence[Access]
) -> None:
    """The lanes of one warp, where some of its syncwarps named only a part of it.

    A lane knows how many syncwarps of each other lane happened before, by its own and theirs: an earlier
    access of a lane is ordered before it if that lane has passed a syncwarp since, which it knows of.
    """
    slots = _slots(allocation, batch, batch.epoch, batch.ids // WARP)
    contested = _contested(slots, batch.op, _party(batch, batch.ids, slots))
    batch, slots = batch.only(contested), slots[contested]
    if len(slots) == 0:
        return
    party = np.where(_alike(batch, batch.ids, slots), TOGETHER, batch.ids)
    known = np.repeat(batch.warp_syncs[:, None], WARP, 1)
    for number in np.unique(batch.number).tolist():
        rows = accesses[number].known_syncs
        if rows is not None:
            mine = batch.number == number
            first = accesses[number].lanes.ids[0]
            known[mine] = rows[batch.ids[mine] - first]
    order = np.argsort(slots, kind="stable")  # which keeps the order of time
    pairs: dict[tuple[int, int], tuple[int, int]] = {}
    for group in np.split(order, np.flatnonzero(np.diff(slots[order])) + 1):
        op, lane = batch.op[group], batch.ids[group] % WARP
        clash = (op[:, None] != LOAD) | (op != LOAD)
        clash &= ~((op[:, None] == ATOMIC) & (op == ATOMIC)) & (lane[:, None] != lane)
        clash &= party[group][:, None] != party[group]
        clash &= batch.warp_syncs[group][:, None] >= known[group][:, lane].T
        for earlier, later in zip(*np.nonzero(np.triu(clash)), strict=True):
            one, two = int(group[earlier]), int(group[later])
            if batch.op[one] == LOAD:
                one, two = two, one
            pairs.setdefault((int(batch.site[one]), int(batch.site[two])), (one, two))
    for (site, other_site), (one, two) in pairs.items():
        if (other_site, site) in pairs and other_site < site and batch.op[two] != LOAD:
            continue
        ids, read = (int(batch.ids[one]), int(batch.ids[two])), batch.op[two] == LOAD
        _add(launch, allocation, (site, other_site), int(batch.cells[one]), ids, read)


def _add(
    launch: "Launch",
    allocation: Allocation,
    sites: tuple[int, int],
    cell: int,
    idents: tuple[int, int],
    read: bool,
) -> None:
    """Report a race of two threads, of which the first writes and the second reads or writes."""
    element = cell % (allocation.block_bytes // allocation.itemsize)
    threads = launch.thread_of(idents[0]), launch.thread_of(idents[1])
    writer, other = (launch.thread_name(*thread) for thread in threads)
    text = (
        f"{allocation.name} element {element}: write by {writer}, {'read' if read else 'write'} by {other}, "
        "no barrier between"
    )
    facts: dict[str, Any] = {"array": allocation.name, "element": (element,), "threads": threads}
    launch.problem("race", *sites, text, **facts)


def _check(
    launch: "Launch", allocation: Allocation, batch: Batch, ids: np.ndarray, slots: np.ndarray
) -> None:
    suspects = _contested(slots, batch.op, _party(batch, ids, slots))
    if not suspects.any():
        return
    party = np.where(_alike(batch, ids, slots), TOGETHER, ids)
    suspects = _contested(slots, batch.op, _party(batch, party, slots))
    if suspects.any():
        _report(launch, allocation, batch.only(suspects), party[suspects], slots[suspects])


def _alike(batch: Batch, ids: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Marks stores by several parties that all write one value to the slot: their order changes nothing."""
    store = batch.op == STORE
    size = int(slots.max()) + 1
    bits, owner = np.zeros(size, np.uint64), np.full(size, NOBODY)
    where = slots[store]
    bits[where], owner[where] = batch.bits[store], ids[store]
    mixed, shared = np.zeros((2, size), bool)
    mixed[where[bits[where] != batch.bits[store]]] = True
    shared[where[owner[where] != ids[store]]] = True
    return store & (shared & ~mixed)[slots]


def _examples(
    batch: Batch, party: np.ndarray, slots: np.ndarray
) -> Iterator[tuple[int, list[tuple[int, int, int, int]]]]:
    """A few cells as lists of (party, thread, site, op): per site and op its smallest and its largest party.

    Those two are enough to find a conflicting pair of sites wherever there is one.
    """
    _, first_of_site = np.unique(batch.site * 4 + batch.op, return_index=True)
    for slot in dict.fromkeys(slots[first_of_site].tolist()):
        where = np.flatnonzero(slots == slot)
        where = where[np.argsort(party[where], kind="stable")]
        ends: dict = {}
        for k in where.tolist():
            key = int(batch.site[k]), int(batch.op[k])
            ends[key] = (ends.get(key, (k,))[0], k)
        chosen = sorted({k for pair in ends.values() for k in pair})
        yield (
            int(batch.cells[where[0]]),
            [(int(party[k]), int(batch.ids[k]), int(batch.site[k]), int(batch.op[k])) for k in chosen],
        )


def _report(
    launch: "Launch", allocation: Allocation, batch: Batch, party: np.ndarray, slots: np.ndarray
) -> None:
    seen = set()
    for cell, entries in _examples(batch, party, slots):
        for mine, thread, site, op in entries:
            for theirs, other_thread, other_site, other_op in entries:
                if op == LOAD or mine == theirs or thread == other_thread or op == other_op == ATOMIC:
                    continue
                mirrored = other_op != LOAD and (other_op, other_site) < (op, site)
                if mirrored or (site, other_site) in seen:
                    continue
                seen.add((site, other_site))
                _add(launch, allocation, (site, other_site), cell, (thread, other_thread), other_op == LOAD)


def check_blocks(launch: "Launch", allocation: Allocation, accesses: Sequence[Access], final: bool) -> None:
    """Blocks have no order among themselves: what one writes no other may touch during the launch.

    That some are ordered, by `cuda.threadfence` and an atomic, is not followed: what a block reads after it
    has executed both is not checked, nor what a thread touches after it has waited for a flag or a lock.
    """
    accesses = [access for access in accesses if not access.fenced]
    if np.prod(launch.grid) == 1 or not accesses:
        return
    batch = Batch(allocation, accesses)
    batch.add_bits(accesses)
    if allocation.blocks is None:
        if final:
            batch = batch.only(_contested(batch.cells, batch.op, _party(batch, batch.block, batch.cells)))
            if len(batch.cells) == 0:
                return
        allocation.blocks = Touched(allocation.nbytes // allocation.itemsize + 1)
    for k, other_site in allocation.blocks.add(batch):
        site, op = int(batch.site[k]), int(batch.op[k])
        if op == LOAD:
            site, other_site = other_site, site
        text = f"element {batch.cells[k]} of {allocation.name} belongs to several blocks"
        at = (int(batch.cells[k]),)
        launch.problem("race between blocks", site, other_site, text, array=allocation.name, element=at)
