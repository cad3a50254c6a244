"""attention_paged(): arguments, layouts, refusals, and what it shares with attention()."""

import numpy as np
import pytest

from flashcore_numba import ArgumentError, Problem, UnsupportedError, attention, attention_paged
from flashcore_numba.branches.decode.inputs import paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.checks.trial import Trial
from flashcore_numba.checks.truth import truth
from flashcore_numba.core.element import BFLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.stages.find import find as of_spine

CHUNKS = LADDER[0]


def called(x, **options):
    given = {"causal": x.causal, "scale": x.scale, "window": x.features.window, "sinks": x.features.sinks}
    arrays = (x.q, x.k_pool, x.v_pool, x.block_table, x.lengths)
    return attention_paged(*arrays, **given, softcap=x.features.softcap, **{"stage": CHUNKS} | options)


def assert_right(x, out, lse):
    ref = DECODE.reference(x)
    for output, value in zip(DECODE.outputs, (out, lse), strict=True):
        verdict = DECODE.judge(output, value, ref, None)
        assert verdict.passed, (output.name, verdict)


@pytest.mark.long
def test_it_is_right(rng):
    sinks = rng.standard_normal(4).astype(np.float32)
    x = paged(rng, [20, 0, 45], 4, 2, 3, features=Features((30, -1), 5.0, sinks))
    out, lse = called(x, return_lse=True)
    assert out.dtype == np.float16 and lse.dtype == np.float32
    assert_right(x, out, lse)
    given = np.full_like(x.q, np.nan)
    assert called(x, out=given) is given and np.array_equal(given, out)
    assert np.array_equal(called(x, batch_invariant=True, stage=CHUNKS.key), out)


@pytest.mark.long
def test_one_page_per_request_is_a_contiguous_cache(rng):
    """attention() over the same cache, of equal lengths, agrees."""
    q = rng.standard_normal((2, 4, 3, 64)).astype(np.float16)
    k, v = rng.standard_normal((2, 2, 2, 70, 64)).astype(np.float16)
    pools = (x.swapaxes(1, 2) for x in (k, v))
    table, lengths = np.arange(2, dtype=np.int32)[:, None], np.full(2, 70, np.int32)
    out, lse = attention_paged(q, *pools, table, lengths, stage=CHUNKS, return_lse=True)
    right, right_lse = attention(q, k, v, causal=True, stage=5, return_lse=True)
    assert np.allclose(out.astype(float), right.astype(float), atol=2e-3)
    assert np.allclose(lse, right_lse, atol=1e-5)


@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_a_length_past_the_table_is_the_room_of_the_table(stage, rng):
    """As on a GPU, where nobody has looked at the lengths; the next request is as it was."""
    x = paged(rng, [64, 30], 4, 2, 2, spare_columns=0, strange=False)
    right = Trial(stage, stage.default_variant, "simulator")(x)
    for length in (65, 5000):
        found = Trial(stage, stage.default_variant, "simulator")(
            x.but(lengths=np.array([length, 30], np.int32))
        )
        assert np.array_equal(found.out, right.out) and np.array_equal(found.lse, right.lse)


def test_rows_at_odd_places_are_copied(rng):
    x = paged(rng, [20, 33], 2, 1)
    room = np.full((*x.v_pool.shape[:3], 67), np.nan, np.float16)
    room[..., 1:65] = x.v_pool
    assert np.array_equal(called(x.but(v_pool=room[..., 1:65])), called(x))


def test_bad_arguments(rng):
    x = paged(rng, [20, 3], 2, 1)
    for changes, message in (
        ({"q": x.q.tolist()}, "q is of type list"),
        ({"lengths": np.array([20, 3])}, "lengths has dtype int64: only int32"),
        ({"lengths": np.array([20, 2000], np.int32)}, "lengths is 2000 for request 1"),
        ({"block_table": x.block_table[:1]}, "block_table has shape"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            called(x.but(**changes))
    for options, message in (
        ({"return_lse": 1}, "return_lse is 1"),
        ({"batch_invariant": 1}, "batch_invariant is 1"),
        ({"out": x.q[:1]}, "out has shape"),
        ({"out": x.q}, "out overlaps q"),
        (
            {"stage": "mma_sync"},
            "stage 'mma_sync' is not in the ladder of decoding: accepted are decode/chunks",
        ),
        ({"stage": of_spine(5)}, "stage .* is not in the ladder of decoding"),
        ({"time_limit": 0}, "time_limit is 0"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            called(x, **options)


def test_what_no_stage_serves_is_refused(rng):
    x = paged(rng, [20, 3], 2, 1, element=BFLOAT16)
    with pytest.raises(UnsupportedError, match=r"^stage decode/chunks does not serve bfloat16, only"):
        called(x)
    x = paged(rng, [20, 3], 2, 1, head_dim=96)
    with pytest.raises(UnsupportedError, match=r"^stage decode/chunks does not serve head dimension 96"):
        called(x)
    assert Problem(x.q, x.q, x.q).head_dim == 96  # which attention() serves


@pytest.mark.long
def test_none_is_the_last_stage_that_serves(rng):
    x = paged(rng, [20, 3], 2, 1)
    assert_right(x, *called(x, stage=None, return_lse=True))


def test_the_caller_of_the_operation(rng):
    x = paged(rng, [20, 3], 2, 1, batch_invariant=True)
    out = np.full_like(x.q, np.nan)
    DECODE.caller(x.problem(x.arrays), CHUNKS, {"out": out})()
    judged = truth(DECODE, x, rng).judge([{"out": out}])
    assert judged["right"] and judged["heads_checked"] == judged["heads"] == 4
