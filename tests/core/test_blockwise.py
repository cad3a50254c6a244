"""Attention in float32 by blocks is attention in float64, to rounding."""

import threading

import numpy as np
import pytest

from flashcore_numba.core import blockwise, oracle
from flashcore_numba.core.element import BFLOAT16, FLOAT16
from flashcore_numba.core.features import OFF, Features
from flashcore_numba.core.shapes import Shape, parse_any
from flashcore_numba.core.workload import Workload, options

FEATURES = (
    "none",
    "window=9,2",
    "window=33,-1",
    "window=-1,0",
    "softcap=3 sinks alibi_slopes seqused_k",
    "head_norm gate",
)


def agree(q, k, v, causal=False, scale=None, features=OFF):
    out, lse = blockwise.attention(q, k, v, causal, scale, features)
    right_out, right_lse = oracle.attention(q, k, v, causal, scale, features=features)
    assert (out.dtype, lse.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(out, right_out, atol=1e-5)  # float32: some hundred roundings of values near 1
    np.testing.assert_allclose(lse, right_lse, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("element", [FLOAT16, BFLOAT16], ids=lambda each: each.name)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("words", FEATURES)
@pytest.mark.parametrize("shape", ["2x4/2x150x64/32", "4x4/1x1-90x128"])
def test_it_is_attention(shape, words, causal, element, rng):
    workload = Workload(parse_any(shape), causal, element, **options(words))
    drawn, *_ = workload.drawn_with(int(rng.integers(99)))
    agree(*drawn.arrays.inputs(rng, element), causal, features=drawn.features(rng))


@pytest.mark.parametrize("lengths", [(130, 70), (70, 130), (1, 300), (300, 1)])
def test_rows_without_keys_and_keys_without_rows(lengths, rng):
    """Causal with more rows than keys leaves the first rows with none: 0, and -inf or the sink."""
    rows, keys = lengths
    q = rng.standard_normal((1, 2, rows, 64))
    k, v = rng.standard_normal((2, 1, 2, keys, 64))
    agree(q, k, v, True)
    agree(q, k, v, True, scale=-0.3)
    agree(q, k, v, True, features=Features(sinks=np.float32([0.5, -2])))
    agree(q, k, v, features=Features((3, 1)))


def test_an_empty_batch_of_sequences(rng):
    bounds = np.int32([0, 0, 0])
    q = np.zeros((1, 2, 3, 64), np.float16)
    out, lse = blockwise.attention(q, q, q, features=Features(cu_seqlens_q=bounds, cu_seqlens_k=bounds))
    assert not out.any() and np.isneginf(lse).all()


def test_large_scores_do_not_overflow(rng):
    q, k, v = (30 * x for x in Shape(1, 1, 80, 64).inputs(rng))
    out, lse = blockwise.attention(q, k, v)
    right, right_lse = oracle.attention(q, k, v)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(lse, right_lse, rtol=1e-6)
    np.testing.assert_allclose(out, right, atol=0.2)  # a score of thousands is right to a few 1e-4


def test_blocks_run_in_threads_and_what_one_raises_is_raised(rng, monkeypatch):
    seen = set()

    class NumPy:
        def __getattr__(self, name):
            return noted if name == "tanh" else getattr(np, name)

    def noted(x, *args, **options):
        seen.add(threading.current_thread())
        return np.tanh(x, *args, **options)

    monkeypatch.setattr(blockwise, "np", NumPy())
    q, k, v = Shape(2, 4, 400, 64).inputs(rng)
    blockwise.attention(q, k, v, features=Features(softcap=2.0))
    assert threading.main_thread() not in seen and seen

    monkeypatch.setattr(blockwise, "_blocks", lambda *args: [None])
    with pytest.raises(AttributeError):
        blockwise.attention(q, k, v)
