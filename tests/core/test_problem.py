"""Problem: what it accepts, what it derives, and one clear message for everything else."""

import math

import numpy as np
import pytest

from flashcore_numba import ArgumentError, Problem


def array(*shape, dtype=np.float16):
    return np.ones(shape, dtype)


Q = array(2, 4, 8, 64)


class FakeGpuArray:
    """What Problem looks at before it compares places; CuPy itself needs a GPU."""

    __module__ = "cupy"

    def __init__(self, host, device):
        self.shape, self.strides, self.dtype, self.ndim = host.shape, host.strides, host.dtype, host.ndim
        self.device = type("Device", (), {"id": device})()


# argument, changes to a good call, words that the message must hold: the bad value, and what is accepted
BAD = {
    "list": ("q", {"q": Q.tolist()}, ["list", "NumPy or CuPy"]),
    "none": ("k", {"k": None}, ["NoneType", "NumPy or CuPy"]),
    "masked": ("v", {"v": np.ma.masked_array(Q)}, ["masked", "plain"]),
    "rank 3": ("q", {"q": array(4, 8, 64)}, ["(4, 8, 64)", "four dimensions"]),
    "rank 5": ("v", {"v": array(1, 2, 4, 8, 64)}, ["(1, 2, 4, 8, 64)", "four dimensions"]),
    "float32": ("q", {"q": array(2, 4, 8, 64, dtype=np.float32)}, ["float32", "float16"]),
    "complex": ("k", {"k": array(2, 4, 8, 64, dtype=np.complex64)}, ["complex64", "float16"]),
    "object": ("v", {"v": array(2, 4, 8, 64, dtype=object)}, ["object", "float16"]),
    "byte order": ("q", {"q": array(2, 4, 8, 64, dtype=">f2")}, [">f2", "float16"]),
    "empty batch": ("q", {"q": array(0, 4, 8, 64)}, ["(0, 4, 8, 64)", "at least 1"]),
    "no heads": ("k", {"k": array(2, 0, 8, 64)}, ["(2, 0, 8, 64)", "at least 1"]),
    "no query rows": ("q", {"q": array(2, 4, 0, 64)}, ["(2, 4, 0, 64)", "length", "at least 1"]),
    "no keys": ("k", {"k": array(2, 4, 0, 64)}, ["(2, 4, 0, 64)", "length", "at least 1"]),
    "head dimension": ("q", {"q": array(2, 4, 8, 72)}, ["72", "32, 64, 80, 96, 128, 192 and 256"]),
    "zero head dimension": ("v", {"v": array(2, 4, 8, 0)}, ["0", "192 and 256"]),
    "too many heads": (
        "k",
        {"k": np.broadcast_to(array(1, 1, 1, 64), (2, 70000, 1, 64))},
        ["heads 70000", "65535"],
    ),
    "too large a batch": (
        "q",
        {"q": np.broadcast_to(array(1, 1, 1, 64), (70000, 1, 1, 64))},
        ["batch 70000", "65535"],
    ),
    "last dimension strided": ("q", {"q": array(2, 4, 8, 128)[..., ::2]}, ["strides", "contiguous"]),
    "last dimension reversed": ("k", {"k": Q[..., ::-1]}, ["strides", "contiguous"]),
    "rows reversed": ("v", {"v": Q[:, :, ::-1]}, ["row", "negative", ">= 0"]),
    "heads reversed": ("q", {"q": Q[:, ::-1]}, ["head", "negative", ">= 0"]),
    "a batch of one reversed": ("q", {"q": array(1, 4, 8, 64)[::-1]}, ["batch", "negative", ">= 0"]),
    "batch of k": ("k", {"k": array(3, 4, 8, 64)}, ["batch 3", "q has batch 2"]),
    "batch of v": ("v", {"v": array(1, 4, 8, 64)}, ["batch 1", "q has batch 2"]),
    "head dimension of k": ("k", {"k": array(2, 4, 8, 128)}, ["128", "q has 64"]),
    "heads of v": ("v", {"v": array(2, 2, 8, 64)}, ["2 heads", "k has 4"]),
    "length of v": ("v", {"v": array(2, 4, 9, 64)}, ["length 9", "k has 8"]),
    "group": ("k", {"k": array(2, 3, 8, 64), "v": array(2, 3, 8, 64)}, ["3 heads", "q has 4", "multiple"]),
    "more kv heads": ("k", {"k": array(2, 8, 8, 64), "v": array(2, 8, 8, 64)}, ["8 heads", "multiple"]),
    "k on a gpu": ("k", {"k": FakeGpuArray(Q, 0)}, ["GPU 0", "q is on the host", "one place"]),
    "two gpus": (
        "v",
        {"q": FakeGpuArray(Q, 0), "k": FakeGpuArray(Q, 0), "v": FakeGpuArray(Q, 1)},
        ["GPU 1", "q is on GPU 0", "one place"],
    ),
    "causal": ("causal", {"causal": 1}, ["1", "True or False"]),
    "causal text": ("causal", {"causal": "yes"}, ["'yes'", "True or False"]),
    "scale nan": ("scale", {"scale": math.nan}, ["nan", "finite"]),
    "scale infinite": ("scale", {"scale": -math.inf}, ["-inf", "finite"]),
    "scale beyond float32": ("scale", {"scale": 1e39}, ["1e+39", "float32"]),
    "scale beyond float32 in base 2": ("scale", {"scale": -3e38}, ["-3e+38", "-2.3586e+38 to 2.3586e+38"]),
    "scale beyond every float": ("scale", {"scale": 10**400}, ["integer of 401 digits", "float32"]),
    "scale text": ("scale", {"scale": "0.125"}, ["'0.125'", "finite number"]),
    "scale bool": ("scale", {"scale": True}, ["True", "finite number"]),
    "scale complex": ("scale", {"scale": 1j}, ["1j", "finite number"]),
    "scale array": ("scale", {"scale": np.ones(1)}, ["array", "finite number"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_argument_is_named(case):
    argument, changes, words = BAD[case]
    with pytest.raises(ArgumentError) as caught:
        Problem(**{"q": Q, "k": Q, "v": Q, **changes})
    message = str(caught.value)
    assert message.startswith(argument + " "), message
    assert [word for word in words if word not in message] == [], message
    assert "\n" not in message


def test_properties():
    problem = Problem(array(2, 8, 5, 64), array(2, 2, 7, 64), array(2, 2, 7, 64))
    assert (problem.batch, problem.heads, problem.kv_heads, problem.group) == (2, 8, 2, 4)
    assert (problem.seq_q, problem.seq_k, problem.head_dim) == (5, 7, 64)
    assert problem.scale == 0.125
    assert problem.causal is False
    assert not problem.on_gpu
    assert problem.flops == 4 * 2 * 8 * 5 * 7 * 64
    assert problem.min_bytes == 2 * (2 * 2 * 8 * 5 * 64 + 2 * 2 * 2 * 7 * 64)
    assert problem.shape_label == "2x8/2x5/7x64"
    assert Problem(Q, Q, Q).shape_label == "2x4x8x64"


@pytest.mark.parametrize("scale", [0, -0.5, 2, np.float32(0.3), np.float64(0.25), np.float16(0.5)])
def test_any_finite_scale_is_kept(scale):
    assert Problem(Q, Q, Q, scale=scale).scale == float(scale)


def test_the_greatest_scales():
    """In units of log2 they are float32's greatest numbers; the message rounds them down."""
    most = float(np.finfo(np.float32).max) / math.log2(math.e)
    assert 2.3586e38 < most < 2.3587e38
    for scale in (most, -most):
        assert np.isfinite(np.float32(Problem(Q, Q, Q, scale=scale).scale * math.log2(math.e)))
        with pytest.raises(ArgumentError, match=r"^scale is "):
            Problem(Q, Q, Q, scale=math.nextafter(scale, math.copysign(math.inf, scale)))


def test_numpy_bool_is_a_bool():
    assert Problem(Q, Q, Q, causal=np.bool_(True)).causal is True


@pytest.mark.parametrize("seq_q, seq_k", [(1, 1), (5, 5), (3, 9), (9, 3), (1, 7), (7, 1), (64, 33)])
def test_causal_flops_count_the_mask(seq_q, seq_k):
    problem = Problem(array(1, 3, seq_q, 64), array(1, 3, seq_k, 64), array(1, 3, seq_k, 64), causal=True)
    assert problem.visible_pairs == np.tri(seq_q, seq_k, seq_k - seq_q).sum()
    assert problem.flops == 4 * 64 * 3 * problem.visible_pairs


VIEWS = {
    "transposed [B, S, H, D]": lambda: array(2, 8, 4, 64).transpose(0, 2, 1, 3),
    "sliced rows": lambda: array(2, 4, 20, 64)[:, :, 3:19:2],
    "one of packed q, k, v": lambda: array(2, 8, 3, 4, 64)[:, :, 1].transpose(0, 2, 1, 3),
    "columns of wider rows": lambda: array(2, 4, 8, 80)[..., 8:72],
    "expanded heads": lambda: np.broadcast_to(array(2, 1, 8, 64), (2, 4, 8, 64)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_strided_views_are_kept_as_they_are(view):
    x = VIEWS[view]()
    problem = Problem(x, x, x)
    assert problem.q is x
    assert problem.aligned
    assert problem.with_aligned_rows() is problem


def odd_rows(rng):
    return rng.standard_normal((2, 4, 8, 67)).astype(np.float16)[..., :64]


def odd_base(rng):
    flat = rng.standard_normal(2 * 4 * 8 * 64 + 1).astype(np.float16)
    return flat[1:].reshape(2, 4, 8, 64)


@pytest.mark.parametrize("make", [odd_rows, odd_base])
def test_misaligned_rows_are_copied_once_and_alone(make, rng):
    odd = make(rng)
    problem = Problem(Q, odd, Q, causal=True, scale=0.5)
    assert not problem.aligned
    aligned = problem.with_aligned_rows()
    assert aligned.aligned
    assert aligned.q is Q
    assert aligned.v is Q
    assert (aligned.causal, aligned.scale) == (True, 0.5)
    np.testing.assert_array_equal(aligned.k, odd)
    assert not np.shares_memory(aligned.k, odd)
