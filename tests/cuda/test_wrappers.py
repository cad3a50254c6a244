"""Every wrapper of ptx.cuh and what the CPU executor stands in for: the same kernels there and on a GPU."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cuda_reference import FOLDER, TensorMap, load, source
from flashcore_numba.core.element import BFLOAT16, E4M3, FLOAT16
from flashcore_numba.stages.parts.tile_maps import bounded_map

HERE = Path(__file__).resolve().parent
HALF, FLOAT, INT, PAIR = np.float16, np.float32, np.int32, np.uint32


class Case(NamedTuple):
    """A kernel with its launch and arguments, and what its arrays hold afterwards, by position."""

    kernel: str
    grid: int
    block: int
    args: tuple
    expected: dict[int, np.ndarray]
    shared: int = 0
    tolerance: float = 0.0
    element: str = "float16"


def halves(rng, *shape):
    return rng.standard_normal(shape).astype(HALF)


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(FLOAT)


def store_16(rng):
    x = rng.integers(0, 2**32, 128, dtype=np.uint32)
    return Case("store_16", 1, 32, (x, np.zeros_like(x)), {1: x.reshape(32, 4)[:, ::-1].ravel()})


def load_acquire(rng):
    words = np.zeros(33, np.uint32)
    return Case("load_acquire", 2, 32, (words,), {0: np.array([*range(132, 100, -1), 1], np.uint32)})


def arrivals(rng):
    words, came = np.zeros(33, np.uint32), np.arange(131, 99, -1, np.uint32)
    return Case("arrivals", 1, 64, (words, np.zeros(32, np.uint32)), {0: [*came, 1], 1: came + 1}, 1024)


def add_quad(rng):
    x, sums = rng.integers(-100, 100, (2, 128)).astype(FLOAT)
    return Case("add_quad", 3, 64, (x, sums), {1: sums + 6 * x})


def copy_16(rng):
    x, valid = halves(rng, 256), int(rng.integers(0, 33))
    kept = np.where(np.arange(256) < 8 * valid, x, HALF(0))
    return Case("cp_async_16", 1, 32, (x, np.zeros_like(x), INT(valid)), {1: kept[::-1]}, 512)


def copy_small(rng):
    x = floats(rng, 96)
    kept = np.where((np.arange(96) < 32) | (np.arange(96) // 2 % 2 == 0), x, FLOAT(0))
    return Case("cp_async_small", 1, 32, (x, np.zeros_like(x)), {1: kept[::-1]}, 384)


def copy_groups(rng):
    x = floats(rng, 4, 128)
    both = np.concatenate([x[:2].ravel()[::-1], x[2:].ravel()[::-1]])
    return Case("cp_async_groups", 1, 32, (x, np.zeros(512, FLOAT)), {1: both}, 2048)


def copy_mbarrier(rng):
    x = halves(rng, 512)
    return Case("cp_async_mbarrier", 1, 64, (x, np.zeros_like(x)), {1: x[::-1]}, 1040)


def named_barriers(rng):
    rounds = int(rng.integers(1, 8))
    made = (np.arange(rounds)[:, None] * 100 + np.arange(63, -1, -1)).astype(FLOAT)
    return Case("named_barriers", 1, 128, (np.zeros_like(made), INT(rounds)), {0: made}, 512)


def fragments(matrices, transposed):
    """What ldmatrix leaves in the registers, [matrices, 32 lanes] as pairs of halves."""
    lane = np.arange(32)
    along, across = lane // 4, lane % 4 * 2
    taken = [
        np.stack([m[across + i, along] if transposed else m[along, across + i] for i in (0, 1)], 1)
        for m in matrices
    ]
    return np.ascontiguousarray(np.stack(taken)).view(PAIR)[..., 0]


def ldmatrix(form):
    def case(rng):
        rows = halves(rng, 32, 8)
        matrices = rows.reshape(4, 8, 8)[: 2 if form >= 2 else 4]
        out = np.zeros((4, 32), PAIR)
        out[: len(matrices)] = fragments(matrices, form % 2 == 1)
        return Case("ldmatrix", 1, 32, (rows, np.zeros((4, 32), PAIR), INT(form)), {1: out}, 512)

    return case


def elements(rng, element, *shape):
    """Random numbers of the type, and their bits: what a kernel moves without knowing the type."""
    x = element.round(rng.standard_normal(shape))
    return x.astype(float), x.view(np.uint16)


def mma(rng, element=FLOAT16):
    (x, a), (y, b), c = elements(rng, element, 16, 16), elements(rng, element, 8, 16), floats(rng, 16, 8)
    args, exact = (a, b, c, np.zeros_like(c)), x @ y.T + c
    return Case("mma_m16n8k16", 1, 32, args, {3: exact}, tolerance=1e-4, element=element.name)


def arithmetic(rng, element=FLOAT16):
    x = np.concatenate([floats(rng, 28) * 8, [-np.inf, 0, -126.5, -140]]).astype(FLOAT)
    rounded = element.round(x)
    pairs = np.stack([rounded, -rounded], 1).view(PAIR)[:, 0]
    exact = rounded.astype(float)
    sums = element.round(np.stack([3 * exact + exact, 2 - exact * exact], 1)).view(PAIR)[:, 0]
    args = (x, np.zeros_like(x), *np.zeros((2, 32), PAIR))
    power = np.exp2(x.astype(float))
    expected = {1: np.where(power < np.finfo(FLOAT).tiny, 0, power), 2: pairs, 3: sums}
    return Case("arithmetic", 1, 32, args, expected, tolerance=1e-5, element=element.name)


def e4m3(rng):
    """All bytes; floats of every size, halfway between two bytes, and beyond the last one."""
    bytes_ = np.arange(256, dtype=np.uint8)
    both = np.stack([bytes_, bytes_[::-1]], 1).view(E4M3.dtype)
    finite = np.sort(both[:127, 0].astype(FLOAT))
    middles = (finite[1:] + finite[:-1]) / 2
    scales = (2.0 ** rng.uniform(-12, 12, 512 - 2 * len(middles) - 5) * rng.choice([-1, 1])).astype(FLOAT)
    x = rng.permutation(np.concatenate([middles, -middles, scales, [0, np.inf, -np.inf, 1e30, np.nan]]))
    x = x.astype(FLOAT)
    right = E4M3.round(np.clip(x, -E4M3.largest, E4M3.largest)).view(np.uint8)
    right = np.ma.array(right, mask=np.isnan(x))
    args = (x, np.zeros((256, 2), HALF), np.zeros(512, np.uint8))
    return Case("e4m3", 1, 256, args, {1: both.astype(HALF), 2: right}, tolerance=0)


def capped(rng):
    x = np.concatenate([4 * floats(rng, 28), [-np.inf, np.inf, 0, 1e-30]]).astype(FLOAT)
    return Case("capped", 1, 32, (x, np.zeros_like(x)), {1: np.tanh(x.astype(float))}, tolerance=2.0**-10.9)


def tma_5d(rng):
    """A sequence of 20 rows, from row 10 on, of 60: zeros come from past its end, and nothing goes there."""
    x, back = halves(rng, 60, 2, 64), halves(rng, 60, 2, 64)
    begin, size, row = 10, 20, int(rng.integers(5, 20))
    rows = np.arange(row, row + 16)
    inside = rows < size
    tile = np.where(inside[:, None], x[np.minimum(begin + rows, 59), 1], HALF(0))
    after = back.copy()
    after[(begin + rows)[inside], 1] = tile[inside]
    maps = (bounded_map(y.swapaxes(0, 1)[None], 16) for y in (x, back))
    numbers = (INT(row), INT(begin), INT(size))
    out = np.zeros((16, 64), HALF)
    args = (*maps, out, *numbers)
    return Case("tma_5d", 1, 32, args, {1: after.swapaxes(0, 1)[None], 2: swizzled(tile)}, 2048 + 16)


def mbarrier_ring(rng):
    rounds = int(rng.integers(1, 9))
    made = (np.arange(rounds)[:, None] * 100 + np.arange(31, -1, -1)).astype(FLOAT)
    return Case("mbarrier_ring", 1, 64, (np.zeros_like(made), INT(rounds)), {0: made}, 288)


def shuffles(rng):
    x = rng.integers(-50, 50, 32).astype(INT)
    lane = np.arange(32)
    ballot = int((1 << lane[x > 0]).sum()) - (1 << 32 if x[31] > 0 else 0)
    votes = np.where(lane < 16, (x[:16] == x[3]).any(), (x[16:] != x[3]).all())
    across = lane ^ 12  # leaves its group of 8 upwards: keeps its own value
    rows = [
        np.full(32, x[5]), x[lane // 8 * 8 + (lane + 3) % 8], x[lane ^ 9],
        np.where(across // 8 > lane // 8, x, x[across]), np.where(lane + 7 < 32, x[(lane + 7) % 32], x),
        np.where(lane % 16 >= 3, x[lane - 3], x), np.full(32, ballot), votes,
    ]  # fmt: skip
    return Case("shuffles", 1, 32, (x, np.zeros((8, 32), INT)), {1: np.stack(rows).astype(INT)})


def far_shuffles(rng):
    """A shuffle reads five bits of its distance."""
    x, lane = rng.integers(-50, 50, 32).astype(INT), np.arange(32)
    rows = [x[lane ^ 1], np.where(lane + 3 < 32, x[(lane + 3) % 32], x), np.where(lane, x[lane - 1], x)]
    rows += [np.full(32, x[31]), np.full(32, x[5])]
    far = np.array([-(2**31) + 1, 35, 33, -1, 37], INT)
    return Case("far_shuffles", 1, 32, (x, far, np.zeros((5, 32), INT)), {2: np.stack(rows).astype(INT)})


def atomics(rng):
    x = rng.integers(-99, 99, 64).astype(INT)
    out = np.array([0, -1000, 1000, 0, -1, 0, 0, 7], INT)
    after = np.array([x.sum(), x.max(), x.min(), 0x7FFFFFFF, 0, 1, 64 % 10, 7], INT)
    got_by = 0 * after  # which thread won the compare-and-swap is not said
    got_by[4] = 1
    case = Case("atomics", 1, 64, (x, out, np.zeros(1, FLOAT)), {2: np.array([64.0])})
    return case._replace(expected=case.expected | {1: np.ma.masked_array(after, got_by)})


def wmma(form):
    def case(rng):
        a, b = halves(rng, 16, 16), halves(rng, 16, 16)
        exact = 2 * a.astype(float) @ (b.T if form & 1 else b).astype(float)
        out = exact.T if form & 2 else exact
        return Case(
            "wmma_16x16x16", 1, 32, (a, b, np.zeros((16, 16), FLOAT), INT(form)), {2: out}, tolerance=1e-4
        )

    return case


def last_block(rng):
    x = rng.integers(-9, 9, (5, 32)).astype(FLOAT)
    args = (x, np.zeros(5, FLOAT), np.zeros(1, PAIR), np.zeros(1, FLOAT))
    return Case("last_block_sums", 5, 32, args, {3: np.array([x.sum()])})


def wrapping(rng):
    x = rng.integers(-9, 9, (5, 32)).astype(FLOAT)
    args = (x, np.zeros(5, FLOAT), np.zeros(1, PAIR), np.zeros(5, FLOAT))
    return Case("wrapping_counter", 5, 32, args, {2: np.zeros(1, PAIR), 3: x.sum(1)})


def swizzled(tile):
    """How a [rows, 64] tile of halves lies in shared memory: 16-byte chunks permuted within each row."""
    rows, chunks = np.arange(len(tile))[:, None], np.arange(8)[None, :]
    out = np.empty_like(tile).reshape(len(tile), 8, 8)
    out[rows, chunks ^ rows % 8] = tile.reshape(len(tile), 8, 8)
    return out.reshape(tile.shape)


def tma_2d(rng):
    x, y = halves(rng, 100, 128), halves(rng, 128, 96)
    row, column = int(rng.integers(-20, 80)), int(rng.integers(-40, 80))
    padded = np.zeros((400, 400), HALF)
    padded[100:200, 100:228] = x
    tile = padded[100 + row : 164 + row, 100 + column : 164 + column]
    after = y.copy()
    after[64:128, 0:64] = tile
    args = (TensorMap(x, (64, 64)), TensorMap(y, (64, 64)), np.zeros((64, 64), HALF), INT(row), INT(column))
    return Case("tma_2d", 1, 128, args, {1: after, 2: swizzled(tile)}, 8192 + 16)


def tma_3d_4d(rng):
    three, four = halves(rng, 3, 20, 64), halves(rng, 2, 3, 20, 64)
    back = halves(rng, 2, 2, 20, 64)
    first = np.concatenate([three[1, 5:], np.zeros((1, 64), HALF)])
    tiles = np.stack([swizzled(first), swizzled(four[1, 1, 3:19])])
    after = back.copy()
    after[1, 0, 8:20] = first[:12]
    maps = (
        TensorMap(three, (1, 16, 64)), TensorMap(four, (1, 1, 16, 64)), TensorMap(back, (1, 1, 16, 64)),
    )  # fmt: skip
    args = (*maps, np.zeros((2, 16, 64), HALF))
    return Case("tma_3d_4d", 1, 64, args, {2: after, 3: tiles}, 6144 + 16)


def bulk(rng):
    x, before = floats(rng, 256), floats(rng, 256)
    args = (x, np.zeros_like(x), before)
    return Case("bulk_copies", 1, 32, args, {1: 2 * x[::-1], 2: before + 2 * x[::-1]}, 2064)


def stmatrix(transposed):
    def case(rng):
        rows = halves(rng, 32, 8)
        given = fragments(rows.reshape(4, 8, 8), transposed)
        return Case("stmatrix", 1, 32, (given, np.zeros_like(rows), INT(transposed)), {1: rows}, 512)

    return case


def cluster_sums(rng):
    x = rng.integers(-9, 9, (8, 32)).astype(FLOAT)
    sums = x.reshape(2, 4, 32).sum(1).repeat(4, 0)
    return Case("cluster_sums", 8, 32, (x, np.zeros_like(x)), {1: sums})


def cluster_stores(rng):
    x = floats(rng, 4, 128)
    return Case("cluster_stores", 4, 32, (x, np.zeros_like(x)), {1: x[[1, 0, 3, 2], ::-1]}, 512 + 16)


def cluster_copies(rng):
    x, tile = floats(rng, 4, 32), halves(rng, 1, 1, 64, 64)
    args = (x, TensorMap(tile, (1, 1, 64, 64)), np.zeros_like(x), np.zeros((4, 64, 64), HALF))
    tiles = np.broadcast_to(swizzled(tile[0, 0]), (4, 64, 64))
    return Case("cluster_copies", 4, 32, args, {2: x[[0, 0, 2, 2]], 3: tiles}, 8192 + 256 + 16)


def wgmma(n, transposed, in_registers, element=FLOAT16):
    def case(rng):
        x, a = elements(rng, element, 64, 64)
        y, b = elements(rng, element, *((64, n) if transposed else (n, 64)))
        exact = x @ (y if transposed else y.T)
        name = f"wgmma_{n}_transposed" if transposed else f"wgmma_{n}"
        args = (a, b, np.zeros((64, n), FLOAT), INT(in_registers))
        return Case(name, 1, 128, args, {2: exact}, 8192 * 5, 1e-3, element.name)

    return case


def wgmma_e4m3(n, in_registers):
    """Of n = 128 rows of 128 bytes, or 64 of 64. Small integers: sums of them are exact in 13 bits."""

    def case(rng):
        x, y = (rng.integers(-3, 4, (rows, n)).astype(FLOAT) for rows in (64, n))
        args = (*(E4M3.round(each).view(np.uint8) for each in (x, y)), np.zeros((64, n), FLOAT))
        return Case(f"wgmma_e4m3_{n}", 1, 128, (*args, INT(in_registers)), {2: x @ y.T}, 192 * 128)

    return case


def registers(rng):
    return Case("registers", 1, 256, (np.zeros(256, FLOAT),), {0: np.arange(256)})


SM80: dict[str, Callable] = {
    "store_16": store_16, "load_acquire": load_acquire, "add_quad": add_quad,
    "cp_async_16": copy_16, "cp_async": copy_small, "cp_async_commit": copy_groups,
    "cp_async_wait": copy_groups,
    "cp_async_wait_all": copy_small, "cp_async_mbarrier_arrive": copy_mbarrier, "bar_sync": named_barriers,
    "bar_arrive": named_barriers, "ldmatrix_x4": ldmatrix(0), "ldmatrix_x4_trans": ldmatrix(1),
    "ldmatrix_x2": ldmatrix(2), "ldmatrix_x2_trans": ldmatrix(3), "mma_m16n8k16": mma, "ex2": arithmetic,
    "pin": arithmetic, "tanh": capped, "widen_e4m3": e4m3, "pack_e4m3": e4m3,
    "fma_pairs": arithmetic, "pack_pair": arithmetic, "mbarrier_init": mbarrier_ring,
    "mbarrier_arrive": mbarrier_ring,
    "mbarrier_wait": mbarrier_ring, "shuffles and votes": shuffles, "far shuffles": far_shuffles,
    "atomics": atomics, "WMMA rows": wmma(0),
    "mma_m16n8k16, bfloat16": partial(mma, element=BFLOAT16),
    "fma_pairs, bfloat16": partial(arithmetic, element=BFLOAT16),
    "WMMA columns of B": wmma(1), "WMMA columns of D": wmma(2), "threadfence": last_block,
    "arrive_wrapping": wrapping,
}  # fmt: skip
SM90: dict[str, Callable] = {
    "load_acquire_system": arrivals, "fence_proxy_async_global": arrivals,
    "mbarrier_arrive_expect": tma_2d, "mbarrier_arrive_remote": cluster_sums,
    "mbarrier_wait_cluster": cluster_sums,
    "fence_mbarrier_init": tma_2d, "fence_proxy_async": tma_3d_4d, "stmatrix_x4": stmatrix(0),
    "stmatrix_x4_trans": stmatrix(1), "elect_one": bulk, "tma_load_2d": tma_2d, "tma_load_3d": tma_3d_4d,
    "tma_load_4d": tma_3d_4d,
    "tma_load_5d": tma_5d, "tma_store_5d": tma_5d,
    "tma_load_multicast_4d": cluster_copies, "tma_store_2d": tma_2d,
    "tma_store_4d": tma_3d_4d, "bulk_load": bulk, "bulk_store": bulk, "bulk_add_f32": bulk,
    "bulk_copy_to_rank": cluster_copies, "store_async": cluster_stores,
    "bulk_commit": bulk, "bulk_wait": bulk, "bulk_wait_read": tma_3d_4d,
    "prefetch_map": tma_2d, "cluster_rank": cluster_sums, "cluster_blocks": cluster_sums,
    "cluster_arrive": cluster_sums, "cluster_arrive_relaxed": cluster_stores,
    "cluster_wait": cluster_sums, "remote": cluster_sums,
    "grid_dependency_wait": registers, "grid_dependency_launch": registers, "registers_down": registers,
    "registers_up": registers, "wgmma_tile": wgmma(64, 0, 0), "wgmma_fence": wgmma(64, 0, 0),
    "wgmma_commit": wgmma(64, 0, 0), "wgmma_wait": wgmma(64, 0, 0), "wgmma_pin": wgmma(64, 0, 0),
    "wgmma_ss": wgmma(64, 0, 0), "wgmma_ss, B transposed": wgmma(64, 1, 0), "wgmma_rs": wgmma(64, 0, 1),
    "wgmma_rs, B transposed": wgmma(64, 1, 1), "wgmma_ss, N = 176": wgmma(176, 0, 0),
    "wgmma_rs, N = 256, B transposed": wgmma(256, 1, 1),
    "wgmma_rows": wgmma_e4m3(64, 0), "wgmma_e4m3_ss": wgmma_e4m3(128, 0),
    "wgmma_e4m3_rs": wgmma_e4m3(128, 1), "wgmma_e4m3_rs, rows of 64 bytes": wgmma_e4m3(64, 1),
    "wgmma_ss, bfloat16": wgmma(64, 0, 0, BFLOAT16),
    "wgmma_rs, bfloat16, B transposed": wgmma(256, 1, 1, BFLOAT16),
}  # fmt: skip
INTERNAL = {"smem_address", "mma_m16n8k8", "add_float", "e4m3_of"}  # used by other wrappers
FILES = {"wrappers": SM80, "wrappers_sm90": SM90}
KERNELS = {(file, case): name for file, cases in FILES.items() for name, case in reversed(cases.items())}
EACH = pytest.mark.parametrize(
    ("file", "case"), [pytest.param(*key, id=name) for key, name in reversed(KERNELS.items())]
)


def compare(case: Case, got: list[np.ndarray]) -> None:
    for position, expected in case.expected.items():
        found = got[position]
        if isinstance(expected, np.ma.MaskedArray):
            expected, found = expected.compressed(), found[~np.ma.getmaskarray(expected)]
        np.testing.assert_allclose(found, expected, rtol=case.tolerance, atol=case.tolerance)


def kernel_of(file: str, case: Case):
    return source(file, case.kernel, folder=HERE, ELEMENT=case.element)


def on_cpu(file: str, case: Case, **options):
    kernel = load(kernel_of(file, case), "cpu")
    return kernel(case.grid, case.block, case.args, shared_mem=case.shared, **options)


def as_array(value):
    return value.array if isinstance(value, TensorMap) else value


@EACH
def test_on_the_cpu(file, case, rng):
    case = case(rng)
    launch = on_cpu(file, case)
    assert not launch.problems, launch
    compare(case, [as_array(value) for value in case.args])


# What ptx.cuh does otherwise on sm_75, and shuffles, which it leaves as they are.
TURING = ("add_quad", "cp_async_16", "cp_async", "cp_async_wait", "mma_m16n8k16", "pack_pair", "far shuffles")


@pytest.mark.parametrize("name", TURING)
def test_sm_75_on_the_cpu(name, rng):
    for schedule in ("forward", "reverse", f"random:{rng.integers(0, 2**31)}"):
        case = SM80[name](rng)
        kernel = load(source("wrappers", case.kernel, folder=HERE, PTX_ARCH=750), "cpu")
        launch = kernel(case.grid, case.block, case.args, shared_mem=case.shared, schedule=schedule)
        assert not launch.problems, launch
        compare(case, list(case.args))


@pytest.mark.long
@pytest.mark.parametrize("arch", [800, 860])
def test_e4m3_without_its_instructions(arch, rng):
    case = e4m3(rng)
    kernel = load(source("wrappers", case.kernel, folder=HERE, PTX_ARCH=arch), "cpu")
    assert not kernel(case.grid, case.block, case.args).problems
    compare(case, list(case.args))
    assert np.array_equal(np.isnan(case.args[2].view(E4M3.dtype)), np.isnan(case.args[0]))


@EACH
def test_no_false_alarm_on_any_schedule(file, case, rng):
    """What is right is right in every order: no problem, and the same result."""
    for schedule in ["reverse", *(f"random:{seed}" for seed in rng.integers(0, 2**31, 6))]:
        made = case(rng)
        launch = on_cpu(file, made, schedule=schedule, counts=False)
        assert not launch.problems, f"{schedule}: {launch}"
        compare(made, [as_array(value) for value in made.args])


def copied(array: np.ndarray):
    """On the GPU, with the order of its axes in memory, which `cupy.asarray` changes."""
    import cupy

    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return cupy.asarray(np.ascontiguousarray(array.transpose(axes))).transpose(*np.argsort(axes).tolist())


def on_gpu(file: str, case: Case) -> list[np.ndarray]:
    values = map(as_array, case.args)
    arrays = [copied(value) for value in values if isinstance(value, np.ndarray)]
    left, args = iter(arrays), []
    for value in case.args:
        if isinstance(value, TensorMap):
            args.append(TensorMap(next(left), value.box, value.swizzle, value.shape, value.strides))
        else:
            args.append(next(left) if isinstance(value, np.ndarray) else value)
    load(kernel_of(file, case), "gpu")(case.grid, case.block, tuple(args), shared_mem=case.shared)
    left = iter(arrays)
    return [next(left).get() if isinstance(as_array(value), np.ndarray) else value for value in case.args]


@pytest.mark.gpu
@EACH
def test_on_a_gpu(file, case, rng):
    case = case(rng)
    compare(case, on_gpu(file, case))


def test_every_wrapper_has_a_case():
    text = (FOLDER / "include/ptx.cuh").read_text()
    wrappers = set(re.findall(r"^(?:template <[^>]*> )?PTX_INLINE [\w:]+\*? ?\*?(\w+)\(", text, re.MULTILINE))
    assert len(wrappers) > 50
    used = {name for cases in FILES.values() for name in cases}
    named = {word for file in FILES for word in re.findall(r"ptx::(\w+)", (HERE / f"{file}.cu").read_text())}
    assert wrappers - INTERNAL <= used & named | {name.split(",")[0] for name in used} & named
