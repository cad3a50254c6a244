"""attention_norm(): arrays as models have them, what is refused, and plans."""

import types

import numpy as np
import pytest
from stub_gpu import both_ways

from flashcore_numba import ArgumentError, UnsupportedError, attention_norm
from flashcore_numba.branches.epilogue.epilogue_norm import STAGE
from flashcore_numba.branches.epilogue.inputs import drawn
from flashcore_numba.branches.epilogue.operation import EPILOGUE
from flashcore_numba.branches.epilogue.outputs import OUT, SUMMED
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.run import plans

HALVES = np.zeros(128, np.float16)
ROWS = np.zeros((1, 8, 128), np.float16)
BAD = [
    ({"q": np.zeros((1, 2, 8, 64), np.float32)}, "q has dtype float32"),
    ({"v": np.zeros((1, 2, 9, 64), np.float16)}, "v has length 9"),
    ({"causal": 1}, "causal is 1"),
    ({"scale": float("nan")}, "scale is nan"),
    ({"time_limit": 0}, "time_limit is 0"),
    ({"residual": ROWS[:, :, :64]}, r"residual has shape \(1, 8, 64\): it must be \(1, 8, 128\)"),
    ({"residual": ROWS[0]}, "residual has shape .* three dimensions are needed"),
    ({"residual": ROWS.astype(np.float32)}, "residual has dtype float32: q has float16"),
    (
        {"residual": ROWS[:, ::-1]},
        r"residual has strides \(2048, -256, 2\) bytes: the row stride is negative",
    ),
    ({"weight": None}, "weight is None: it must be an array of 128 numbers"),
    ({"weight": HALVES[:64]}, r"weight has shape \(64,\): it must be \(128,\)"),
    ({"bias": HALVES.astype(np.float32)}, "bias has dtype float32"),
    ({"bias": np.zeros(256, np.float16)[::2]}, r"the last dimension \(H \* D\) must be contiguous"),
    ({"norm": "batch"}, "norm is 'batch': accepted are 'layer' and 'rms'"),
    ({"eps": 0}, "eps is 0: it must be a finite float32 above 0"),
    ({"eps": "x"}, "eps is 'x'"),
    ({"return_sum": 1}, "return_sum is 1"),
    ({"out": np.zeros((1, 8, 64), np.float16)}, r"out has shape \(1, 8, 64\): it must be \(1, 8, 128\)"),
    ({"out": ROWS}, "out overlaps residual"),
    ({"stage": "mma_sync"}, "accepted are epilogue/norm"),
]


def given(heads=2, d=64):
    q = np.zeros((1, heads, 8, d), np.float16)
    rows, weight = np.zeros((1, 8, heads * d), np.float16), np.zeros(heads * d, np.float16)
    return {"q": q, "k": q.copy(), "v": q.copy(), "residual": rows, "weight": weight}


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        attention_norm(**given() | {"residual": ROWS} | wrong)


class Standard:
    """An array with no more than DLPack and a namespace of the array API standard."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __array_namespace__(self):
        return types.SimpleNamespace(
            from_dlpack=lambda x: Standard(np.from_dlpack(x)),
            reshape=lambda x, shape: Standard(x._array.reshape(shape)),
        )


def test_arrays_of_the_array_api_standard(rng):
    arrays = {name: rng.standard_normal(x.shape).astype(np.float16) for name, x in given().items()}
    right = attention_norm(**arrays, return_sum=True)
    found = attention_norm(**{name: Standard(x) for name, x in arrays.items()}, return_sum=True)
    for one, other in zip(found, right, strict=True):
        assert type(one) is Standard and one.shape == (1, 8, 128)
        assert np.array_equal(np.from_dlpack(one), other)


def test_what_the_kernel_does_not_serve():
    for stage in (None, STAGE):
        with pytest.raises(UnsupportedError, match=r"17 heads, only up to 16.* attention\(\) and a norm"):
            attention_norm(**given(heads=17), stage=stage)
        with pytest.raises(UnsupportedError, match="head dimension 96, only 64 and 128"):
            attention_norm(**given(d=96), stage=stage)


@pytest.mark.long
def test_rows_of_models(rng):
    """Heads and residual as slices of wider rows, into a slice: the same bits, and nothing beside it."""
    x = drawn(rng, 2, 4, 40, 150, 64, 2, causal=True, element=BFLOAT16)
    turned = [np.ascontiguousarray(each.swapaxes(1, 2)).swapaxes(1, 2) for each in (x.q, x.k, x.v)]
    wide, target = (np.full((2, 40, 272), np.nan, BFLOAT16.dtype) for _ in range(2))
    wide[:, :, 8:264] = x.residual[:, 0]
    options = {"weight": x.weight, "bias": x.bias, "causal": True}
    out = target[:, :, 8:264]
    assert attention_norm(*turned, wide[:, :, 8:264], **options, out=out) is out
    assert np.isnan(target[:, :, :8]).all() and np.isnan(target[:, :, 264:]).all()
    alone, summed = attention_norm(x.q, x.k, x.v, x.residual[:, 0].copy(), **options, return_sum=True)
    assert alone.shape == summed.shape == (2, 40, 256)
    assert np.array_equal(alone.view(np.uint16), np.ascontiguousarray(out).view(np.uint16))
    reference = EPILOGUE.reference(x)
    for output, value in ((OUT, alone), (SUMMED, summed)):
        assert EPILOGUE.judge(output, value[:, None], reference, None).passed


def test_what_the_weight_takes_beyond_the_type_is_infinite(rng):
    x = drawn(rng, 1, 2, 20, 30, 64, norm="rms", bias=False)
    residual, weight = x.residual[:, 0].copy(), np.full(128, 20000, np.float16)
    residual[..., 7] = 500  # of the root of the mean square, 128 columns, 11 times as much
    out = attention_norm(x.q, x.k, x.v, residual, weight, norm="rms")
    assert np.isposinf(out[..., 7]).all() and np.isfinite(np.delete(out, 7, axis=2)).all()


@pytest.mark.long
def test_rows_that_are_not_aligned_are_copied(rng):
    x = drawn(rng, 1, 2, 9, 20, 64, norm="rms", bias=False)
    wide = np.zeros((1, 9, 131), np.float16)
    wide[:, :, 1:129] = x.residual[:, 0]
    out = attention_norm(x.q, x.k, x.v, wide[:, :, 1:129], x.weight, norm="rms")
    assert EPILOGUE.judge(OUT, out[:, None], EPILOGUE.reference(x), None).passed


@pytest.mark.parametrize("options", [{}, {"out": True}, {"return_sum": True}, {"bias": True}], ids=str)
def test_a_plan_launches_what_the_long_way_does(stub, options):
    def call():
        more = {name: value for name, value in options.items() if name == "return_sum"}
        more |= {name: rows for name, rows in (("out", target), ("bias", bias)) if name in options}
        found = attention_norm(*qkv, residual, weight, **more)
        assert isinstance(found, tuple) == ("return_sum" in options)
        return found

    def arrays():
        return [stub.array((1, 8, 512, 64)) for _ in range(3)], *(
            stub.array(shape) for shape in ((1, 512, 512), (1, 512, 512), (512,), (512,))
        )

    qkv, residual, target, weight, bias = arrays()
    call()
    assert len(plans._plans) == 1 and stub.long_way
    qkv, residual, target, weight, bias = arrays()
    stub.long_way.clear()
    call()
    assert len(plans._plans) == 1 and stub.launched and not stub.long_way
    fast, slow = both_ways(stub, call)
    assert len(fast) == 1 and fast == slow
