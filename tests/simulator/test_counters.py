"""Counters against values computed by hand, and against what a GPU's own counters said."""

import json
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba.simulator import simulate
from flashcore_numba.simulator.count import count_wavefronts, turns_of
from flashcore_numba.wide import load4, load8, store4, store8

FULL = 0xFFFFFFFF


@cuda.jit
def read_global(src, index, dst):
    i = cuda.threadIdx.x
    dst[i] = src[index[i]]


@cuda.jit
def read_global_wide(src, index, dst):
    i = cuda.threadIdx.x
    a, _, _, _ = load4(src, index[i])
    dst[i] = a


def global_load(index, dtype=np.float32, kernel=read_global, lanes=32):
    """The counts of one warp's load of src[index], without the load of the index itself."""
    src, dst = np.zeros(4096, dtype), np.zeros(32, np.float32)
    result = simulate(kernel, 1, lanes, src, np.asarray(index), dst)
    assert result.problems == []
    (row,) = [row for row in result.lines() if row.array == "src"]
    return row


LANE = np.arange(32)


@pytest.mark.parametrize(
    ("index", "dtype", "sectors", "needed"),
    [
        (LANE, np.float32, 4, 128),  # coalesced
        (LANE, np.float16, 2, 64),
        (LANE, np.float64, 8, 256),
        (LANE + 1, np.float32, 5, 128),  # misaligned: one sector more
        (LANE[::-1].copy(), np.float32, 4, 128),  # the order within a warp does not matter
        (2 * LANE, np.float32, 8, 128),
        (8 * LANE, np.float32, 32, 128),  # a sector a lane
        (64 * LANE, np.float32, 32, 128),
        (0 * LANE + 7, np.float32, 1, 4),  # all lanes read one element
        (LANE // 16 * 100, np.float32, 2, 8),
    ],
)
def test_global_sectors(index, dtype, sectors, needed):
    row = global_load(index, dtype)
    assert (row.requests, row.lanes, row.sectors) == (1, 32, sectors)
    assert row.bytes_requested == 32 * np.dtype(dtype).itemsize
    assert row.bytes_moved == 32 * sectors
    assert row.bytes_needed == needed
    assert row.efficiency == needed / (32 * sectors)


def test_inactive_lanes_move_nothing():
    row = global_load(LANE, lanes=20)
    assert (row.requests, row.lanes, row.sectors) == (1, 20, 3)


def test_wide_global_load_is_one_request():
    row = global_load(4 * LANE, kernel=read_global_wide)
    assert (row.requests, row.lanes, row.sectors, row.bytes_requested) == (1, 32, 16, 512)


@cuda.jit
def read_shared(index, dst):
    s = cuda.shared.array(2048, dst.dtype)
    for k in range(cuda.threadIdx.x, 2048, 32):
        s[k] = k
    cuda.syncthreads()
    i = index[cuda.threadIdx.x]
    if i >= 0:
        dst[cuda.threadIdx.x] = s[i]


@cuda.jit
def read_shared_wide(index, dst):
    s = cuda.shared.array(4096, float32, alignment=16)
    for k in range(cuda.threadIdx.x, 4096, 32):
        s[k] = k
    cuda.syncthreads()
    i = index[cuda.threadIdx.x]
    if i >= 0:
        a, _, _, _ = load4(s, 4 * i)
        dst[cuda.threadIdx.x] = a


def shared_load(kernel, index, dtype):
    """Wavefronts and conflicts of one warp that reads s[index]; a negative index reads nothing."""
    index, dst = np.asarray(index), np.full(32, -1, dtype)
    result = simulate(kernel, 1, 32, index, dst)
    assert result.problems == []
    scale = 4 if kernel is read_shared_wide else 1
    np.testing.assert_array_equal(dst, np.where(index < 0, -1, scale * index).astype(dtype))
    totals = result.totals()
    assert (totals["shared_load_requests"], totals["shared_load_lanes"]) == (1, (index >= 0).sum())
    return totals["shared_load_wavefronts"], totals["shared_load_conflicts"]


@pytest.mark.parametrize(
    ("index", "wavefronts", "conflicts"),
    [
        (LANE, 1, 0),
        (0 * LANE + 5, 1, 0),  # broadcast
        (LANE // 2, 1, 0),
        (2 * LANE, 2, 1),
        (4 * LANE, 4, 3),
        (33 * LANE, 1, 0),  # padded column
        (32 * LANE, 32, 31),  # column: one bank
        (32 * (LANE // 2), 16, 15),  # 16 words in one bank
        (np.where(LANE == 0, 32, LANE), 1, 0),  # 32 distinct words in 32 banks
        (np.where(LANE == 1, 32, LANE), 2, 1),  # words 0 and 32 meet in bank 0
    ],
)
def test_four_byte_bank_conflicts(index, wavefronts, conflicts):
    assert shared_load(read_shared, index, np.float32) == (wavefronts, conflicts)


@pytest.mark.parametrize(
    ("index", "wavefronts", "conflicts"),
    [
        (LANE, 1, 0),  # two lanes share a word
        (2 * LANE, 1, 0),
        (64 * LANE, 32, 31),
    ],
)
def test_two_byte_bank_conflicts(index, wavefronts, conflicts):
    assert shared_load(read_shared, index % 2048, np.float16) == (wavefronts, conflicts)


@pytest.mark.parametrize(
    ("index", "wavefronts", "conflicts"),
    [
        (LANE, 2, 0),  # 256 bytes: one wavefront a half warp
        (0 * LANE, 1, 0),
        (LANE // 2, 1, 0),  # lanes that differ in bit 0 agree: one pass for the warp
        (LANE % 2, 1, 0),  # lanes that differ in bit 1 agree
        (LANE % 4, 2, 0),  # lanes that differ in bit 2 do not count
        (LANE % 16, 2, 0),  # both halves read the same 128 bytes, one after the other
        (16 * LANE, 32, 30),  # one pair of banks
        (2 * LANE, 4, 2),
    ],
)
def test_eight_byte_accesses(index, wavefronts, conflicts):
    assert shared_load(read_shared, index, np.float64) == (wavefronts, conflicts)


@pytest.mark.parametrize(
    ("index", "wavefronts", "conflicts"),
    [
        (LANE, 4, 0),  # 512 bytes: one wavefront a quarter warp
        (0 * LANE, 2, 0),  # even one address for all is two passes
        (LANE // 2, 2, 0),  # lanes that differ in bit 0 agree: one wavefront a half warp
        (LANE % 16, 4, 0),
        (LANE // 8, 2, 0),
        (8 * LANE, 32, 28),  # one group of four banks
        (9 * LANE, 4, 0),  # rows of 36 floats: padding for 16-byte accesses
    ],
)
def test_sixteen_byte_accesses(index, wavefronts, conflicts):
    assert shared_load(read_shared_wide, index, np.float32) == (wavefronts, conflicts)


MEASURED = json.loads(Path(__file__).with_name("bank_patterns.json").read_text())


@pytest.mark.long
@pytest.mark.parametrize("itemsize", [4, 8, 16])
def test_bank_patterns_measured_on_a_gpu(itemsize):
    """One load of one warp, for every pattern of addresses that was measured under Nsight Compute."""
    kernel, dtype = {
        4: (read_shared, np.float32),
        8: (read_shared, np.float64),
        16: (read_shared_wide, np.float32),
    }[itemsize]
    patterns = [pattern for pattern in MEASURED["patterns"] if pattern["itemsize"] == itemsize]
    assert len(patterns) > 100
    for pattern in patterns:
        counted = shared_load(kernel, np.array(pattern["index"]), dtype)
        assert counted == (pattern["wavefronts"], pattern["conflicts"]), pattern


@cuda.jit
def many_operations(x, out):
    i = cuda.threadIdx.x
    a = x[i]
    b = a * a + a  # fma
    b = b - a * a  # fma
    b = b + a  # add
    b = b * a  # mul
    b = b / a  # div
    b = cuda.fma(b, a, a)  # fma
    if i < 8:
        b *= a  # mul, 8 lanes
    out[i] = b


def test_arithmetic_is_counted_by_thread():
    x = np.ones(64, np.float32)
    totals = simulate(many_operations, 1, 64, x, np.zeros_like(x)).totals()
    got = {name: totals[name] for name in ("fma32", "add32", "mul32", "div32")}
    assert got == {"fma32": 3 * 64, "add32": 64, "mul32": 64 + 8, "div32": 64}
    assert not [name for name in totals if name.endswith("64")]


@cuda.jit
def double_by_accident(x, out):
    i = cuda.threadIdx.x
    out[i] = 0.5 * x[i] + 2 * x[i]


def test_float64_by_accident_is_seen():
    """A float literal is float64 on the device, and so is an integer times a float32."""
    x = np.ones(32, np.float32)
    totals = simulate(double_by_accident, 1, 32, x, np.zeros_like(x)).totals()
    assert totals["mul64"] == totals["fma64"] == 32


def test_ops_can_be_switched_off():
    x = np.ones(32, np.float32)
    totals = simulate(many_operations, 1, 32, x, np.zeros_like(x), ops=False).totals()
    assert [name for name in totals if name.endswith("32")] == ["fma32"]  # cuda.fma is a call


@cuda.jit
def warp_work(x, out):
    i = cuda.threadIdx.x
    value = x[i]
    cuda.syncthreads()
    if i < 32:
        cuda.syncwarp()
        value += cuda.shfl_xor_sync(FULL, value, 1)
        if cuda.any_sync(FULL, value > 0):
            value += 1
    cuda.syncthreads()
    cuda.atomic.add(out, i % 2, value)


def test_barriers_and_warp_instructions_are_counted_by_warp():
    x, out = np.ones(96, np.float32), np.zeros(2, np.float32)
    totals = simulate(warp_work, 1, 96, x, out).totals()
    assert totals["barriers"] == 6
    assert (totals["syncwarp"], totals["shuffle"], totals["vote"]) == (1, 1, 1)
    assert (totals["global_atomic_requests"], totals["global_atomic_lanes"]) == (3, 96)
    assert out.sum() == 64 + 32 * 3


@cuda.jit
def memories(src, dst):
    s = cuda.shared.array((4, 33), float32)
    window = cuda.local.array(6, float32)
    pool = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    for k in range(6):
        window[k] = src[i]
    s[i // 32, i % 32] = window[i % 6]
    pool[i] = s[i // 32, i % 32]
    dst[i] = pool[i]


def test_sizes_and_footprint():
    src, dst = np.ones(4096, np.float32), np.zeros(128, np.float32)
    totals = simulate(memories, 1, 128, src, dst, shared_bytes=512).totals()
    assert totals["shared_bytes_per_block"] == 4 * 33 * 4 + 512
    assert totals["local_bytes_per_thread"] == 24
    assert totals["footprint_bytes"] == {"src": 512, "dst": 512}


@cuda.jit
def halves(src, dst):
    i = 8 * cuda.grid(1)
    a, b, c, d, e, f, g, h = load8(src, i)
    store8(dst, i, a, b, c, d, e, f, g, h)


def test_only_counted_blocks_count():
    src = np.arange(2048).astype(np.float16)
    full, part, one = (np.zeros_like(src) for _ in range(3))
    everything = simulate(halves, 8, 32, src, full).totals()
    first = simulate(halves, 8, 32, src, part, count_blocks=2).totals()
    last = simulate(halves, 8, 32, src, one, count_blocks=[7]).totals()
    for out in (full, part, one):
        np.testing.assert_array_equal(out, src)
    assert everything["global_load_requests"] == 8
    assert first["global_load_requests"] == 2
    assert last["footprint_bytes"] == {"src": 512, "dst": 512}
    assert everything["global_store_bytes_moved"] == src.nbytes


def test_rows_add_up_to_the_totals():
    src = np.arange(2048).astype(np.float16)
    result = simulate(halves, 8, 32, src, np.zeros_like(src))
    totals = result.totals()
    for op in ("load", "store"):
        rows = [row for row in result.lines() if row.op == op]
        assert sum(row.sectors for row in rows) == totals[f"global_{op}_sectors"] == 128
    text = str(result)
    assert "halves: grid (8, 1, 1), block (32, 1, 1), 8 of 8 blocks counted" in text
    assert "load8(src, i)" in text


@cuda.jit
def wide_with_offset(src, dst):
    i = cuda.threadIdx.x
    row = src[i // 8, 1]
    a, b, c, d = load4(row, 4 * (i % 8))
    store4(dst, 4 * i, a, b, c, d)


def test_wide_access_through_a_view(rng):
    src = rng.standard_normal((4, 2, 32), dtype=np.float32)
    dst = np.zeros(128, np.float32)
    totals = simulate(wide_with_offset, 1, 32, src, dst).check().totals()
    np.testing.assert_array_equal(dst, src[:, 1].ravel())
    assert totals["global_load_sectors"] == 16
    assert totals["global_load_bytes_requested"] == 512


def test_recorded_events_are_the_accesses(rng):
    src = rng.standard_normal(64, dtype=np.float32)
    result = simulate(read_global, 1, 20, src, LANE, np.zeros(32, np.float32), record=True)
    event = next(e for e in result.events if e.array == "src")
    assert (event.op, event.space, event.itemsize, event.width) == ("load", "global", 4, 1)
    np.testing.assert_array_equal(event.element[event.active], np.arange(20))
    np.testing.assert_array_equal(event.warp, np.zeros(32))
    assert sum(int(e.active.sum()) for e in result.events if e.op == "load") == 40
    assert simulate(read_global, 1, 20, src, LANE, np.zeros(32, np.float32)).events == []


@cuda.jit
def meet(src, dst):
    i = cuda.threadIdx.x
    tile = cuda.shared.array(64, float32)
    tile[i] = src[i]
    cuda.syncthreads()
    if i < 32:
        value = tile[63 - i]
        cuda.syncwarp()
        dst[i] = cuda.shfl_xor_sync(FULL, value, 1)


def test_barriers_and_shuffles_are_recorded_in_order(rng):
    src = rng.standard_normal(64, dtype=np.float32)
    result = simulate(meet, 1, 64, src, np.zeros(32, np.float32), record=True).check()
    ops = [event.op for event in result.events]
    assert ops == ["load", "store", "barrier", "load", "syncwarp", "shuffle", "store"]
    barrier, shuffle = result.events[2], result.events[5]
    assert barrier.active.sum() == 64 and barrier.site.text == "cuda.syncthreads()"
    np.testing.assert_array_equal(np.unique(shuffle.warp[shuffle.active]), [0])
    plain = simulate(meet, 1, 64, src, np.zeros(32, np.float32))
    assert plain.totals() == result.totals()
    assert result.totals()["barriers"] == 2 and result.totals()["shuffle"] == 1


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_turns_are_the_counted_wavefronts(rng, itemsize):
    for _ in range(200):
        step = rng.integers(0, 70)
        elements = (np.arange(32) * step // rng.integers(1, 5) + rng.integers(0, 9)) % 1024
        if rng.random() < 0.5:
            elements = rng.integers(0, rng.choice([4, 40, 400]), 32)
        if rng.random() < 0.5:
            elements = np.where(rng.random(32) < 0.3, -1, elements)
        turns = turns_of(elements, itemsize)
        assert turns.max() + 1 == count_wavefronts(elements[None], itemsize)[0][0]
        np.testing.assert_array_equal(turns < 0, elements < 0)
        unit = max(4, itemsize)
        for turn in range(turns.max() + 1):  # a wavefront takes at most one word from a bank
            words = np.unique(elements[turns == turn] * itemsize // unit)
            assert len(words) > 0 and len(np.unique(words % (128 // unit))) == len(words)
