"""DecodeProblem: what it accepts, what it refuses by name, and the inputs that checks draw."""

import numpy as np
import pytest

from flashcore_numba import ArgumentError
from flashcore_numba.branches.decode import inputs
from flashcore_numba.branches.decode.inputs import contiguous, paged, shuffled
from flashcore_numba.branches.decode.operation import DECODE
from flashcore_numba.branches.decode.problem import DecodeProblem
from flashcore_numba.checks.truth import truth
from flashcore_numba.core import oracle
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.core.output import OUT
from flashcore_numba.core.shapes import Shape
from flashcore_numba.core.workload import CONTIGUOUS
from flashcore_numba.run.registers import stand_in_for

Q, POOL = (3, 8, 2, 64), (20, 16, 2, 64)


def given(**changes):
    arrays = {
        "q": np.zeros(Q, np.float16),
        "k_pool": np.zeros(POOL, np.float16),
        "v_pool": np.zeros(POOL, np.float16),
        "block_table": np.zeros((3, 5), np.int32),
        "lengths": np.array([0, 7, 80], np.int32),
    }
    return arrays | changes


def test_what_a_problem_knows():
    problem = DecodeProblem(**given(), window=(10, 500))
    assert (problem.batch, problem.heads, problem.kv_heads, problem.group) == (3, 8, 2, 4)
    assert (problem.seq_q, problem.page, problem.pages, problem.capacity) == (2, 16, 20, 80)
    assert problem.causal and problem.scale == 1 / 8 and problem.element is FLOAT16
    assert problem.window == (10, -1) and problem.features.names == ("window",)
    assert problem.shape_label == "3x8/2x2/80x64, pages of 16"
    # Tokens at the last two keys see ten keys before each and themselves: 0, then 6 + 7, then 11 + 11.
    assert problem.visible_pairs == 0 + 13 + 22 and problem.exponentials == 8 * 35
    assert problem.flops == 4 * 64 * 8 * 35
    keys = 0 + 7 + 12  # that any token sees
    assert problem.kv_bytes == keys * 2 * 128 * 2
    assert problem.min_bytes == 2 * problem.q.nbytes + problem.kv_bytes
    again = problem.on(problem.inputs)
    assert (again.window, again.causal, again.scale) == (problem.window, True, problem.scale)


def test_views_of_any_strides():
    both = np.zeros((20, 2, 16, 2, 64), np.float16)
    rows = np.zeros((20, 2, 16, 128), np.float16).swapaxes(1, 2)
    wide = np.zeros((3, 40), np.int32)
    problem = DecodeProblem(**given(k_pool=both[:, 0], v_pool=both[:, 1], block_table=wide[:, :5]))
    assert problem.table_row == 40 and problem.aligned
    assert DecodeProblem(**given(k_pool=rows[..., :64], v_pool=rows[..., 64:])).aligned
    odd = np.zeros((20, 16, 2, 67), np.float16)[..., 1:65]
    problem = DecodeProblem(**given(k_pool=odd))
    assert not problem.aligned
    copied = problem.with_aligned_rows()
    assert copied.aligned and copied.v_pool is problem.v_pool


F16, I32 = np.float16, np.int32
BAD = {
    "q has shape": {"q": np.zeros((3, 8, 64), F16)},
    "q has dtype float32": {"q": np.zeros(Q, np.float32)},
    "q has head dimension 48": {"q": np.zeros((3, 8, 2, 48), F16)},
    "k_pool is a builtins.list": {"k_pool": [1]},
    "k_pool has shape": {"k_pool": np.zeros((20, 16, 64), F16)},
    "k_pool has head dimension 128: q has 64": {"k_pool": np.zeros((20, 16, 2, 128), F16)},
    "k_pool has 3 heads: q has 8": {
        "k_pool": np.zeros((20, 16, 3, 64), F16),
        "v_pool": np.zeros((20, 16, 3, 64), F16),
    },
    "k_pool has no keys of a page": {"k_pool": np.zeros((20, 0, 2, 64), F16)},
    "v_pool has shape .*all but the last": {"v_pool": np.zeros((20, 8, 2, 64), F16)},
    "v_pool has dtype bfloat16: q has float16": {"v_pool": np.zeros(POOL, BFLOAT16.dtype)},
    "v_pool has strides .*must be contiguous": {"v_pool": np.zeros((20, 16, 2, 128), F16)[..., ::2]},
    "v_pool has strides .*slot stride is negative": {"v_pool": np.zeros(POOL, F16)[:, ::-1]},
    "block_table has dtype int64": {"block_table": np.zeros((3, 5), np.int64)},
    r"block_table has shape \(5,\)": {"block_table": np.zeros(5, I32)},
    "block_table has no columns": {"block_table": np.zeros((3, 0), I32)},
    "block_table has strides": {"block_table": np.zeros((3, 10), I32)[:, ::2]},
    r"block_table has strides \(22, 4\) .* each number must start at a multiple of 4": {
        "block_table": np.zeros(3, np.dtype([("pages", I32, 5), ("count", np.int16)]))["pages"]
    },
    "lengths has strides .* an odd address": {"lengths": np.zeros(14, np.uint8)[2:].view(I32)},
    "block_table has .* at most 1073741824": {
        "block_table": np.broadcast_to(np.zeros(2**27, I32), (3, 2**27))
    },
    r"lengths has shape \(4,\)": {"lengths": np.zeros(4, I32)},
    "lengths has dtype float64": {"lengths": np.zeros(3)},
    "causal is 1": {"causal": 1},
    "batch_invariant is None": {"batch_invariant": None},
    "scale is nan": {"scale": float("nan")},
    "window is 3": {"window": 3},
    "softcap is -1": {"softcap": -1},
    r"sinks has shape \(2,\)": {"sinks": np.zeros(2, np.float32)},
    "sinks has dtype float16": {"sinks": np.zeros(8, F16)},
}


@pytest.mark.parametrize("message", BAD)
def test_one_error_names_the_argument(message):
    with pytest.raises(ArgumentError, match=f"^{message}"):
        DecodeProblem(**given(**BAD[message]))


def test_a_table_that_does_not_fit():
    DecodeProblem(**given()).check_table()
    for changes, message in (
        ({"lengths": np.array([0, 81, 1], I32)}, "lengths is 81 for request 1: it must be 0 to 80"),
        ({"lengths": np.array([0, -1, 1], I32)}, "lengths is -1 for request 1"),
        ({"block_table": np.full((3, 5), 20, I32)}, "block_table names page 20 for request 1: .* 0 to 19"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            DecodeProblem(**given(**changes)).check_table()
    unused = np.full((3, 5), -7, I32)
    unused[1, 0] = unused[2] = 3
    DecodeProblem(**given(block_table=unused)).check_table()


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_attention_with_seqused_k(causal, rng):
    """Over the keys gathered in one array, as another route to the same answer."""
    sinks = rng.standard_normal(4).astype(np.float32)
    features = Features(window=(40, 3), softcap=2.0, sinks=sinks)
    lengths = [5, 0, 77, 3]
    x = paged(rng, lengths, 4, 2, 4, value_dim=128, causal=causal, features=features)
    k, v = np.full((4, 2, 77, 64), np.nan), np.full((4, 2, 77, 128), np.nan)
    for request, length in enumerate(lengths):
        for key in range(length):
            place = x.block_table[request, key // x.page], key % x.page
            k[request, :, key], v[request, :, key] = x.k_pool[place], x.v_pool[place]
    used = Features((40, 3), 2.0, sinks=sinks, seqused_k=x.lengths)
    out, lse = oracle.attention(x.q, k, v, causal, features=used)
    found = DECODE.reference(x)
    assert np.allclose(found.out, out, rtol=0, atol=1e-13) and np.allclose(found.lse, lse, atol=1e-13)
    moved = DECODE.reference(shuffled(x, rng))
    assert np.array_equal(moved.out, found.out) and np.array_equal(moved.lse, found.lse)


def test_poison_is_everywhere_else(rng):
    x = paged(rng, [17, 0, 16], 2, 1)
    keys = np.arange(17)
    free = np.ones(x.k_pool.shape[:2], bool)
    free[x.block_table[0, keys // 16], keys % 16] = free[x.block_table[2, 0]] = False
    for pool in (x.k_pool, x.v_pool):
        finite = np.isfinite(pool).all(axis=(2, 3))
        assert finite[~free].all() and not finite[free].any() and np.isnan(pool[free]).any()
    pages = len(x.k_pool)
    past = np.concatenate([x.block_table[0, 2:], x.block_table[1], x.block_table[2, 1:]])
    assert len(past) == 9 and set(past) <= {-1, 0, pages - 1, pages, 2**31 - 1, -(2**31)}


def answer(x, **changes):
    """What a stage computes that takes `changes` for the input."""
    return FLOAT16.round(DECODE.reference(x.but(**changes)).out)


def heads_exchanged(x):
    """Of 4 query heads on 2, heads 1 and 2 read each other's K/V head."""
    order = [0, 2, 1, 3]
    return answer(x, q=x.q[:, order])[:, order]


MISTAKES = {
    "the last key of a request is left out": lambda x: answer(x, lengths=np.maximum(x.lengths - 1, 0)),
    "the causal mask is missing": lambda x: answer(x, causal=False),
    "softcap has no effect": lambda x: answer(x, features=Features()),
    "query head h reads K/V head h % H_kv": heads_exchanged,
    "a NaN comes from a slot that holds no key": lambda x: answer(x) * np.float16(np.nan),
    "Wrong in requests 0, 1 of 3": lambda x: 0 * answer(x),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_wrong_answer_is_explained(sentence, rng):
    x = paged(rng, [20, 33, 0], 4, 2, 2, features=Features(softcap=1.0))
    ref, wrong = DECODE.reference(x), MISTAKES[sentence](x)
    verdict = DECODE.judge(OUT, wrong, ref, None)
    assert not verdict.passed and sentence in DECODE.explain(x, OUT, wrong, ref, verdict)


def test_a_shape_is_requests_of_so_many_keys(rng):
    drawn = DECODE.draw(Shape(2, 8, 100, 64, kv_heads=2), True, rng)
    problem = drawn.problem(drawn.arrays)
    assert problem.lengths.tolist() == [100, 100] and (problem.seq_q, problem.page) == (1, 16)
    assert (problem.heads, problem.kv_heads) == (8, 2)
    stage = DECODE.ladder()[0]
    stands = stand_in_for(stage, Shape(2, 8, 100, 64, kv_heads=2), True)
    assert (stands.min_bytes, stands.flops) == (problem.min_bytes, problem.flops)
    ragged = DECODE.draw(
        Shape(1, 2, 100, 64), True, rng, features=Features(cu_seqlens_k=np.array([0, 30, 100], I32),
                                                           cu_seqlens_q=np.array([0, 30, 100], I32))
    )  # fmt: skip
    assert ragged.lengths.tolist() == [30, 70]


@pytest.mark.parametrize("page", [16, CONTIGUOUS])
def test_a_cache_of_e4m3_is_half_as_many_bytes(page, rng):
    own, half = (
        DECODE.draw(Shape(2, 4, 100, 64), True, rng, page=page, cache=cache, batch_invariant=invariant)
        for cache, invariant in ((None, None), ("e4m3", True))
    )
    whole, packed = (x.problem(x.arrays) for x in (own, half))
    assert not whole.e4m3 and packed.e4m3 and whole.kv_bytes == 2 * packed.kv_bytes
    assert (whole.batch_invariant, packed.batch_invariant) == (False, True)
    stored = half.k_pool.astype(np.float64)[half.block_table[0]].reshape(-1, 4, 64)[:100]
    assert np.array_equal(half.request(0).k[0], half.k_scale * stored.swapaxes(0, 1))


@pytest.mark.parametrize("page", [7, 16, CONTIGUOUS])
def test_what_is_timed_is_finite_and_within_the_pools(page, rng):
    """Other libraries may read slots and entries that nobody fills."""
    lengths = Features(cu_seqlens_k=np.array([0, 30, 100], I32), cu_seqlens_q=np.array([0, 30, 100], I32))
    x = DECODE.draw(Shape(1, 2, 100, 64), True, rng, features=lengths, tokens=3, page=page)
    assert x.q.shape == (2, 2, 3, 64) and x.lengths.tolist() == [30, 70]
    assert all(np.isfinite(pool).all() for pool in (x.k_pool, x.v_pool))
    assert x.block_table.min() >= 0 and x.block_table.max() < len(x.k_pool)
    used = [n for row, keys in zip(x.block_table, [30, 70], strict=True) for n in row[: -(-keys // x.page)]]
    assert len({*used}) == len(used), "no page is of two requests"
    assert (page == CONTIGUOUS) == (x.k_pool.shape == (2, 70, 2, 64)), "a cache [B, S, H_kv, D]"


def test_a_large_cache_repeats_numbers_but_no_row(rng, monkeypatch):
    monkeypatch.setattr(inputs, "MOST_DRAWN", 4093)
    x = contiguous(rng, [50, 60], 2, 2, head_dim=64)
    flat = x.k_pool.ravel()
    assert flat.size > 3 * 4093 and np.array_equal(flat[4093:], flat[:-4093])
    rows = x.k_pool.reshape(-1, 64)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert 0.9 < rows.astype(np.float32).std() < 1.1 and not np.array_equal(x.k_pool, x.v_pool)


@pytest.mark.parametrize(
    "tokens, features",
    [(1, Features()), (1, Features(softcap=2.0)), (3, Features()), (1, Features(window=(9, 0)))],
)
def test_the_truth_of_heads_is_that_of_the_whole(tokens, features, rng):
    x = contiguous(rng, [20, 50], 6, 2, tokens=tokens, head_dim=64, causal=True, features=features)
    sinks = x.but(features=Features(sinks=rng.standard_normal(6).astype(np.float32)))
    for each in (x, sinks):
        right = DECODE.reference(each)
        found = truth(DECODE, each, rng)
        assert found.chosen == [(0, 0), (0, 1), (1, 0), (1, 1)]
        for part in found.parts:
            for name in ("out", "allowed", "lse", "lse_allowed"):
                whole = part.of(OUT, getattr(right, name))
                np.testing.assert_allclose(getattr(part.reference, name), whole, rtol=2e-2, atol=1e-12)
        answer = {"out": right.out.astype(np.float16), "lse": right.lse.astype(np.float32)}
        assert found.judge([answer])["right"]


@pytest.mark.long
@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda element: element.name)
def test_zeros_are_no_answer_to_many_keys(element, rng):
    """They are within the bound of each element, but not of all outputs together."""
    x = contiguous(rng, [120_000], 2, 1, head_dim=64, element=element)
    found = truth(DECODE, x, rng)
    assert all((np.abs(part.reference.out) <= part.reference.allowed).mean() > 0.9 for part in found.parts)
    right = DECODE.reference(x).out
    assert found.judge([{"out": element.round(right)}])["right"]
    for wrong in (0 * right, 1.05 * right, np.roll(right, 1, axis=1)):
        judged = found.judge([{"out": element.round(wrong)}])
        assert not judged["right"] and ("relative" in judged["reason"] or judged["margin"] < 1)
