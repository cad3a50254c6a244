"""Bytes and scales: those of NumPy to the bit, and what they stand for is what was given."""

import numpy as np
import pytest

from flashcore_numba.branches.fp8.fp8_wgmma import STAGE
from flashcore_numba.branches.fp8.quantise import TILE, Quantised, quantise
from flashcore_numba.branches.fp8.twin import (
    LEAST_EXPONENT,
    OF_ZEROS,
    ORDER,
    dequantised,
    e4m3,
    exponents_for,
    quantised,
    signs,
    transformed,
)
from flashcore_numba.checks.cases import LARGEST_V, normal
from flashcore_numba.core.element import E4M3, FLOAT16
from flashcore_numba.run.executor import Simulator

KINDS = [(d, element) for d in STAGE.head_dims for element in STAGE.elements]


def of_many_sizes(rng, d, element):
    """Rows whose sizes differ by powers of 2, some of them zeros, [B, H, S, D] as views of [B, S, H, D]."""
    x = normal(rng, 2, 4, 70, int(rng.integers(129, 300)), d, 2, element=element)
    rows = {}
    for name in "qkv":
        array = getattr(x, name).astype(np.float32)
        size = 2.0 ** rng.integers(-14, 6, (*array.shape[:3], 1)) * (rng.random((*array.shape[:3], 1)) < 0.9)
        array = element.round(array * size)
        rows[name] = np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
    return x.but(**rows)


@pytest.mark.long
@pytest.mark.parametrize(("d", "element"), KINDS, ids=str)
def test_the_twin_has_the_same_bits(d, element, rng):
    x = of_many_sizes(rng, d, element)
    for scale in (0.3, -0.3, 0.0):
        executor = Simulator()
        found = quantise(x.but(scale=scale).problem(x.arrays), executor)
        executor.check()
        right = quantised(x.q, x.k, x.v, float(np.sign(scale)))
        for name, one, other in zip(Quantised._fields, found, right, strict=True):
            bits = f"u{other.itemsize}"
            assert np.array_equal(np.asarray(one).view(bits), other.view(bits)), (name, scale, x.label)


@pytest.mark.parametrize("d", STAGE.head_dims)
def test_bytes_stand_for_what_was_given(d, rng):
    """Q K^T up to what 3 bits of mantissa lose, with the transform and its D; V in its own order."""
    x = of_many_sizes(rng, d, FLOAT16)
    keys = x.k.shape[2]
    found = dequantised(quantised(x.q, x.k, x.v, -1.0), keys, -0.3)
    q, k, v = (getattr(x, name).astype(np.float64) for name in "qkv")
    for heads, group in ((found.q, 2), (found.k, 1)):
        given = q if group == 2 else k
        rotated = transformed(given.astype(np.float32)).astype(np.float64) * (-0.3 / d if group == 2 else 1)
        tile_largest = np.abs(rotated).max(axis=(2, 3), keepdims=True)
        largest = np.abs(rotated).max(axis=3, keepdims=True) if group == 2 else tile_largest
        assert (np.abs(heads - rotated) <= 2.0**-4 * np.abs(rotated) + 2.0**-10 * largest / 448 + 1e-12).all()
    scores, right = found.q[0, 3] @ found.k[0, 1].T, -0.3 * q[0, 3] @ k[0, 1].T
    # Beside products of random signs: a score may be small where its row and its key are large.
    size = 0.3 * np.linalg.norm(q[0, 3]) * np.linalg.norm(k[0, 1]) / np.sqrt(d)
    assert np.linalg.norm(scores - right) < 0.06 * size
    assert (np.abs(found.v - v) <= 2.0**-4 * np.abs(v) + 2.0**-10 * np.exp2(found.exponents)[..., None]).all()
    assert found.exponents.shape == (*v.shape[:2], keys)


@pytest.mark.parametrize("d", STAGE.head_dims)
def test_the_transform_turns_and_scales(d, rng):
    x, y = rng.standard_normal((2, 3, d)).astype(np.float32)
    product = transformed(x).astype(np.float64) @ transformed(y).astype(np.float64).T
    assert np.allclose(product, d * (x.astype(np.float64) @ y.astype(np.float64).T), atol=1e-3)
    one = np.zeros(d, np.float32)
    one[rng.integers(d)] = 10
    assert (np.abs(transformed(one)) == 10).all()  # an outlier is everywhere
    assert 0.3 < (signs(d) > 0).mean() < 0.7


def test_exponents_are_the_least_that_serve(rng):
    values = np.concatenate(
        [rng.uniform(0, 1e6, 500), 448 * 2.0 ** np.arange(-20, 20), [65504, 2.0**-24, 3.3e38, 449, 447.9]]
    ).astype(np.float32)
    found = exponents_for(values).astype(np.float64)
    assert (values <= 448 * 2.0**found).all() and (values > 448 * 2.0 ** (found - 1)).all()
    assert exponents_for(np.float32([0, 1e-38])).tolist() == [OF_ZEROS, LEAST_EXPONENT]


@pytest.mark.parametrize("d", STAGE.head_dims)
def test_a_tile_of_v_with_an_infinity_is_nan(d, rng):
    """448 in its place would look like a number, and so would what is left of the others."""
    x = normal(rng, 1, 1, 3, 300, d)
    v = x.v.copy()
    v[0, 0, int(rng.integers(128, 256)), int(rng.integers(d))] = rng.choice([-np.inf, np.inf])
    x = x.but(v=v)
    executor = Simulator()
    found = quantise(x.problem(x.arrays), executor)
    executor.check()
    for each in (found, quantised(x.q, x.k, v)):
        bytes_ = np.asarray(each.v).view(E4M3.dtype).astype(np.float32)
        assert np.isnan(bytes_[..., 128:256]).all()
        assert np.isfinite(np.delete(bytes_, np.s_[128:256], axis=3)).all()
    assert np.array_equal(np.asarray(found.v_exponents), quantised(x.q, x.k, v).v_exponents)


def test_numbers_are_saturated():
    given = np.float32([448, 470, 1e9, -1e9, 2.0**-10, 3 * 2.0**-11, np.nan])
    found = e4m3(given).astype(np.float32)
    assert found[:6].tolist() == [448, 448, 448, -448, 0, 2.0**-9] and np.isnan(found[6])


def test_four_scores_of_a_lane_are_four_bytes():
    """Lane t has columns 2t and 2t + 1 of each 8 of S, and bytes 4t to 4t + 3 of each 16 of P."""
    for t in range(4):
        assert list(ORDER[4 * t : 4 * t + 4]) == [2 * t, 2 * t + 1, 8 + 2 * t, 9 + 2 * t]
    assert sorted(ORDER) == list(range(16)) and TILE % len(ORDER) == 0


def test_the_ends_of_the_types(rng):
    """The largest numbers are 448 in bytes, and nothing overflows on the way."""
    for element in STAGE.elements:
        x = normal(rng, 1, 1, 3, 5, 64, element=element)
        v = element.round(rng.choice([-1.0, 1.0], x.v.shape) * LARGEST_V[element])
        found = quantised(x.q, x.k, v)
        assert np.abs(found.v.astype(np.float32)).max() > E4M3.largest / 2
        assert np.isfinite(dequantised(found, 5, 1.0).v).all()
