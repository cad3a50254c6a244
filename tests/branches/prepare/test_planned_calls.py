"""Plans of write_kv_pages(), on the stand-in for a GPU: one launch, in place or not, and nothing hidden."""

import types

import numpy as np
import pytest
from stub_gpu import both_ways

from flashcore_numba import ArgumentError, write_kv_pages
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.run import plans

TOKENS, ROWS, POOL = (5, 8, 64), (5, 2, 64), (9, 16, 2, 64)


def given(stub, dtype=np.float16):
    q = stub.array(TOKENS, dtype=dtype)
    k, v = (stub.array(ROWS, dtype=dtype) for _ in range(2))
    pools = [stub.array(POOL, dtype=dtype) for _ in range(2)]
    return [q, k, v, *pools, stub.array((5,), dtype=np.int64)]


def options(stub):
    tables = {name: stub.array((70, 32), dtype=np.float32) for name in ("cos", "sin")}
    weights = {name: stub.array((64,), dtype=np.float32) for name in ("q_weight", "k_weight")}
    return {"positions": stub.array((5,), dtype=np.int32), "norm_eps": 1e-6, **tables, **weights}


@pytest.mark.parametrize("with_options", [False, True])
@pytest.mark.parametrize("where", ["made", "given", "in place"])
def test_a_plan_launches_what_the_long_way_does(stub, where, with_options):
    def call():
        out = {"made": None, "given": target, "in place": arrays[0]}[where]
        found = write_kv_pages(*arrays, **more, out=out)
        assert found.shape == TOKENS and (out is None or found is out)

    for _ in range(2):
        arrays, target, more = given(stub), stub.array(TOKENS), options(stub) if with_options else {}
        call()
    fast, slow = both_ways(stub, call)
    assert len(fast) == 1 and fast == slow
    assert fast[0][1][:6] == [5 * (1 + 2 * 1) // 4 + 1, 1, 1, 128, 1, 1]  # a warp for each of Q, K and V


@pytest.mark.parametrize("arrays_of_scales", [False, True])
def test_pools_of_e4m3_have_plans(stub, arrays_of_scales):
    def call(k_scale=0.5):
        rows, slots = given(stub)[:3], given(stub)[5]
        pools = [stub.array(POOL, dtype=np.uint8) for _ in range(2)]
        k_scale = stub.array((2,), dtype=np.float32) if arrays_of_scales else k_scale
        more = options(stub)
        return lambda: write_kv_pages(*rows, *pools, slots, **more, k_scale=k_scale, v_scale=2.0)

    call()()
    fast, slow = both_ways(stub, call())
    assert len(fast) == 1 and fast == slow and len(plans._plans) == 1
    call(0.25)()
    assert len(plans._plans) == 2 - arrays_of_scales


def test_in_place_is_another_plan(stub):
    """Of one layout: what must not overlap is not the same."""
    arrays, target = given(stub), stub.array(TOKENS)
    for _ in range(2):
        for out in (arrays[0], target):
            write_kv_pages(*arrays, out=out)
    assert len(plans._plans) == 2 and len(stub.launched) == 2
    shifted = types.SimpleNamespace(ptr=arrays[0].data.ptr + 128, device_id=0)
    with pytest.raises(ArgumentError, match="out overlaps q"):
        write_kv_pages(*arrays, out=stub.array(TOKENS, data=shifted))
    assert len(stub.launched) == 2


def test_rows_between_those_of_another_array_have_plans(stub):
    """Q in place in packed projections, and pages of K and V in turn in one pool."""
    d, heads, kv_heads = 64, 8, 2
    steps, of_page = (2 * d * (heads + 2 * kv_heads), 2 * d, 2), stub.array(POOL).strides
    half = of_page[0]
    of_page = (2 * half, *of_page[1:])

    def part(start, shape, strides, at):
        place = types.SimpleNamespace(ptr=start + at, device_id=0)
        return stub.array(shape, data=place, strides=strides)

    def call(moved=0):
        rows, pool = stub.memory(5 * steps[0]).ptr, stub.memory(2 * half * POOL[0]).ptr
        q, k, v = (
            part(rows, (5, count, d), steps, 2 * d * first)
            for count, first in ((heads, 0), (kv_heads, heads), (kv_heads, heads + kv_heads))
        )
        pools = [part(pool, POOL, of_page, at) for at in (0, half - moved)]
        write_kv_pages(q, k, v, *pools, stub.array((5,), dtype=np.int64), out=q)

    for _ in range(3):
        call()
    assert len(plans._plans) == 1 and len(stub.long_way) == 1 and len(stub.launched) == 2
    with pytest.raises(ArgumentError, match="k_pool overlaps v_pool"):
        call(moved=128)
    assert len(stub.launched) == 2


def test_a_plan_does_not_hide_a_bad_argument(stub):
    q, k, v, k_pool, v_pool, slots = given(stub)
    good = options(stub)
    for _ in range(2):
        write_kv_pages(q, k, v, k_pool, v_pool, slots, **good)
    launched = len(stub.launched)
    odd = types.SimpleNamespace(ptr=stub.memory(1 << 20).ptr + 4, device_id=0)
    bad = {
        "cos has strides .* or an odd address": {"cos": stub.array((70, 32), data=odd, dtype=np.float32)},
        "q_weight must start": {"q_weight": stub.array((64,), data=odd, dtype=np.float32)},
        "k_pool overlaps v_pool": {"v_pool": k_pool},
        "pool overlaps": {"v_pool": stub.array(POOL, data=k.data)},
        "k_pool has dtype": {"k_pool": stub.array(POOL, dtype=BFLOAT16.dtype)},
        "time_limit is 1.0": {"time_limit": 1.0},
        "interleaved is 0": {"interleaved": 0},
        "norm_eps is True": {"norm_eps": True},
        "positions is NumPy on the host": {"positions": np.zeros(5, np.int32)},
    }
    arrays = {"q": q, "k": k, "v": v, "k_pool": k_pool, "v_pool": v_pool, "slot_mapping": slots}
    for words, changed in bad.items():
        for _ in range(2):
            with pytest.raises(ArgumentError, match=words):
                write_kv_pages(**arrays | good | changed)
    assert len(stub.launched) == launched


def test_types_of_elements_and_slots_have_plans_of_their_own(stub):
    for _ in range(2):
        for dtype in (np.dtype(np.float16), BFLOAT16.dtype):
            for slots in (np.int32, np.int64):
                arrays = given(stub, dtype)
                arrays[-1] = stub.array((5,), dtype=slots)
                write_kv_pages(*arrays)
    assert len(plans._plans) == len(stub.launched) == 4
    told = {(values["ELEMENT"], values["SLOT"]) for values in (dict(s.defines) for s, *_ in stub.launched)}
    assert len(told) == 4
