"""What stages 14 and 16 say of themselves: tensor maps, shared memory, barriers, every split of the keys."""

import dataclasses
import struct

import numpy as np
import pytest
from matrix import few

from cuda_reference import TensorMap
from flashcore_numba.core import oracle
from flashcore_numba.core.features import Features
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER, stage14_tma_wgmma, stage16_cluster_split
from flashcore_numba.stages.parts.tile_maps import BOUND, batch_rows, bounded_map, tile_map
from flashcore_numba.stages.stage16_cluster_split import launch_split, shared_bytes
from flashcore_numba.stages.tuning.stage16_tiles import FEW_ROWS, FORCED, MANY_ROWS, MORE_ROWS, Split, choose

HOPPER = [stage for stage in LADDER if stage.no_other_gpu]
ROOM = 227 * 1024  # bytes of shared memory that a block may have at compute capability 9.0
SPLITS = [
    Split(2, 2, 128, 1),
    Split(2, 1, 64, 2),
    Split(2, 2, 32, 2),
    Split(2, 1, 128, 1),
    Split(1, 2, 64, 1),
    Split(2, 1, 160, 1),
]


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16)


def problem(rng, heads, seq_q, seq_k, head_dim=64, kv_heads=None, **options):
    rows = ((heads, seq_q), (kv_heads or heads, seq_k), (kv_heads or heads, seq_k))
    return Problem(*(normal(rng, 1, h, s, head_dim) for h, s in rows), **options)


def launched(launch, problem, *args, order="lockstep", **options):
    """The launch, once output and log-sum-exp have been compared with float64."""
    p = problem
    out, lse = np.full(p.q.shape, np.nan, np.float16), np.full(p.q.shape[:3], np.nan, np.float32)
    executor = Simulator(order=order)
    launch(p, out, executor, lse, *args, **options)
    executor.check()
    expected, expected_lse = oracle.attention(p.q, p.k, p.v, p.causal, scale=p.scale)
    np.testing.assert_allclose(out, expected, atol=2e-3)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5, atol=1e-5)
    return executor.launches[0]


@pytest.mark.parametrize("order", few(["lockstep", "reverse", "random:3"], "reverse"))
@pytest.mark.parametrize(
    "split",
    few(map(pytest.param, SPLITS), pytest.param(SPLITS[0])),
    ids=lambda split: "-".join(map(str, split)),
)
def test_the_keys_are_divided_in_any_way(split, order, rng):
    causal = bool(rng.integers(0, 2))
    launched(launch_split, problem(rng, 1, 70, 530, causal=causal), split, order=order)


@pytest.mark.parametrize("head_dim", few([64, 128], 64))
@pytest.mark.parametrize("stage", HOPPER, ids=lambda stage: stage.label)
def test_few_heads_of_any_strides(stage, head_dim, rng):
    """[B, S, H, D] in memory, one K/V head that all heads share by a stride of 0, more rows than keys."""
    q = normal(rng, 1, 90, 3, head_dim).transpose(0, 2, 1, 3)
    k, v = (np.broadcast_to(normal(rng, 1, 1, 80, head_dim), (1, 3, 80, head_dim)) for _ in "kv")
    launched(stage.launch, Problem(q, k, v, causal=True))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_split_fits_shared_memory(head_dim):
    tables = [
        *FEW_ROWS[head_dim].values(),
        *MANY_ROWS[head_dim].values(),
        *MORE_ROWS[head_dim].values(),
        *(x[head_dim] for x in FORCED.values()),
    ]
    assert max(shared_bytes(head_dim, split) for split in tables) <= ROOM


@pytest.mark.parametrize(
    ("heads", "keys", "split"),
    [
        (16, 577, Split(2, 1, 160, 1)),  # 160 row tiles
        (32, 577, Split(2, 1, 160, 1)),
        (12, 1024, Split(2, 1, 64, 2)),
        (8, 1024, Split(2, 1, 128, 2)),  # an SM for every row tile
        (8, 768, Split(1, 2, 128, 2)),
        (16, 512, Split(1, 2, 128, 2)),
        (32, 512, Split(1, 2, 128, 2)),
        (32, 1024, Split(2, 1, 128, 2)),  # more than three row tiles per SM
        (1024, 128, Split(1, 1, 64, 2)),
    ],
)
def test_blocks_are_smaller_where_more_rows_than_sms_have_several_hundred_keys(heads, keys, split):
    assert choose(stand_in(heads, keys, keys, 64), None, 132) == split


def test_every_variant_is_a_split_or_the_choice():
    stage = stage16_cluster_split.STAGE
    assert set(stage.variants) == {*FORCED, stage.called, stage.name}


def stand_in(heads, seq_q, seq_k, head_dim):
    zeros = np.lib.stride_tricks.as_strided(
        np.zeros(head_dim, np.float16), (1, heads, max(seq_q, seq_k), head_dim), (0, 0, 0, 2)
    )
    return Problem(zeros[:, :, :seq_q], zeros[:, :, :seq_k], zeros[:, :, :seq_k])


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("variant", [None, *FORCED])
@pytest.mark.parametrize("heads", [1, 8, 64])
def test_no_part_and_no_slot_for_nothing(heads, variant, head_dim, rng):
    """Whatever the number of keys, every slot is filled, and without a variant every part has a tile."""
    for seq_k in (1, 64, 65, 128, 129, 256, 257, 1023, 1024, int(rng.integers(1, 5000))):
        split = choose(stand_in(heads, 512, seq_k, head_dim), variant, 132)
        parts, tiles = split.cluster * split.warpgroups, -(-seq_k // split.keys)
        assert 1 <= split.stages <= -(-tiles // parts), f"{seq_k} keys"
        assert variant or parts <= tiles or seq_k < 2 * tiles * split.keys, f"{seq_k} keys"
    mission = choose(stand_in(8, 512, 512, 64), None, 132)
    assert mission == Split(2, 2, 128, 1)


@pytest.mark.long
def test_the_mission_shape_waits_for_no_slot(rng):
    """At 512 keys each warpgroup has one tile; with more than its ring holds, slots are filled again."""

    def lines(seq_k):
        found = launched(stage16_cluster_split.launch, problem(rng, 1, 64, seq_k), "two_blocks")
        return [row.text.strip() for row in found.lines() if row.requests]

    assert not [line for line in lines(512) if "slots" in line]
    assert [line for line in lines(1100) if "slots" in line]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("launch", [stage14_tma_wgmma.launch, stage16_cluster_split.launch])
def test_no_access_meets_a_bank_twice(launch, head_dim, rng):
    found = launched(launch, problem(rng, 1, 64, 300, head_dim))
    assert not [(row.text, row.conflicts) for row in found.lines() if row.conflicts]


def test_code_for_hopper_runs_on_no_other_gpu():
    assert {stage.number for stage in HOPPER} >= {14, 16}
    for stage in HOPPER:
        assert [stage.runs_on(gpu) for gpu in ((8, 9), (9, 0), (10, 0), (12, 0))] == [
            False,
            True,
            False,
            False,
        ]
    newer = dataclasses.replace(HOPPER[0], no_other_gpu=False)
    assert newer.runs_on((10, 0))


def test_axes_of_length_one_may_have_any_stride():
    odd = np.lib.stride_tricks.as_strided(np.zeros(1 << 12, np.float16), (1, 1, 32, 64), (6, 10, 128, 2))
    assert tile_map(odd, 16).for_cpu(0)[24:104] == tile_map(odd.copy(), 16).for_cpu(0)[24:104]


@pytest.mark.parametrize(
    ("strides", "box", "swizzle", "message"),
    [
        ((4096, 136, 2), (1, 8, 64), 128, "multiples of 16"),
        ((4096, -128, 2), (1, 8, 64), 128, "multiples of 16"),
        ((4096, 128, 4), (1, 8, 64), 128, "must be contiguous"),
        ((4096, 128, 2), (8, 64), 128, "a box of as many"),
        ((4096, 128, 2), (1, 257, 64), 128, "is 1 to 256"),
        ((4096, 128, 2), (1, 8, 128), 128, "at most the swizzle"),
        ((4096, 128, 2), (1, 8, 64), 48, "swizzle is"),
    ],
)
def test_what_the_copy_engine_cannot_do_is_refused(strides, box, swizzle, message):
    array = np.lib.stride_tricks.as_strided(np.zeros(1 << 14, np.float16)[1 << 13 :], (2, 32, 64), strides)
    with pytest.raises(ValueError, match=message):
        TensorMap(array, box, swizzle)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_bounded_map_ends_where_its_coordinates_say(transposed, rng):
    """As the copy engine counts: row i of a sequence is out of bounds from its end on, else where it lies."""
    batches, heads, rows, head_dim = (int(n) for n in (*rng.integers(1, 4, 2), rng.integers(1, 90), 64))
    array = np.zeros((batches, heads, rows, head_dim), np.float16)
    if transposed:
        array = array.swapaxes(1, 2).copy().swapaxes(1, 2)
    data = bounded_map(array, 16).for_cpu(0x7F0000000000)
    base, *_ = struct.unpack_from("Q", data)
    extents, steps = struct.unpack_from("5Q", data, 16), struct.unpack_from("5Q", data, 56)
    b, h, size = int(rng.integers(batches)), int(rng.integers(heads)), int(rng.integers(rows + 1))
    begin = b * batch_rows(array)
    for i in (0, size - 1, size, rows - 1):
        if i < 0:
            continue
        at = (0, h, BOUND - size + i, begin + size, BOUND)
        assert all(0 <= x < extent for x, extent in zip(at[3:], extents[3:], strict=True))
        assert (at[2] < extents[2]) is (i < size)
        address = sum(x * step for x, step in zip(at, steps, strict=True)) + base
        assert address % 2**64 == base + sum(np.multiply((b, h, i), array.strides[:3]).tolist())


def test_batches_that_are_no_whole_rows_apart_are_refused():
    """One tensor map reaches every batch by whole rows."""
    memory = np.zeros((2, 1 << 12), np.float16)[:, : 2 * 20 * 64 + 8]
    array = np.lib.stride_tricks.as_strided(memory, (2, 2, 20, 64), ((2 * 20 * 64 + 8) * 2, 2560, 128, 2))
    used = Features(seqused_k=np.zeros(2, np.int32))
    for stage in HOPPER:
        if stage.features:
            problem = Problem(array, array, array, features=used)
            assert "batches are no whole number of rows apart" in stage.why_not(problem)
            assert stage.why_not(Problem(array, array, array)) is None
