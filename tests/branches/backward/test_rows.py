"""Before and after the backward pass's main kernel: D, LSE in units of log2, and dQ from its sums."""

import numpy as np
import pytest

from flashcore_numba import Problem
from flashcore_numba.branches.backward import parts
from flashcore_numba.branches.backward.problem import BackwardProblem
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import Features
from flashcore_numba.run.executor import Simulator

from .running import WithMacros

DIMS = [(64, 64), (128, 128), (192, 128), (32, 80), (256, 256)]


def strided(x, order):
    """The same numbers, with the first three axes in another order in memory."""
    return np.ascontiguousarray(x.transpose(*order, 3)).transpose(*np.argsort(order), 3)


def problem(rng, rows, head_dim=64, value_dim=None, element=FLOAT16, batch=2, dlse=True, features=None):
    value_dim = value_dim or head_dim
    q, out, dout = (
        rng.standard_normal((batch, 4, rows, d)).astype(element.dtype)
        for d in (head_dim, value_dim, value_dim)
    )
    k, v = (rng.standard_normal((batch, 2, 70, d)).astype(element.dtype) for d in (head_dim, value_dim))
    lse, grad = rng.standard_normal((2, batch, 4, rows)).astype(np.float32)
    lse[:, :, 1::3] = -np.inf
    forward = Problem(q, k, v, scale=-0.3, features=features or Features())
    return BackwardProblem(
        forward, strided(out, (2, 0, 1)), lse, strided(dout, (1, 2, 0)), grad if dlse else None
    )


def places(p):
    """Batch, rows in the arrays, and rows in the padded arrays, of each sequence, tails included."""
    for each in p.sequences:
        length = each.rows.stop - each.rows.start
        first = (each.rows.start // 128 + each.number) * 128 if p.features.ragged else 0
        yield (
            each.batch,
            each.rows,
            slice(first, first + length),
            slice(first, first + -(-length // 128) * 128),
        )


def prepared(p):
    executor = Simulator()
    rows = parts.prepare(p, executor)
    executor.check()
    assert rows.lse2.shape[2] == parts.padded_rows(p)
    return rows


def check_prepared(p):
    rows = prepared(p)
    product = p.out.astype(np.float64) * p.dout.astype(np.float64)
    expected = product.sum(-1) - (0 if p.dlse is None else p.dlse)
    bound = 2.0**-20 * (np.abs(product).sum(-1) + (0 if p.dlse is None else np.abs(p.dlse)))
    empty = p.lse == -np.inf
    expected[empty] = 0
    lse2 = np.where(empty, np.inf, p.lse * np.log2(np.e))
    for batch, inside, padded, whole in places(p):
        found = rows.delta[batch, :, padded]
        assert (np.abs(found - expected[batch, :, inside]) <= bound[batch, :, inside]).all()
        np.testing.assert_allclose(rows.lse2[batch, :, padded], lse2[batch, :, inside], rtol=2e-7)
        tail = slice(padded.stop, whole.stop)
        assert (rows.lse2[batch, :, tail] == np.inf).all()
        assert (rows.delta[batch, :, tail] == 0).all()
        assert (rows.dq_sum[batch, :, whole.start // 64 : whole.stop // 64] == 0).all()


@pytest.mark.parametrize(("head_dim", "value_dim"), DIMS)
def test_rows_are_prepared(head_dim, value_dim, rng):
    element = (FLOAT16, BFLOAT16)[rng.integers(2)]
    check_prepared(problem(rng, int(rng.integers(1, 300)), head_dim, value_dim, element))


def test_without_the_gradient_of_the_lse(rng):
    check_prepared(problem(rng, 129, dlse=False))


def packed(rng):
    """Sequences of which the first, one in the middle and the last are empty; others end anywhere."""
    lengths = np.array([0, *rng.integers(1, 300, 2), 0, 128, 1, 0])
    bounds = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    keys = np.linspace(0, 70, len(bounds)).astype(np.int32)
    features = Features(cu_seqlens_q=bounds, cu_seqlens_k=keys)
    return problem(rng, int(bounds[-1]), batch=1, features=features)


@pytest.mark.long
def test_packed_sequences_are_prepared(rng):
    check_prepared(packed(rng))


def to_sums(p, dq, quads=True):
    """dQ [B, H, S_q, D] in the order of the sums: on sm_90 and newer, where a lane adds four at once, or
    before.
    """
    head_dim = p.head_dim
    rows = np.full((p.batch, p.heads, parts.padded_rows(p), head_dim), np.nan, np.float32)
    for batch, inside, padded, _ in places(p):
        rows[batch, :, padded] = dq[batch, :, inside]
    tiles = rows.reshape(p.batch, p.heads, -1, 4, 2, 8, head_dim // 8, 4, 2)  # warp, half, g | j, t, column
    order = (0, 1, 2, 6, 3, *((5, 7, 4, 8) if quads else (4, 8, 5, 7)))
    return np.ascontiguousarray(tiles.transpose(order).reshape(p.batch, p.heads, -1, head_dim // 8, 128, 4))


def check_finished(p, rng, arch=900):
    dq = rng.standard_normal(p.q.shape).astype(np.float32)
    found = strided(np.full(p.q.shape, np.nan, p.q.dtype), (0, 2, 1))
    executor = WithMacros(("PTX_ARCH", arch))
    parts.finish(p, to_sums(p, dq, arch >= 900), found, executor)
    executor.check()
    assert executor.launches[0].totals()["global_store_bytes_moved"] == found.nbytes
    np.testing.assert_array_equal(found, (dq * np.float32(p.scale)).astype(p.q.dtype))


@pytest.mark.parametrize(("head_dim", "value_dim"), DIMS)
def test_gradients_are_finished(head_dim, value_dim, rng):
    element = (FLOAT16, BFLOAT16)[rng.integers(2)]
    check_finished(problem(rng, int(rng.integers(1, 300)), head_dim, value_dim, element), rng)


@pytest.mark.long
def test_packed_gradients_are_finished(rng):
    check_finished(packed(rng), rng)


def test_gradients_of_an_older_gpu_are_finished(rng):
    check_finished(problem(rng, 100), rng, arch=800)
