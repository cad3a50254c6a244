"""attention() on the simulator: right for every stage, and bad calls are refused before a byte is written."""

import dataclasses
import sys
import types

import numpy as np
import pytest

import flashcore_numba
from flashcore_numba import LADDER, ArgumentError, Problem, UnsupportedError, attention
from flashcore_numba.attention import best_stage
from flashcore_numba.calls import refuse
from flashcore_numba.core import oracle
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.simulator import SimulationError
from flashcore_numba.stages.find import find, select
from flashcore_numba.stages.tuning import dispatch

GROUPED = [stage for stage in LADDER if stage.grouped_queries]
WITH_LSE = [stage for stage in LADDER if stage.returns_lse]
IN_BFLOAT16 = [stage for stage in LADDER if BFLOAT16 in stage.elements]
EACH_STAGE = pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.label)


def inputs(rng, batch=1, heads=2, kv_heads=None, seq_q=33, seq_k=None, head_dim=64):
    seq_k, kv_heads = seq_k or seq_q, kv_heads or heads
    q = rng.standard_normal((batch, heads, seq_q, head_dim)).astype(np.float16)
    k, v = rng.standard_normal((2, batch, kv_heads, seq_k, head_dim)).astype(np.float16)
    return q, k, v


def assert_right(out, q, k, v, causal=False, scale=None):
    reference, _ = oracle.attention(q, k, v, causal, scale)
    bound = 2 * np.abs(oracle.standard_attention(q, k, v, causal, scale) - reference).max() + 1e-3
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert np.abs(out.astype(np.float64) - reference).max() <= bound


@EACH_STAGE
@pytest.mark.parametrize("seq_q, seq_k, causal", [(33, 33, False), (20, 45, True), (40, 17, True)])
def test_every_stage_is_right(rng, stage, seq_q, seq_k, causal):
    q, k, v = inputs(rng, seq_q=seq_q, seq_k=seq_k)
    out = attention(q, k, v, causal=causal, stage=stage)
    assert_right(out, q, k, v, causal)
    if causal and seq_q > seq_k:
        assert (out[:, :, : seq_q - seq_k] == 0).all()


@EACH_STAGE
def test_every_stage_takes_a_scale_and_writes_into_out(rng, stage):
    q, k, v = inputs(rng, seq_q=9, head_dim=stage.head_dims[-1])
    packed = np.full((1, 9, 2, q.shape[3] + 8), np.nan, np.float16)
    out = packed.transpose(0, 2, 1, 3)[..., :-8]
    assert attention(q, k, v, scale=-0.3, stage=stage, out=out) is out
    assert_right(out, q, k, v, scale=-0.3)
    assert np.isnan(packed[..., -8:]).all(), "wrote past the end of a row"


@pytest.mark.long
@pytest.mark.parametrize("stage", IN_BFLOAT16, ids=lambda stage: stage.label)
@pytest.mark.parametrize("seq_q, seq_k, head_dim", [(33, 70, 64), (40, 17, 128), (20, 1100, 64)])
def test_bfloat16_is_right(rng, stage, seq_q, seq_k, head_dim):
    q, k, v = map(
        BFLOAT16.round, inputs(rng, heads=4, kv_heads=2, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim)
    )
    v *= BFLOAT16.dtype.type(2.0**30)  # far beyond the range of float16
    out, lse = attention(q, k, v, causal=True, stage=stage, return_lse=True)
    right, right_lse = oracle.attention(q, k, v, True)
    standard = oracle.standard_attention(q, k, v, True).astype(np.float64)
    assert out.dtype == q.dtype and lse.dtype == np.float32
    assert np.abs(out.astype(np.float64) - right).max() <= 2 * np.abs(standard - right).max() + 2.0**22
    np.testing.assert_allclose(lse, right_lse, atol=1e-4)


def test_bfloat16_runs_where_it_is_served(rng):
    q, k, v = map(BFLOAT16.round, inputs(rng))
    assert [stage.number for stage in IN_BFLOAT16] == [12, 13, 14, 15, 16]
    assert best_stage(Problem(q, k, v)) in IN_BFLOAT16
    assert_right(attention(q, k, v), q, k, v)
    with pytest.raises(
        UnsupportedError, match="05 online_softmax does not serve bfloat16, only float16; stage 12"
    ):
        attention(q, k, v, stage=5)
    with pytest.raises(ArgumentError, match="v has dtype float16: q has bfloat16, and they must be equal"):
        attention(q, k, v.astype(np.float16))
    with pytest.raises(ArgumentError, match="out has dtype float16: only bfloat16 and float32 are accepted"):
        attention(q, k, v, out=np.empty(q.shape, np.float16))


@pytest.mark.parametrize("stage", GROUPED, ids=lambda stage: stage.label)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries(rng, stage, kv_heads):
    q, k, v = inputs(rng, heads=4, kv_heads=kv_heads, seq_q=19, seq_k=24)
    assert_right(attention(q, k, v, causal=True, stage=stage), q, k, v, causal=True)


@pytest.mark.parametrize("stage", WITH_LSE, ids=lambda stage: stage.label)
def test_lse(rng, stage):
    q, k, v = inputs(rng, batch=2, seq_q=21, seq_k=13)
    out, lse = attention(q, k, v, causal=True, stage=stage, return_lse=True)
    reference, expected = oracle.attention(q, k, v, True)
    assert lse.dtype == np.float32
    assert lse.shape == q.shape[:3]
    assert (lse[:, :, :8] == -np.inf).all()
    np.testing.assert_allclose(lse[:, :, 8:], expected[:, :, 8:], atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(out, reference, atol=2e-3)


@EACH_STAGE
def test_strided_and_misaligned_inputs(rng, stage):
    q, k, v = inputs(rng, seq_q=12)
    padded = np.full((1, 12, 2, 67), np.nan, np.float16)
    padded[..., :64] = k.transpose(0, 2, 1, 3)
    odd = padded.transpose(0, 2, 1, 3)[..., :64]  # rows 134 bytes apart
    turned = np.ascontiguousarray(v.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)  # [B, S, H, D] underneath
    assert_right(attention(q, odd, turned, stage=stage), q, k, v)

    expanded = np.broadcast_to(k[:, :1], k.shape)  # one head's memory under every head, stride 0
    assert_right(attention(q, expanded, v, stage=stage), q, expanded, v)


@pytest.fixture
def asked(monkeypatch):
    """What `dispatch.ranking` was asked."""
    calls = []

    def ranking(*problem):
        calls.append(problem)
        return dispatch.ranking(*problem)

    # The package hands on the function under the name of its module.
    monkeypatch.setattr(sys.modules["flashcore_numba.attention"], "ranking", ranking)
    return calls


def test_the_default_stage_is_the_first_of_the_rule_that_fits(rng, asked):
    batch, heads, seq_q, seq_k = map(int, rng.integers(1, 400, 4))
    causal, head_dim = bool(rng.integers(2)), int(rng.choice([64, 128]))
    row = np.zeros(head_dim, np.float16)
    q, k = (np.broadcast_to(row, (batch, heads, seq, head_dim)) for seq in (seq_q, seq_k))
    problem = (None, causal, head_dim, batch * heads * seq_q, seq_k)
    assert best_stage(Problem(q, k, k, causal)) is find(dispatch.ranking(*problem)[0])
    assert asked == [problem]


def test_the_default_stage_is_the_next_of_the_rule_where_the_first_cannot(monkeypatch):
    problem = Problem(SMALL, SMALL[:, :2], SMALL[:, :2])
    first, second, third, *_ = dispatch.ranking(None, False, 64, 32, 8)
    limits = {first: {"outputs": (OUT,)}, second: {"grouped_queries": False}}
    limited = tuple(dataclasses.replace(stage, **limits.get(stage.number, {})) for stage in LADDER)
    monkeypatch.setattr("flashcore_numba.stages.LADDER", limited)
    assert best_stage(problem).number == first
    assert best_stage(problem, (LSE,)).number == third


def test_the_default_stage_fits_an_older_gpu(monkeypatch, asked):
    monkeypatch.setattr("flashcore_numba.core.gpu.compute_capability", lambda device: (7, 5))
    on_gpu = types.SimpleNamespace(
        seq_q=512,
        seq_k=512,
        batch=1,
        heads=8,
        head_dim=64,
        value_dim=64,
        causal=False,
        group=1,
        features=Features(),
        element=FLOAT16,
        on_gpu=True,
        q=types.SimpleNamespace(device=types.SimpleNamespace(id=0)),
    )
    assert best_stage(on_gpu).name == "mma_sync"
    assert asked == [((7, 5), False, 64, 8 * 512, 512)]


def test_a_stage_without_recorded_times_runs_only_when_named(monkeypatch):
    untimed = dataclasses.replace(LADDER[0], number=99, name="untimed", grouped_queries=True)
    monkeypatch.setattr("flashcore_numba.stages.LADDER", (LADDER[0], untimed))
    assert best_stage(PROBLEM) is LADDER[0]
    grouped = Problem(SMALL, SMALL[:, :2], SMALL[:, :2])
    refuse(untimed, grouped)
    expected = "no stage with recorded times serves 1x4/2x8x64: name one, stage 99 untimed can"
    with pytest.raises(UnsupportedError, match=expected):
        best_stage(grouped)


SMALL = np.zeros((1, 4, 8, 64), np.float16)
WIDE = np.zeros((1, 4, 8, 128), np.float16)
PROBLEM = Problem(SMALL, SMALL, SMALL)
LIMITS = {
    "head dimension": (
        {"head_dims": (64,)},
        Problem(WIDE, WIDE, WIDE),
        (),
        ["head dimension 128", "only 64"],
    ),
    "causal": ({"causal": False}, Problem(SMALL, SMALL, SMALL, causal=True), (), ["causal=True"]),
    "groups": (
        {"grouped_queries": False},
        Problem(SMALL, SMALL[:, :2], SMALL[:, :2]),
        (),
        ["grouped queries", "4 query heads over 2 K/V heads"],
    ),
    "lse": ({"outputs": (OUT,)}, PROBLEM, (LSE,), ["LSE", "return_lse=True"]),
}


@pytest.fixture
def ladder(monkeypatch):
    """A ladder whose one stage serves everything, so that advice has something to name."""
    able = dataclasses.replace(LADDER[0], number=9, name="able", grouped_queries=True, outputs=(OUT, LSE))
    monkeypatch.setattr("flashcore_numba.stages.LADDER", (able,))
    return able


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limited_stage_refuses_by_name(ladder, limit):
    changes, problem, outputs, words = LIMITS[limit]
    full = {"grouped_queries": True, "outputs": (OUT, LSE)}
    limited = dataclasses.replace(ladder, number=3, name="limited", **{**full, **changes})
    refuse(ladder, problem, outputs)
    with pytest.raises(UnsupportedError) as caught:
        refuse(limited, problem, outputs)
    message = str(caught.value)
    assert message.startswith("stage 03 limited ")
    assert message.endswith("stage 09 able can")
    assert [word for word in words if word not in message] == [], message


def test_nobody_can(monkeypatch):
    limited = dataclasses.replace(LADDER[0], causal=False)
    monkeypatch.setattr("flashcore_numba.stages.LADDER", (limited,))
    problem = Problem(SMALL, SMALL, SMALL, causal=True)
    with pytest.raises(UnsupportedError, match="no stage of the ladder can"):
        refuse(limited, problem)
    with pytest.raises(UnsupportedError, match=r"no stage of the ladder serves 1x4x8x64: .*causal=True"):
        best_stage(problem)
    twin = dataclasses.replace(limited, number=4, name="twin")
    monkeypatch.setattr("flashcore_numba.stages.LADDER", (limited, twin))
    with pytest.raises(UnsupportedError, match=r"64: each of 01 scalar and 04 twin does not .*=True$"):
        best_stage(problem)


def test_an_old_gpu_is_refused(ladder, monkeypatch):
    monkeypatch.setattr("flashcore_numba.core.gpu.compute_capability", lambda device: (7, 5))
    on_gpu = types.SimpleNamespace(
        head_dim=64,
        value_dim=64,
        causal=False,
        group=1,
        features=Features(),
        element=FLOAT16,
        on_gpu=True,
        q=types.SimpleNamespace(device=types.SimpleNamespace(id=0)),
    )
    newer = dataclasses.replace(ladder, number=14, name="newer", compute_capability=(9, 0))
    with pytest.raises(UnsupportedError, match=r"stage 14 newer needs compute capability 9\.0, .*has 7\.5"):
        refuse(newer, on_gpu)
    refuse(ladder, on_gpu)


def test_a_block_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("flashcore_numba.core.gpu.compute_capability", lambda device: (7, 5))
    on_gpu = types.SimpleNamespace(
        head_dim=128,
        value_dim=128,
        element=FLOAT16,
        features=Features(),
        causal=False,
        group=1,
        on_gpu=True,
        q=types.SimpleNamespace(device=types.SimpleNamespace(id=0)),
    )
    refuse(find("async_copy"), on_gpu)  # nothing is known of a device that is not there
    monkeypatch.setattr("flashcore_numba.core.gpu.shared_limit", lambda device: 65536)
    expected = (
        "stage 09 async_copy needs 84352 bytes of shared memory per block at head dimension 128, and this"
    )
    with pytest.raises(UnsupportedError, match=f"{expected} GPU has 65536; stage 01 scalar can"):
        refuse(find("async_copy"), on_gpu)
    refuse(find("warp_specialized"), on_gpu)
    refuse(find("mma_sync"), on_gpu)


def read_only(shape):
    out = np.empty(shape, np.float16)
    out.flags.writeable = False
    return out


SHAPE = (1, 2, 8, 64)
BAD = {
    "out list": ("out", {"out": [1]}, ["list", "NumPy, CuPy, PyTorch"]),
    "out dtype": ("out", {"out": np.empty(SHAPE, np.float64)}, ["float64", "float16"]),
    "out shape": ("out", {"out": np.empty((1, 2, 9, 64), np.float16)}, ["(1, 2, 9, 64)", "(1, 2, 8, 64)"]),
    "out read-only": ("out", {"out": read_only(SHAPE)}, ["read-only", "writeable"]),
    "out strided": (
        "out",
        {"out": np.empty((1, 2, 8, 128), np.float16)[..., ::2]},
        ["strides", "contiguous"],
    ),
    "out reversed": ("out", {"out": np.empty(SHAPE, np.float16)[:, :, ::-1]}, ["negative", ">= 0"]),
    "out odd rows": ("out", {"out": np.empty((1, 2, 8, 67), np.float16)[..., :64]}, ["multiple of 16"]),
    "out broadcast": (
        "out",
        {"out": np.lib.stride_tricks.as_strided(np.empty((1, 1, 8, 64), np.float16), SHAPE, (0, 0, 128, 2))},
        ["share memory"],
    ),
    "return_lse": ("return_lse", {"return_lse": 1}, ["1", "True or False"]),
    "stage number": ("stage", {"stage": 99}, ["99", "01 scalar"]),
    "stage name": ("stage", {"stage": "fast"}, ["'fast'", "01 scalar"]),
    "stage kind": ("stage", {"stage": 1.0}, ["1.0", "01 scalar"]),
    "stage bool": ("stage", {"stage": True}, ["True", "01 scalar"]),
    "q list": ("q", {"q": [1]}, ["list", "NumPy, CuPy, PyTorch"]),
    "scale": ("scale", {"scale": float("nan")}, ["nan", "finite"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_call_writes_nothing(rng, case):
    argument, changes, words = BAD[case]
    q, k, v = inputs(rng, seq_q=8)
    out = np.full(SHAPE, 3, np.float16)
    with pytest.raises(ArgumentError) as caught:
        attention(**{"q": q, "k": k, "v": v, "out": out, **changes})
    message = str(caught.value)
    assert message.startswith(argument + " "), message
    assert [word for word in words if word not in message] == [], message
    assert (out == 3).all()


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_out_must_not_overlap_an_input(rng, name):
    arrays = dict(zip("qkv", inputs(rng, seq_q=8), strict=True))
    before = arrays[name].copy()
    with pytest.raises(ArgumentError, match=f"out overlaps {name} in memory"):
        attention(**arrays, out=arrays[name])
    np.testing.assert_array_equal(arrays[name], before)


def test_out_may_be_packed_beside_the_inputs(rng):
    packed = rng.standard_normal((1, 8, 4, 2, 64)).astype(np.float16)
    q, k, v, out = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(4))
    attention(q, k, v, out=out)
    assert_right(out, q, k, v)


@EACH_STAGE
@pytest.mark.parametrize("name, value", [("q", np.nan), ("k", np.nan), ("k", np.inf), ("v", -np.inf)])
def test_nan_and_infinity_go_where_arithmetic_takes_them(rng, stage, name, value):
    arrays = dict(zip("qkv", inputs(rng), strict=True))
    arrays[name][0, 1, 5, 3] = value
    out = attention(**arrays, stage=stage)
    with np.errstate(invalid="ignore"):
        reference, right_lse = oracle.attention(**arrays, causal=False, scale=None)
    assert not np.isfinite(reference).all()
    np.testing.assert_allclose(out, reference, atol=0.01)
    if stage.returns_lse:
        _, lse = attention(**arrays, stage=stage, return_lse=True)
        np.testing.assert_allclose(lse, right_lse, atol=0.01)


def test_finite_inputs_that_overflow_to_nan_are_reported(rng):
    q, k, v = inputs(rng)
    with pytest.raises(SimulationError, match=r"not a number: stage05_online_softmax\.py:\d+"):
        attention(q * np.float16(4), k, v, scale=2e38, stage="online_softmax")


@pytest.mark.parametrize("stage", IN_BFLOAT16, ids=lambda stage: stage.label)
def test_the_greatest_scales(rng, stage):
    """Kernels take a scale times log2(e) as a float32: it must be one."""
    q, k, v = (BFLOAT16.round(factor * rng.standard_normal((1, 1, 20, 64))) for factor in (1e-19, 1e-19, 1))
    for scale in (2.3e38, -2.3586e38):
        right, right_lse = oracle.attention(q, k, v, scale=scale)
        out, lse = attention(q, k, v, scale=scale, stage=stage, return_lse=True)
        assert np.abs(out.astype(np.float64) - right).max() < 0.03
        assert np.abs(lse - right_lse).max() < 1e-3
    out = np.full_like(q, 3)
    for scale in (3e38, -2.3587e38):
        with pytest.raises(ArgumentError, match=r"^scale is .*from -2\.3586e\+38 to 2\.3586e\+38"):
            attention(q, k, v, scale=scale, stage=stage, out=out)
    assert (out == 3).all()


def test_a_scale_that_is_too_large_for_any_call():
    q = np.zeros((1, 1, 8, 64), BFLOAT16.dtype)
    rows, lse, how = q[0].swapaxes(0, 1), np.zeros((1, 1, 8), np.float32), {"p": 0.1, "seed": 0}
    ends, lengths = np.array([0, 8], np.int32), np.array([8], np.int32)
    calls = {
        "attention_backward": (q, q, q, q, q, lse),
        "attention_dropout": (q, q, q),
        "attention_dropout_backward": (q, q, q, q, q, lse),
        "attention_fp8": (q, q, q),
        "attention_norm": (q, q, q, None, np.ones(64, BFLOAT16.dtype)),
        "attention_paged": (q, *np.zeros((2, 1, 16, 1, 64), q.dtype), np.zeros((1, 1), np.int32), lengths),
        "attention_varlen": (rows, rows, rows, ends, ends),
        "attention_varlen_backward": (rows, rows, rows, rows, rows, lse[0], ends, ends),
    }
    for name, arguments in calls.items():
        call = getattr(flashcore_numba, name)
        options = how if "dropout" in name else {}
        call(*arguments, scale=2.3e38, **options)
        with pytest.raises(ArgumentError, match=r"^scale is 3e\+38: it must be from"):
            call(*arguments, scale=3e38, **options)


def test_inputs_are_left_alone(rng):
    q, k, v = inputs(rng, seq_q=8)
    copies = [x.copy() for x in (q, k, v)]
    attention(q, k, v)
    for x, copy in zip((q, k, v), copies, strict=True):
        np.testing.assert_array_equal(x, copy)


@EACH_STAGE
def test_find(stage):
    names = [stage, stage.number, str(stage.number), f"{stage.number:02d}", stage.name, stage.label]
    assert all(find(selector) is stage for selector in names)


def test_select():
    first, last = LADDER[0], LADDER[-1]
    assert select() == list(LADDER)
    assert select(f"{first.number}-{last.number}") == list(LADDER)
    assert select(LADDER[1].name, first.number, "02") == [first, LADDER[1]]
    with pytest.raises(ArgumentError, match="runs backwards: write 1-2"):
        select("2-1")
    with pytest.raises(ArgumentError, match="'99' is not in the ladder: accepted are 01 scalar"):
        select("1-99")


def test_the_package_hands_on_its_names():
    assert callable(flashcore_numba.attention)
    assert flashcore_numba.LADDER is LADDER
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = flashcore_numba.nothing
