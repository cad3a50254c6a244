"""Attention in parts, each over other keys: `prior=(o, lse)` and a float32 output, by the public call."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba import ArgumentError, UnsupportedError, attention, attention_varlen
from flashcore_numba.checks import Edit, Mutant, bounds
from flashcore_numba.checks.mutation import loaded
from flashcore_numba.core.element import ACCEPTED
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages.find import find

STAGE = pytest.mark.parametrize("stage", few([12, 15], 12))


def draw(rng, *shape, element=ACCEPTED[0]):
    return element.round(rng.standard_normal(shape))


def assert_right(out, lse, q, k, v, causal=False, features=OFF):
    ref = bounds.reference(q, k, v, causal, None, features)
    for verdict in (bounds.judge(out, ref), bounds.judge_lse(lse, ref)):
        assert verdict.passed, (verdict.reason, verdict.where)


@pytest.mark.long
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda each: each.name)
@STAGE
def test_a_ring_of_parts_in_place(rng, stage, element):
    """As a ring does it: the block of keys on the diagonal first, then blocks that all rows see."""
    q = draw(rng, 2, 4, 40, 64, element=element)
    k, v = (draw(rng, 2, 2, 100, 64, element=element) for _ in "kv")
    o = np.full(q.shape, np.nan, np.float32)
    found, lse = attention(q, k[:, :, 60:], v[:, :, 60:], causal=True, stage=stage, out=o, return_lse=True)
    assert found is o
    part = k[:, :, :25], v[:, :, :25]
    found, lse = attention(q, *part, prior=(o, lse), stage=stage, out=o, return_lse=True)
    assert found is o and lse.dtype == np.float32
    part = k[:, :, 25:60], v[:, :, 25:60]
    out, lse = attention(q, *part, prior=(o, lse), stage=stage, return_lse=True)
    assert out.dtype == q.dtype
    assert_right(out, lse, q, k, v, causal=True)


@pytest.mark.long
@STAGE
def test_in_place_is_what_it_is_elsewhere(rng, stage):
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (33, 50, 50))
    o, lse = drawn_prior(rng, q)
    features = Features(float32_out=True, prior_out=o.copy(), prior_lse=lse)
    elsewhere = np.full(q.shape, np.nan, np.float32)
    attention(q, k, v, prior=(o, lse), stage=stage, out=elsewhere)
    found, new_lse = attention(q, k, v, prior=(o, lse), stage=stage, out=o, return_lse=True)
    assert found is o and np.array_equal(o, elsewhere)
    assert_right(o, new_lse, q, k, v, features=features)


def drawn_prior(rng, q):
    o = rng.standard_normal(q.shape).astype(np.float32)
    return o, (4 + 3 * rng.standard_normal(q.shape[:3])).astype(np.float32)


@STAGE
def test_half_of_the_rows(rng, stage):
    """The second half sees keys that the first does not: slices of q, o and the LSE, none contiguous."""
    q, k, v = (draw(rng, 2, 2, rows, 64) for rows in (64, 50, 50))
    o, lse = drawn_prior(rng, q)
    first, half = o[:, :, :32].copy(), slice(32, None)
    features = Features(prior_out=o[:, :, half].copy(), prior_lse=lse[:, :, half].copy(), float32_out=True)
    q_half, o_half = q[:, :, half], o[:, :, half]
    _, new_lse = attention(
        q_half, k, v, prior=(o_half, lse[:, :, half]), out=o_half, stage=stage, return_lse=True
    )
    assert_right(o_half, new_lse, q_half, k, v, features=features)
    assert np.array_equal(o[:, :, :32], first)


@STAGE
def test_rows_that_have_seen_no_key(rng, stage):
    """Before: they are what they are without, bit for bit, whatever o holds. Now: they are as before."""
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (40, 20, 20))
    nothing = np.full(q.shape, np.nan, np.float32), np.full(q.shape[:3], -np.inf, np.float32)
    plain, plain_lse = attention(q, k, v, causal=True, stage=stage, return_lse=True)
    out, lse = attention(q, k, v, causal=True, prior=nothing, stage=stage, return_lse=True)
    assert np.array_equal(out, plain) and np.array_equal(lse, plain_lse)
    assert np.isneginf(lse[:, :, :20]).all() and not out[:, :, :20].any()

    before = drawn_prior(rng, q)
    o = np.full(q.shape, np.nan, np.float32)
    _, lse = attention(q, k, v, causal=True, prior=before, stage=stage, out=o, return_lse=True)
    assert np.array_equal(o[:, :, :20], before[0][:, :, :20])
    assert np.allclose(lse[:, :, :20], before[1][:, :, :20], rtol=1e-6)


@pytest.mark.long
def test_the_sink_is_in_one_part(rng):
    q, k, v = (draw(rng, 1, 2, rows, 64) for rows in (40, 60, 60))
    sinks = rng.uniform(-1, 1, 2).astype(np.float32)
    o = np.empty(q.shape, np.float32)
    _, lse = attention(q, k[:, :, :30], v[:, :, :30], sinks=sinks, out=o, stage=12, return_lse=True)
    rest = k[:, :, 30:], v[:, :, 30:]
    out, whole_lse = attention(q, *rest, prior=(o, lse), stage=12, return_lse=True)
    assert_right(out, whole_lse, q, k, v, features=Features(sinks=sinks))
    _, twice = attention(q, *rest, prior=(o, lse), sinks=sinks, stage=12, return_lse=True)
    assert np.allclose(twice, np.logaddexp(whole_lse, sinks[:, None]), rtol=0, atol=1e-5)
    assert (twice > whole_lse + 1e-3).all()


@pytest.mark.long
def test_packed_sequences_in_float32(rng):
    q, k = draw(rng, 50, 2, 64), draw(rng, 70, 2, 64)
    bounds_q, bounds_k = np.array([0, 20, 50], np.int32), np.array([0, 45, 70], np.int32)
    out = np.full(q.shape, np.nan, np.float32)
    _, lse = attention_varlen(q, k, k, bounds_q, bounds_k, out=out, stage=12, return_lse=True)
    features = Features(float32_out=True, cu_seqlens_q=bounds_q, cu_seqlens_k=bounds_k)
    heads_first = [x.swapaxes(0, 1)[None] for x in (out, q, k)]
    assert_right(heads_first[0], lse[None], *heads_first[1:], heads_first[2], features=features)


@pytest.mark.long
@pytest.mark.parametrize(
    "edit",
    [
        Edit("lane % 4 == 0 && row < sequence.S_q ?", "row < sequence.S_q ?", "quad.cuh"),
        Edit("h, at) + lane % 4 * 2;", "h, at) + (lane ^ 1) % 4 * 2;", "quad.cuh"),
    ],
    ids=["LSE", "O"],
)  # fmt: skip
def test_in_place_an_element_that_others_read_is_a_race(rng, edit):
    """The LSE in place too, as a caller of the stage itself may have it."""
    q = draw(rng, 1, 1, 40, 64)
    with loaded(Mutant(12, "read_by_others", "", (edit,))) as wrong:
        for stage, right in ((find(12), True), (wrong, False)):
            o, lse = drawn_prior(rng, q)
            executor = Simulator()
            problem = Problem(q, q, q, features=Features(float32_out=True, prior_out=o, prior_lse=lse))
            stage.launch(problem, o, executor, lse)
            races = {found.kind for launch in executor.launches for found in launch.problems}
            assert (not races) if right else races == {"race"}


Q = np.ones((2, 4, 8, 64), np.float16)
O, LSE = np.ones(Q.shape, np.float32), np.ones(Q.shape[:3], np.float32)
BAD = {
    "a number": ({"prior": 5}, ["prior is 5", "(o, lse)"]),
    "an array": ({"prior": O}, ["prior is array", "(o, lse)"]),
    "one array": ({"prior": (O,)}, ["prior is (", "(o, lse)"]),
    "no LSE": ({"prior": (O, None)}, ["prior is (", "(o, lse)"]),
    "a list for o": ({"prior": ([1.0], LSE)}, ["prior[0] is of type list"]),
    "o in float16": ({"prior": (Q, LSE)}, ["prior[0] has dtype float16", "float32"]),
    "rows of o": ({"prior": (O[:, :, :7], LSE)}, ["prior[0] has shape (2, 4, 7, 64)", "(2, 4, 8, 64)"]),
    "o by columns": (
        {"prior": (O.swapaxes(2, 3).copy().swapaxes(2, 3), LSE)},
        ["prior[0] has strides", "(D) must be contiguous"],
    ),
    "odd rows of o": (
        {"prior": (np.ones((2, 4, 8, 67), np.float32)[..., :64], LSE)},
        ["prior[0] has strides", "multiple of 16 bytes"],
    ),
    "LSE in float64": ({"prior": (O, LSE.astype(float))}, ["prior[1] has dtype float64", "float32"]),
    "LSE with a column": ({"prior": (O, LSE[..., None])}, ["prior[1] has shape (2, 4, 8, 1)", "(2, 4, 8)"]),
    "LSE of every other row": (
        {"prior": (O, np.ones((2, 4, 16), np.float32)[..., ::2])},
        ["prior[1] has strides", "(S_q) must be contiguous"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("changes, words", BAD.values(), ids=BAD)
def test_a_bad_prior_is_named(changes, words):
    out = np.full_like(Q, 7)
    with pytest.raises(ArgumentError) as raised:
        attention(Q, Q, Q, out=out, **changes)
    assert all(word in str(raised.value) for word in words), raised.value
    assert (out == 7).all()


def test_out_in_part_of_the_prior():
    """Itself it may be, another view of the memory not."""
    both = np.full((2, 4, 16, 64), 7, np.float32)
    for out, prior in ((both[:, :, 4:12], both[:, :, :8]), (both[:, :, :8], both[:, :, :8])):
        with pytest.raises(ArgumentError, match=r"out overlaps prior\[0\] in memory"):
            attention(Q, Q, Q, prior=(prior, LSE), out=out)
    assert (both == 7).all()


@pytest.mark.parametrize("stage", [3, 5, 13, 16])
def test_who_serves_it_is_named(stage):
    for options, what in (({"prior": (O, LSE)}, "prior"), ({"out": O.copy()}, "out in float32")):
        with pytest.raises(UnsupportedError, match=rf"stage .* does not serve {what}; stage 12 mma_sync can"):
            attention(Q, Q, Q, stage=stage, **options)
