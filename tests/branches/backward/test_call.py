"""attention_backward(): arguments, layouts, refusals; the arithmetic is that of the NumPy stage."""

import numpy as np
import pytest

from flashcore_numba import (
    ArgumentError,
    UnsupportedError,
    attention_backward,
    attention_varlen_backward,
)
from flashcore_numba.branches import find as branches
from flashcore_numba.branches.backward import bounds, ladder
from flashcore_numba.branches.backward.inputs import BackwardInputs, backward_inputs
from flashcore_numba.checks.cases import normal
from flashcore_numba.core.features import Features
from flashcore_numba.core.operation import Operation

from .numpy_stage import stage

NUMPY = stage()
NAMES = ("dout", "q", "k", "v", "out", "lse")


@pytest.fixture(autouse=True)
def numpy_ladder(monkeypatch):
    monkeypatch.setattr(ladder, "LADDER", (NUMPY,))
    monkeypatch.setattr(ladder, "preferred", lambda problem: (NUMPY,))
    monkeypatch.setattr(ladder, "DETERMINISTIC", {})


def arrays(x: BackwardInputs) -> list:
    return [x.arrays[name] for name in NAMES]


def right(x: BackwardInputs, found) -> bool:
    ref = bounds.reference(x)
    return all(
        bounds.judge(each, value, ref, None).passed
        for each, value in zip(bounds_outputs(), found, strict=True)
    )


def bounds_outputs():
    return NUMPY.outputs


def test_gradients_come_back_in_the_callers_kind(rng):
    x = backward_inputs(normal(rng, 1, 4, 40, 70, 64, kv_heads=2, causal=True, scale=0.2), rng, dlse=True)
    found = attention_backward(*arrays(x), causal=True, scale=0.2, dlse=x.dlse)
    assert [each.shape for each in found] == [x.forward.q.shape, x.forward.k.shape, x.forward.v.shape]
    assert right(x, found) and all(isinstance(each, np.ndarray) for each in found)


def test_targets_are_written_and_returned(rng):
    x = backward_inputs(normal(rng, 2, 2, 30, 30, 64), rng)
    f = x.forward
    wide = [np.full((2, 30, 2, 64), np.nan, np.float16).swapaxes(1, 2) for _ in range(3)]
    found = attention_backward(*arrays(x), dq=wide[0], dk=wide[1], dv=wide[2], stage="backward/numpy")
    assert all(one is other for one, other in zip(found, wide, strict=True)) and right(x, found)
    one = np.empty_like(f.k)
    assert attention_backward(*arrays(x), dk=one)[1] is one


def test_features_reach_the_stage(rng):
    forward = normal(rng, 1, 2, 40, 50, 64)
    features = Features((10, 3), 5.0, sinks=rng.standard_normal(2).astype(np.float32))
    x = backward_inputs(forward.but(features=features), rng)
    found = attention_backward(*arrays(x), window=(10, 3), softcap=5.0, sinks=features.sinks)
    assert right(x, found)


def test_packed_sequences(rng):
    lengths = np.array([0, 12, 12, 40], np.int32)
    features = Features(cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    x = backward_inputs(normal(rng, 1, 4, 40, 40, 64, kv_heads=1, causal=True).but(features=features), rng)
    packed = [a[0].swapaxes(0, 1) if a.ndim == 4 else a[0] for a in arrays(x)]
    found = attention_varlen_backward(*packed, lengths, lengths, causal=True)
    assert found[0].shape == (40, 4, 64) and found[1].shape == (40, 1, 64)
    assert right(x, [each.swapaxes(0, 1)[None] for each in found])
    with pytest.raises(ArgumentError, match="cu_seqlens_k is None"):
        attention_varlen_backward(*packed, lengths, None)


CHANGES = {
    "out": (lambda x: x[:, :, 1:], "out has shape .* it must be"),
    "dout": (lambda x: x.astype(np.float32), "dout has dtype float32: only float16 is accepted"),
    "lse": (lambda x: x.astype(np.float64), "lse has dtype float64: only float32 is accepted"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_bad_array_is_named(name, rng):
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng)
    change, words = CHANGES[name]
    with pytest.raises(ArgumentError, match=words):
        attention_backward(*(change(x.arrays[n]) if n == name else x.arrays[n] for n in NAMES))


def test_bad_arguments_are_named_and_nothing_is_written(rng):
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng)
    given, target = arrays(x), np.full((1, 2, 9, 64), 7, np.float16)
    for words, options in {
        "dq has shape": {"dq": target[:, :, 1:]},
        "dk is read-only": {"dk": np.broadcast_to(np.zeros_like(target), target.shape)},
        "dq overlaps dk": {"dq": target, "dk": target},
        "dv overlaps v": {"dv": x.forward.v},
        "lse has strides": {"lse": np.zeros((2, 1, 9), np.float32).swapaxes(0, 1)[:, :, ::-1]},
        "dlse has shape": {"dlse": x.lse[:, :, 1:]},
        "deterministic is 1": {"deterministic": 1},
        "is not in the ladder of the backward pass": {"stage": "mma"},
        "time_limit": {"time_limit": -1},
        "scale is": {"scale": np.nan},
    }.items():
        call = [options.pop(name, array) for name, array in zip(NAMES, given, strict=True)]
        with pytest.raises(ArgumentError, match=words):
            attention_backward(*call, **{"dq": target} | options)
    assert (target == 7).all()


def test_shapes_of_packed_arrays_are_told_as_the_caller_has_them(rng):
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng, dlse=True)
    packed = [a[0].swapaxes(0, 1) if a.ndim == 4 else a[0] for a in arrays(x)]
    bounds, dlse = np.array([0, 9], np.int32), x.dlse[0]
    given = dict(zip(NAMES, packed, strict=True)) | {"dlse": dlse}
    for words, wrong in {
        "out has shape (8, 2, 64): it must be (9, 2, 64)": {"out": given["out"][1:]},
        "dout has shape (9, 2, 32): it must be (9, 2, 64)": {"dout": given["dout"][:, :, :32]},
        "lse has shape (2, 8): it must be (2, 9)": {"lse": given["lse"][:, 1:]},
        "lse has shape (1, 2, 9): two dimensions are needed": {"lse": given["lse"][None]},
        "dlse has shape (18,): two dimensions are needed": {"dlse": dlse.reshape(-1)},
        "dlse has shape (1, 9): it must be (2, 9)": {"dlse": dlse[:1]},
        "lse has strides (36, -4) bytes: it must be C-contiguous": {"lse": given["lse"][:, ::-1]},
    }.items():
        with pytest.raises(ArgumentError) as raised:
            attention_varlen_backward(**given | wrong, cu_seqlens_q=bounds, cu_seqlens_k=bounds)
        assert str(raised.value).startswith(words)


def test_a_flag_may_be_numpys(rng):
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng)
    assert right(x, attention_backward(*arrays(x), deterministic=np.False_))


def test_a_gradient_must_not_overlap_what_a_feature_reads(rng):
    memory = np.zeros(1 << 14, np.uint8)
    target, bounds = memory[: 9 * 2 * 64 * 2].view(np.float16), np.array([0, 9], np.int32)
    sinks, used = memory[:8].view(np.float32), memory[:4].view(np.int32)
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng)
    for name, feature in {"sinks": sinks, "alibi_slopes": sinks, "seqused_k": used}.items():
        with pytest.raises(ArgumentError, match=f"dk overlaps {name} in memory"):
            attention_backward(*arrays(x), **{name: feature}, dk=target.reshape(1, 2, 9, 64))
    packed = [a[0].swapaxes(0, 1) if a.ndim == 4 else a[0] for a in arrays(x)]
    ends = memory[:8].view(np.int32)
    ends[:] = bounds
    with pytest.raises(ArgumentError, match="dq overlaps cu_seqlens_k in memory"):
        attention_varlen_backward(*packed, bounds, ends, dq=target.reshape(9, 2, 64))
    assert memory[:8].tobytes() == bounds.tobytes() and not memory[8:].any()


def test_determinism_is_refused_where_no_variant_has_it(rng, monkeypatch):
    x = backward_inputs(normal(rng, 1, 2, 9, 9, 64), rng)
    with pytest.raises(UnsupportedError, match="deterministic"):
        attention_backward(*arrays(x), stage=NUMPY, deterministic=True)
    monkeypatch.setattr(ladder, "DETERMINISTIC", {ladder.ONE_LAUNCH: None})
    words = "with deterministic=True no stage .* backward/one_launch does not serve softcap$"
    with pytest.raises(UnsupportedError, match=words):  # nothing about a stage that would serve it otherwise
        attention_backward(*arrays(x), softcap=5.0, deterministic=True)
    monkeypatch.setattr(ladder, "DETERMINISTIC", {NUMPY: None})
    assert right(x, attention_backward(*arrays(x), deterministic=True))


def test_a_branch_is_selected_by_name(monkeypatch):
    assert branches.select("backward", 3)[-1] is NUMPY and branches.select("backward", 3)[0].number == 3
    assert branches.find("backward/numpy") is NUMPY and branches.find("05").number == 5
    with pytest.raises(ArgumentError, match="accepted are backward/numpy"):
        branches.find("backward/none")
    assert isinstance(NUMPY.operation, Operation)
