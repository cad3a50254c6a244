"""attention_fp8(): arguments as attention() takes them, what it refuses, and plans."""

import numpy as np
import pytest
from stub_gpu import both_ways

from cuda_reference import source
from flashcore_numba import ArgumentError, UnsupportedError, attention, attention_fp8
from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.operation import FP8
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.run import plans

BAD = [
    ({"q": np.zeros((1, 2, 8, 64), np.float32)}, "q has dtype float32"),
    ({"k": np.zeros((1, 3, 8, 64), np.float16), "v": np.zeros((1, 3, 8, 64), np.float16)}, "k has 3 heads"),
    ({"v": np.zeros((1, 2, 9, 64), np.float16)}, "v has length 9"),
    ({"causal": 1}, "causal is 1"),
    ({"scale": float("nan")}, "scale is nan"),
    ({"return_lse": "yes"}, "return_lse is 'yes'"),
    ({"out": np.zeros((1, 2, 8, 32), np.float16)}, "out has shape"),
    ({"stage": "fp8/none"}, "accepted are .*fp8/wgmma"),
    ({"stage": "mma_sync"}, "accepted are .*fp8/wgmma"),
    ({"time_limit": 0}, "time_limit is 0"),
]


def zeros(d=64, dtype=np.float16):
    return {name: np.zeros((1, 2, 8, d), dtype) for name in "qkv"}


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        attention_fp8(**zeros() | wrong)


@pytest.mark.parametrize(("wrong", "message"), BAD[:7], ids=[message for _, message in BAD[:7]])
def test_the_messages_are_those_of_attention(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        attention(**zeros() | wrong)


@pytest.mark.parametrize("stage", [None, "wgmma", STAGE], ids=["chosen", "by name", "a stage"])
def test_what_is_refused_names_what_serves_it(stage):
    with pytest.raises(UnsupportedError, match=r"head dimension 96, only 128 and 64.* its stage .* can"):
        attention_fp8(**zeros(96), stage=stage)


@pytest.mark.long
def test_outputs_and_streams_of_bits(rng):
    """Into the caller's memory, with the LSE, of transposed views; the same bits as the stage gives."""
    x = normal(rng, 2, 4, 40, 150, 64, 2, causal=True, element=BFLOAT16)
    turned = {n: np.ascontiguousarray(getattr(x, n).swapaxes(1, 2)).swapaxes(1, 2) for n in "qkv"}
    out = np.full((2, 40, 4, 64), np.nan, BFLOAT16.dtype).swapaxes(1, 2)
    found, lse = attention_fp8(**turned, causal=True, out=out, return_lse=True)
    assert found is out and lse.dtype == np.float32
    alone = attention_fp8(x.q, x.k, x.v, causal=True, stage="fp8/wgmma")
    assert np.array_equal(alone.view(np.uint16), np.ascontiguousarray(out).view(np.uint16))
    reference = FP8.reference(x)
    assert all(FP8.judge(o, value, reference, None).passed for o, value in ((OUT, out), (LSE, lse)))


@pytest.mark.parametrize("options", [{}, {"out": True}, {"return_lse": True}], ids=str)
def test_a_plan_launches_what_the_long_way_does(stub, options):
    shape = (2, 64, 2048, 128)

    def arrays():
        return [stub.array(shape) for _ in range(3)], {"out": stub.array(shape)} if "out" in options else {}

    def call():
        given = {name: value for name, value in options.items() if name != "out"}
        return attention_fp8(*qkv, **given, **more)

    qkv, more = arrays()
    call()
    assert len(plans._plans) == 1 and stub.long_way
    qkv, more = arrays()
    stub.long_way.clear()
    call()
    assert len(plans._plans) == 1 and stub.launched and not stub.long_way
    fast, slow = both_ways(stub, call)
    assert len(fast) == 4 and fast == slow


def test_blocks_draw_work_under_a_causal_mask(stub):
    """From a counter; it is elsewhere in a plan, and all else is the same."""
    qkv = [stub.array((2, 64, 2048, 128)) for _ in range(3)]

    def call():
        return attention_fp8(*qkv, causal=True)

    call()
    fast, slow = both_ways(stub, call)
    assert [each[:2] for each in fast] == [each[:2] for each in slow]
    assert any(fast[-1][3][-1]) and any(slow[-1][3][-1])


def test_a_plan_is_not_that_of_attention(stub):
    qkv = [stub.array((1, 8, 256, 64)) for _ in range(3)]
    attention(*qkv, stage="ping_pong")
    attention_fp8(*qkv)
    assert len(plans._plans) == 2
    assert source("fp8_quantise", "quantise_v", HEAD_DIM=64).file in {each[0].file for each in stub.long_way}
