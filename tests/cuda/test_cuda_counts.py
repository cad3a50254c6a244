"""What the CPU executor counts: wavefronts as measured on a GPU, sectors, requests, barriers."""

import json
from pathlib import Path

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule

HERE = Path(__file__).resolve().parent
MEASURED = json.loads((HERE.parent / "simulator/bank_patterns.json").read_text())


def module(**options) -> CpuModule:
    return CpuModule(HERE / "banks.cu", checks=False, counts=True, **options)


def rows(launch, mark: str, op: str | None = None):
    found = [row for row in launch.lines() if mark in row.text and row.space and op in (None, row.op)]
    assert found, launch.lines()
    return found


@pytest.mark.parametrize("itemsize", [4, 8, 16])
def test_bank_patterns_measured_on_a_gpu(itemsize):
    kernel = module().kernel(f"touch_{itemsize}")
    patterns = [pattern for pattern in MEASURED["patterns"] if pattern["itemsize"] == itemsize]
    assert len(patterns) > 100
    for pattern in patterns:
        out = np.zeros((32, itemsize // 4), np.float32)
        launch = kernel(1, 32, (np.array(pattern["index"], np.int32), out), shared_mem=65536)
        (row,) = [row for row in rows(launch, "// LOAD", "load") if row.space == "shared"]
        assert (row.requests, row.lanes) == (1, sum(i >= 0 for i in pattern["index"]))
        assert (row.wavefronts, row.conflicts) == (pattern["wavefronts"], pattern["conflicts"]), pattern


def test_passes_of_a_store_never_join():
    """One lane of each four stores 16 bytes, side by side: measured in stage 16, on an H200."""
    index = np.where(np.arange(32) % 4 == 0, np.arange(32) // 4, -1).astype(np.int32)
    launch = module().kernel("touch_16")(1, 32, (index, np.zeros((32, 4), np.float32)), shared_mem=65536)
    for mark, op, wavefronts in (("// LOAD", "load", 2), ("// STORE", "store", 4)):
        (row,) = [row for row in rows(launch, mark, op) if row.space == "shared"]
        assert (row.requests, row.lanes, row.wavefronts, row.conflicts) == (1, 8, wavefronts, 0)


@pytest.mark.parametrize(("swizzle", "wavefronts"), [(1, 4), (0, 32)])
def test_ldmatrix(swizzle, wavefronts):
    """Eight rows of 16 bytes a phase: 128 bytes apart they meet in the same four banks, swizzled in none."""
    launch = module().ldmatrix_tile(
        1, 32, (np.zeros((16, 32), np.uint32), np.int32(swizzle)), shared_mem=8192
    )
    (row,) = rows(launch, "ldmatrix_x4")
    assert (row.op, row.space, row.requests) == ("load", "shared", 16)
    assert (row.wavefronts, row.conflicts) == (16 * wavefronts, 16 * (wavefronts - 4))
    assert row.bytes_requested == 64 * 64 * 2


@pytest.mark.parametrize(
    ("stride", "every", "sectors"), [(1, 1, 4), (2, 1, 8), (8, 1, 32), (0, 1, 1), (1, 8, 4)]
)
def test_sectors(stride, every, sectors):
    x = np.ones(256, np.float32)
    args = (x, np.zeros(32, np.float32), np.int32(stride), np.int32(every))
    launch = module().global_load(3, 32, args)
    (row,) = rows(launch, "// LOAD", "load")
    assert (row.space, row.array) == ("global", "in")
    assert (row.requests, row.lanes, row.sectors) == (3, 3 * 32 // every, 3 * sectors)
    assert row.bytes_moved == row.sectors * 32
    assert launch.totals()["global_load_sectors"] == row.sectors


@pytest.mark.parametrize(("pitch", "wavefronts"), [(128, 8), (144, 21)])
def test_rows_that_cp_async_copies(pitch, wavefronts):
    """Two warps' copies of eight rows. Measured in the stages on an H200: 4 wavefronts a copy where rows lie
    128 bytes apart, 10.5 on average where 144."""
    found = []
    for first in (0, 4):
        args = (np.zeros(1024, np.int8), np.int32(first), np.int32(pitch))
        launch = module().copy_rows(1, 32, args, shared_mem=2048)
        (store,) = rows(launch, "cp_async_16", "store")
        assert (store.space, store.requests, store.lanes) == ("shared", 1, 32)
        assert store.wavefronts - store.conflicts == 4
        (load,) = rows(launch, "cp_async_16", "load")
        assert (load.space, load.requests, load.sectors) == ("global", 1, 16)
        found.append(store.wavefronts)
    assert sum(found) == wavefronts


def test_lanes_meet_again_after_a_loop():
    launch = module().ragged_loop(1, 32, (np.ones(128, np.float32), np.zeros(32, np.float32)))
    (loop,) = rows(launch, "// LOAD", "load")
    assert (loop.requests, loop.lanes) == (4, 32 + 24 + 16 + 8)
    (again,) = rows(launch, "// AGAIN", "load")
    assert (again.requests, again.sectors) == (1, 4)
    assert launch.totals()["syncwarp"] == 1


def test_counts_do_not_depend_on_the_schedule(rng):
    def counted(schedule):
        args = (np.ones(128, np.float32), np.zeros(32, np.float32))
        return module(schedule=schedule).ragged_loop(2, 32, args).totals()

    assert counted("forward") == counted("reverse") == counted(f"random:{rng.integers(0, 1000)}")


def test_nothing_is_counted_when_told():
    launch = module().ragged_loop(1, 32, (np.ones(128, np.float32), np.zeros(32, np.float32)), counts=False)
    assert not launch.lines()


@pytest.mark.long
@pytest.mark.parametrize(("arch", "requests"), [(900, 1), (800, 4)])
def test_additions_move_whole_sectors(arch, requests):
    """512 bytes by a warp: all at once, or in four instructions of 128 bytes in a row."""
    kernel = CpuModule(HERE / "wrappers.cu", {"PTX_ARCH": arch}).kernel("add_quad")
    totals = kernel(2, 32, (np.ones(128, np.float32), np.zeros(128, np.float32))).check().totals()
    counted = [
        totals[f"global_atomic_{each}"] for each in ("requests", "sectors", "bytes_requested", "bytes_moved")
    ]
    assert counted == [2 * requests, 2 * 16, 2 * 512, 2 * 512]
