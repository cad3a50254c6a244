"""The race check: two parties touch one cell, at least one of them writes, and nothing orders them."""

import numpy as np

from .access import ATOMIC, LOAD
from .memory import SHARED, Allocation

__all__ = ["check_blocks", "end_epoch"]

WARP = 32
NOBODY, SEVERAL = -1, -2


class Batch:
    """Accesses as flat vectors, one entry a lane and cell.

    A cell is an element of the allocation's smallest type; wide accesses and wider types touch several.
    """

    def __init__(self, allocation: Allocation, accesses):
        unit = allocation.itemsize
        columns = []
        for access in accesses:
            lanes, mask = access.lanes, access.mask
            pick = slice(None) if mask is None else mask
            ids = lanes.ids[pick]
            span = access.width * access.memory.itemsize // unit
            element = access.element
            element = element[pick] if isinstance(element, np.ndarray) else np.full(len(ids), element)
            cells = element if span == access.width else element * (access.memory.itemsize // unit)
            fields = [ids, access.warp_syncs[pick], access.epoch[pick], lanes.block_number[pick]]
            if span > 1:
                cells = (cells[:, None] + np.arange(span)).ravel()
                fields = [np.repeat(field, span) for field in fields]
            columns.append((cells, *fields))
        counts = [len(column[0]) for column in columns]
        self.cells, self.ids, self.warp_syncs, self.epoch, self.block = map(
            np.concatenate, zip(*columns, strict=True)
        )
        self.site = np.repeat([access.site for access in accesses], counts)
        self.op = np.repeat([access.op for access in accesses], counts)

    def only(self, keep: np.ndarray) -> "Batch":
        part = object.__new__(Batch)
        for name, values in vars(self).items():
            setattr(part, name, values[keep])
        return part


class Touched:
    """For each cell the last block that wrote it and the last that read it, with the sites."""

    def __init__(self, size: int):
        self.writer, self.writer_site, self.reader, self.reader_site = np.full((4, size), NOBODY, np.int64)

    def add(self, batch: Batch, party: np.ndarray):
        """Add accesses; yields (index in the batch, the other site) of the conflicts found."""
        cells = batch.cells
        writes, reads = np.flatnonzero(batch.op != LOAD), np.flatnonzero(batch.op == LOAD)

        def conflicts(which, others, sites):
            known = others[cells[which]]
            which = which[(known != NOBODY) & (known != party[which])]
            pairs = np.stack([batch.site[which], sites[cells[which]]])
            _, first = np.unique(pairs, axis=1, return_index=True)
            return [(k, int(sites[cells[k]])) for k in which[first].tolist()]

        yield from conflicts(writes, self.writer, self.writer_site)
        self.writer[cells[writes]], self.writer_site[cells[writes]] = party[writes], batch.site[writes]
        yield from conflicts(writes, self.writer, self.writer_site)
        yield from conflicts(writes, self.reader, self.reader_site)
        yield from conflicts(reads, self.writer, self.writer_site)
        earlier = self.reader[cells[reads]]
        self.reader[cells[reads]], self.reader_site[cells[reads]] = party[reads], batch.site[reads]
        several = self.reader[cells[reads]] != party[reads]
        several |= (earlier != NOBODY) & (earlier != party[reads])
        self.reader[cells[reads[several]]] = SEVERAL


def _party(batch: Batch, ids: np.ndarray) -> np.ndarray:
    """Atomics do not race with each other: they are one party."""
    return np.where(batch.op == ATOMIC, np.iinfo(np.int64).max, ids)


def _dense(*keys) -> np.ndarray:
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


def end_epoch(launch, allocation: Allocation):
    """All threads passed a barrier: check the accesses since the last one against each other."""
    accesses, written = allocation.recent, allocation.written
    allocation.recent, allocation.recent_lanes, allocation.written = [], 0, False
    if not written or not accesses:
        return
    batch = Batch(allocation, accesses)
    batch = batch.only(_contested(batch.cells, batch.op, _party(batch, batch.ids)))
    if len(batch.cells) == 0:
        return
    # syncwarp orders the lanes of one warp, but not one warp and another.
    _check(launch, allocation, batch, batch.ids, _slots(allocation, batch, batch.epoch, batch.warp_syncs))
    if np.any(batch.warp_syncs != batch.warp_syncs[0]):
        _check(launch, allocation, batch, batch.ids // WARP, _slots(allocation, batch, batch.epoch))


def _check(launch, allocation, batch, ids, slots):
    suspects = _contested(slots, batch.op, _party(batch, ids))
    if suspects.any():
        _report(launch, allocation, batch.only(suspects), _party(batch, ids)[suspects], slots[suspects])


def _examples(batch: Batch, party: np.ndarray, slots: np.ndarray):
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


def _report(launch, allocation, batch, party, slots):
    per_block = allocation.block_bytes // allocation.itemsize
    seen = set()
    for cell, entries in _examples(batch, party, slots):
        for mine, thread, site, op in entries:
            for theirs, other_thread, other_site, other_op in entries:
                if op == LOAD or mine == theirs or (site, other_site) in seen:
                    continue
                if other_op != LOAD and (other_site, site) in seen:
                    continue
                seen.add((site, other_site))
                what = "read" if other_op == LOAD else "write"
                text = (
                    f"{allocation.name} element {cell % per_block}: write by {launch.lane_name(thread)}, "
                    f"{what} by {launch.lane_name(other_thread)}, no barrier between"
                )
                launch.problem("race", site, other_site, text)


def check_blocks(launch, allocation: Allocation, accesses, final: bool):
    """Blocks have no order among themselves: what one writes no other may touch during the launch."""
    if np.prod(launch.grid) == 1:
        return
    batch = Batch(allocation, accesses)
    if allocation.blocks is None:
        if final:
            batch = batch.only(_contested(batch.cells, batch.op, _party(batch, batch.block)))
            if len(batch.cells) == 0:
                return
        allocation.blocks = Touched(allocation.nbytes // allocation.itemsize + 1)
    for k, other_site in allocation.blocks.add(batch, _party(batch, batch.block)):
        site, op = int(batch.site[k]), int(batch.op[k])
        if op == LOAD:
            site, other_site = other_site, site
        text = f"element {batch.cells[k]} of {allocation.name} belongs to several blocks"
        launch.problem("race between blocks", site, other_site, text)
