"""merge(): two parts of the keys are the whole, on the host and by the kernel of a GPU."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba import ArgumentError, attention, attention_paged, merge
from flashcore_numba.branches.decode.inputs import paged
from flashcore_numba.branches.decode.ladder import LADDER
from flashcore_numba.branches.decode.merging import divisor, launch
from flashcore_numba.core import oracle
from flashcore_numba.core.element import ACCEPTED, FLOAT16
from flashcore_numba.run.executor import Simulator


def parts(rng, element, heads=3, rows=5, dim=64):
    """Two parts, in which some rows see no key, and the float64 answer to merging what is given."""
    shape = (2, heads, rows, dim)
    outs = [element.round(rng.standard_normal(shape)) for _ in range(2)]
    lses = [(5 * rng.standard_normal(shape[:3])).astype(np.float32) for _ in range(2)]
    lses[0][0, 0], lses[1][1, 1], outs[0][0, 0], outs[1][1, 1] = -np.inf, -np.inf, 0, 0
    lses[0][:, 2, 0] = lses[1][:, 2, 0] = -np.inf
    outs[0][:, 2, 0] = outs[1][:, 2, 0] = 0
    exact = [x.astype(np.float64) for x in lses]
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(exact[0]) + np.exp(exact[1]))
    safe = np.where(np.isneginf(lse), 0, lse)
    out = sum(np.exp(x - safe)[..., None] * y.astype(np.float64) for x, y in zip(exact, outs, strict=True))
    return outs, lses, out, lse


def assert_close(element, out, lse, right, right_lse):
    allowed = 2 * element.unit_roundoff * np.abs(right) + 1e-6
    assert (np.abs(out.astype(np.float64) - right) <= allowed).all()
    assert np.array_equal(np.isneginf(lse), np.isneginf(right_lse)) and np.isneginf(lse).sum() == 2
    some = np.isfinite(right_lse)
    assert np.allclose(lse[some], right_lse[some], rtol=0, atol=1e-5)


@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_on_the_host(element, rng):
    outs, lses, *right = parts(rng, element)
    out, lse = merge(outs[0], lses[0], outs[1], lses[1])
    assert out.dtype == element.dtype and lse.dtype == np.float32
    assert_close(element, out, lse, *right)
    again, lse_again = merge(outs[1], lses[1], outs[0], lses[0])
    assert np.array_equal(again, out) and np.array_equal(lse_again, lse)


def launched(a, lse_a, b, lse_b):
    """What the kernel makes of them on the CPU executor, in outputs that held NaN."""
    out, lse = np.full(a.shape, np.nan, a.dtype), np.full_like(lse_a, np.nan)
    executor = Simulator()
    launch(a, lse_a, b, lse_b, out, lse, executor)
    executor.check()
    return out, lse


@pytest.mark.parametrize(
    ("heads", "rows", "dim"),
    few([(3, 70, 64), (3, 70, 80), (3, 70, 256), (19, 1, 128)], (3, 70, 80), (19, 1, 128)),
)
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_the_kernel_of_a_gpu(element, heads, rows, dim, rng):
    """With rows far apart."""
    outs, lses, *right = parts(rng, element, heads, rows, dim)
    spread = np.zeros((2, rows, heads, dim + 8), element.dtype)[..., :dim].swapaxes(1, 2)
    spread[...] = outs[0]
    assert_close(element, *launched(spread, lses[0], outs[1], lses[1]), *right)


@pytest.mark.parametrize("on", ["the host", "a GPU"])
@pytest.mark.parametrize("held", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_what_a_part_without_keys_holds_does_not_matter(element, held, on, rng):
    outs, lses, *right = parts(rng, element)
    for out, lse in zip(outs, lses, strict=True):
        assert np.isneginf(lse).any()
        out[np.isneginf(lse)] = held
    run = merge if on == "the host" else launched
    assert_close(element, *run(outs[0], lses[0], outs[1], lses[1]), *right)


@pytest.mark.parametrize("on", ["the host", "a GPU"])
def test_a_nan_in_either_lse_is_one_in_out_and_lse(on, rng):
    run = merge if on == "the host" else launched
    outs = [FLOAT16.round(rng.standard_normal((1, 1, 4, 64))) for _ in range(2)]
    lses = [np.array([[x]], np.float32) for x in ([np.nan, np.nan, 0.5, 0.5], [0.5, -np.inf, np.nan, 0.5])]
    for order in (slice(None), slice(None, None, -1)):
        (a, b), (lse_a, lse_b) = outs[order], lses[order]
        out, lse = run(a, lse_a, b, lse_b)
        assert np.isnan(lse).tolist() == [[[True, True, True, False]]]
        assert np.isnan(out[..., :3, :]).all() and np.isfinite(out[..., 3, :]).all()


@pytest.mark.parametrize("element", ACCEPTED, ids=lambda element: element.name)
def test_the_kernel_makes_no_infinity_of_the_largest_numbers(element, rng):
    largest = np.full((1, 2, 3, 64), element.largest, element.dtype)
    lses = [rng.standard_normal((1, 2, 3)).astype(np.float32) for _ in range(2)]
    for each in lses[0], lses[1]:
        out, _ = launched(largest, lses[0], largest, each)
        assert np.array_equal(out, largest)


def test_the_kernel_divides_by_a_product(rng):
    whole = 1 << 31
    some = rng.integers(1, whole, 100)
    for d in map(int, [*range(1, 100), *(2**k + i for k in range(7, 31) for i in (-1, 0, 1)), *some]):
        _, inverse, shift = map(int, divisor(d))
        last = (whole - 1) // d * d
        for n in map(int, [0, d - 1, last - 1, last, whole - 1, *rng.integers(0, whole, 10)]):
            assert (2 * n * inverse >> 32) >> shift == n // d, (n, d)


def test_a_shared_prefix_and_the_rest(rng):
    """Two requests begin with the same 48 keys: attention() over those for both, attention_paged() after."""
    prefix, rest = 48, [20, 37]
    x = paged(rng, rest, 4, 2, 2)
    k, v = (FLOAT16.round(rng.standard_normal((1, 2, prefix, 64))) for _ in range(2))
    both = (2, 2, prefix, 64)
    first = attention(x.q, np.broadcast_to(k, both), np.broadcast_to(v, both), stage=5, return_lse=True)
    arrays = (x.q, x.k_pool, x.v_pool, x.block_table, x.lengths)
    second = attention_paged(*arrays, stage=LADDER[0], return_lse=True)
    out, lse = merge(*first, *second)
    for number in range(2):
        one = x.request(number)
        keys, values = np.concatenate([k, one.k], axis=2), np.concatenate([v, one.v], axis=2)
        right, right_lse = oracle.attention(one.q, keys, values, True)
        assert np.abs(out[number] - right[0]).max() < 3e-3
        assert np.abs(lse[number] - right_lse[0]).max() < 1e-4


def test_bad_parts(rng):
    outs, lses, *_ = parts(rng, FLOAT16)
    good = {"out_a": outs[0], "lse_a": lses[0], "out_b": outs[1], "lse_b": lses[1]}
    for changes, message in (
        ({"out_a": outs[0].astype(np.float32)}, "out_a has dtype float32"),
        ({"out_a": outs[0][0]}, "out_a has shape"),
        ({"out_b": outs[1][:1]}, "out_b has shape"),
        ({"lse_a": lses[0].astype(np.float64)}, "lse_a has dtype float64"),
        ({"lse_b": lses[1][:, :1]}, "lse_b has shape"),
        ({"lse_b": lses[1].swapaxes(0, 1).copy().swapaxes(0, 1)}, "lse_b has strides"),
        ({"lse_b": [1.0]}, "lse_b is of type list"),
    ):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            merge(**(good | changes))
