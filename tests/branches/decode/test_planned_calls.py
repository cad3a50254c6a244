"""Plans of attention_paged(), and merge(), on the stand-in for a GPU: what is launched and refused."""

import struct

import numpy as np
import pytest
from stub_gpu import both_ways

from cuda_reference import source
from flashcore_numba import ArgumentError, attention_paged, merge
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.run import plans
from flashcore_numba.stages import Stage

POOL, TABLE = (40, 16, 2, 64), (3, 9)


def launch(problem, out, executor, lse=None, variant=None):
    """All arrays and a number; nothing runs here, so any kernel will do."""
    p, scratch = problem, executor.empty((5, 64), np.float32)
    arrays = (p.q, p.k_pool, p.v_pool, p.block_table, p.lengths, p.sinks, out, lse, scratch)
    executor.launch(source("merge_parts"), (p.batch, p.kv_heads), 64, *arrays, np.int32(p.table_row))


TOY = Stage(
    number=None,
    name="toy",
    title="",
    idea="",
    launch=launch,
    language="CUDA C",
    grouped_queries=True,
    features=("window", "softcap", "sinks"),
    outputs=(OUT, LSE),
    operation=DECODE,
)
PLANNED = [TOY, *(stage for stage in LADDER if stage.kernels.planned)]


def given(stub, table=TABLE, pool=POOL, tokens=2):
    """q, k_pool, v_pool, block_table and lengths of three requests, 8 query heads."""
    q, k, v = stub.array((3, 8, tokens, 64)), stub.array(pool), stub.array(pool)
    return [q, k, v, stub.array(table, dtype=np.int32), stub.array((3,), dtype=np.int32)]


@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"out": True}, {"return_lse": True, "sinks": True}])
def test_a_plan_launches_what_the_long_way_does(stub, options):
    def arguments():
        more = {"sinks": stub.array((8,), dtype=np.float32)} if "sinks" in options else {}
        return given(stub), more | ({"out": stub.array((3, 8, 2, 64))} if "out" in options else {})

    def call():
        with_lse = options.get("return_lse", False)
        return attention_paged(*arrays, stage=TOY, return_lse=with_lse, window=(300, 0), **more)

    arrays, more = arguments()
    call()
    assert len(plans._plans) == 1
    arrays, more = arguments()
    found = call()
    assert len(plans._plans) == 1
    out = found[0] if "return_lse" in options else found
    assert out.shape == (3, 8, 2, 64) and out is more.get("out", out)
    fast, slow = both_ways(stub, call)
    assert fast and fast == slow


@pytest.mark.parametrize("stage", PLANNED, ids=lambda stage: stage.name)
def test_every_stage_in_cuda_c_has_plans(stub, stage):
    attention_paged(*given(stub), stage=stage)
    assert stub.long_way and not stub.launched
    stub.long_way.clear()
    attention_paged(*given(stub), stage=stage)
    assert stub.launched and not stub.long_way


@pytest.mark.parametrize(
    "stage", [stage for stage in PLANNED if stage.limit is None][1:], ids=lambda x: x.name
)
@pytest.mark.parametrize("arrays_of_scales", [False, True])
def test_pools_of_e4m3_have_plans(stub, stage, arrays_of_scales):
    """As bytes; a number is part of the layout, an array one of the addresses."""

    def call(k_scale=0.5, v_scale=2.0):
        q, *_, table, lengths = given(stub)
        pools = [stub.array(POOL, dtype=np.uint8) for _ in range(2)]
        if arrays_of_scales:
            k_scale = stub.array((2,), dtype=np.float32)
        attention_paged(q, *pools, table, lengths, stage=stage, k_scale=k_scale, v_scale=v_scale)
        return [x.data.ptr for x in (*pools, *([k_scale] if arrays_of_scales else []))]

    call()
    assert len(stub.long_way) == 1 and not stub.launched
    places = call()
    assert len(stub.long_way) == len(stub.launched) == len(plans._plans) == 1
    passed = {struct.unpack("Q", each)[0] for each in stub.launched[0][3] if len(each) == 8}
    assert {*places} <= passed
    call(0.25)
    assert len(plans._plans) == 2 - arrays_of_scales
    launched = len(stub.launched)
    with pytest.raises(ArgumentError, match=r"^v_scale is True"):
        call(v_scale=True)
    assert len(stub.launched) == launched


def test_other_layouts_have_plans_of_their_own(stub):
    """A table of another width, pages of another size, interleaved pools, and each option."""
    steps = tuple(2 * step for step in stub.array(POOL).strides[:1]) + stub.array(POOL).strides[1:]
    interleaved = [stub.array(POOL, strides=steps) for _ in range(2)]
    calls = [
        (given(stub), {}),
        (given(stub, table=(3, 10)), {}),
        (given(stub, pool=(10, 64, 2, 64)), {}),
        ([given(stub)[0], *interleaved, *given(stub)[3:]], {}),
        (given(stub), {"batch_invariant": True}),
        (given(stub), {"causal": False}),
        (given(stub), {"window": (8, 0)}),
        (given(stub), {"softcap": 5.0}),
        (given(stub), {"scale": 0.5}),
        (given(stub, tokens=1), {}),
    ]
    for _ in range(2):
        for arrays, options in calls:
            attention_paged(*arrays, stage=TOY, **options)
    assert len(plans._plans) == len(calls) == len(stub.launched) == len(stub.long_way)


def test_a_plan_does_not_hide_a_bad_argument(stub):
    q, k, v, table, lengths = given(stub)
    for _ in range(2):
        attention_paged(q, k, v, table, lengths, stage=TOY)
    launched = len(stub.launched)
    names = ("q", "k_pool", "v_pool", "block_table", "lengths")
    good = dict(zip(names, (q, k, v, table, lengths), strict=True)) | {"stage": TOY}
    for words, options in {
        "causal is 1": {"causal": 1},
        "batch_invariant is 0": {"batch_invariant": 0},
        "return_lse is 1": {"return_lse": 1},
        "scale is True": {"scale": True},
        "time_limit is 1.0 for arrays on a GPU": {"time_limit": 1.0},
        "lengths has dtype int64": {"lengths": stub.array((3,), dtype=np.int64)},
        "block_table is NumPy on the host": {"block_table": np.zeros(TABLE, np.int32)},
        "out overlaps q": {"out": q},
        "stage 'toys' is not in the ladder of decoding": {"stage": "toys"},
    }.items():
        with pytest.raises(ArgumentError, match=f"^{words}"):
            attention_paged(**good | options)
    assert len(stub.launched) == launched


def test_numbers_at_odd_addresses_have_no_plan(stub):
    *arrays, lengths = given(stub)
    for _ in range(2):
        attention_paged(*arrays, lengths, stage=TOY)
    lengths.data.ptr += 1
    with pytest.raises(ArgumentError, match=r"^lengths has strides .* or an odd address"):
        attention_paged(*arrays, lengths, stage=TOY)


def test_tensors_have_plans(stub, fake_torch):
    def call():
        tensors = [fake_torch.empty(x.shape, getattr(fake_torch, x.dtype.name), 0) for x in given(stub)]
        return attention_paged(*tensors, stage=TOY, return_lse=True)

    for _ in range(2):
        out, lse = call()
        assert type(out) is type(lse) is fake_torch.Tensor and lse.shape == (3, 8, 2)
    assert len(stub.long_way) == len(stub.launched) == 1


def test_merge_is_one_launch(stub):
    shape = (2, 4, 6, 64)
    outs = [stub.array(shape) for _ in range(2)]
    lses = [stub.array(shape[:3], dtype=np.float32) for _ in range(2)]
    out, lse = merge(outs[0], lses[0], outs[1], lses[1])
    assert out.shape == shape and lse.shape == shape[:3] and out.dtype == np.float16
    ((kernel, sizes, _, args, _),) = stub.long_way
    assert kernel.entry == "merge_parts" and sizes[:6] == [2, 1, 1, 8, 32, 1]
    places = [x.data.ptr for x in (outs[0], lses[0], outs[1], lses[1], out, lse)]
    assert [struct.unpack("Q", each)[0] for each in args[:6]] == places
    assert [struct.unpack("I", args[i])[0] for i in (-7, -6, -3)] == [2 * 4 * 6, 4, 6]
