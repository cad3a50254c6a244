"""Philox in NumPy against known answers and another implementation, and the layout of the mask."""

import numpy as np
import pytest

from flashcore_numba import ArgumentError, dropout_mask
from flashcore_numba.branches.dropout.dropout import OFFSETS, SEEDS, Dropout
from flashcore_numba.branches.dropout.inputs import drawn
from flashcore_numba.branches.dropout.philox import philox, uniforms
from flashcore_numba.branches.dropout.properties import neighbours_margin, options, share_margin

ALL = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
KNOWN = [  # counter, key, rounds, drawn: kat_vectors of Random123 (Salmon et al. 2011)
    ((0, 0, 0, 0), (0, 0), 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ((0, 0, 0, 0), (0, 0), 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ALL,) * 4, (ALL, ALL), 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (*PI, 10, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "rounds", "known"), KNOWN, ids=str)
def test_known_answers(counter, key, rounds, known):
    found = philox(np.array(counter, np.uint32), key, rounds)
    assert " ".join(f"{word:08x}" for word in found) == known


def rounds_of_others(counter, key):
    """Philox4x32-10 in Python's integers, a word at a time."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & ALL, a >> 32 ^ c[3] ^ k[1], a & ALL]
        k = [(k[0] + 0x9E3779B9) & ALL, (k[1] + 0xBB67AE85) & ALL]
    return c


def test_the_layout_that_the_page_describes(rng):
    """docs/dropout.md, an element at a time."""
    for _ in range(200):
        dropout = drawn(rng, float(rng.uniform(0.1, 0.9)))
        batch, head, row, key = (int(n) for n in rng.integers(0, (65535, 65535, 1 << 30, 1 << 30)))
        counter = dropout.offset // 4, row // 16 * 8 + row % 8, key // 32 * 8 + key % 8, batch << 16 | head
        word = rounds_of_others(counter, (dropout.seed & ALL, dropout.seed >> 32))[key // 8 % 4]
        bits = word >> 16 if row // 8 % 2 else word & 0xFFFF
        rows, keys = range(row, row + 1), range(key, key + 1)
        assert uniforms(dropout.seed, dropout.offset, batch, head, rows, keys).item() == bits
        assert dropout.kept(batch, head, rows, keys).item() == (bits >= round(dropout.p * 65536))


def test_a_part_of_a_mask_is_the_part(rng):
    dropout = drawn(rng, 0.4)
    whole = dropout_mask((2, 3, 100, 130), **options(dropout))
    assert np.array_equal(dropout_mask((1, 2, 70, 40), **options(dropout)), whole[:1, :2, :70, :40])
    assert np.array_equal(dropout.kept(1, 2, range(17, 90), range(33, 130)), whole[1, 2, 17:90, 33:])


def test_shares_and_neighbours(rng):
    """More of them than of a kernel: 2^21 elements, by batch, head, row and key."""
    shape = (4, 8, 256, 256)
    for p in (0.1, 0.5, 0.9):
        dropout = drawn(rng, p)
        mask = dropout_mask(shape, **options(dropout))
        assert share_margin(mask, 1 - dropout.steps / 65536) > 1
        assert p != 0.5 or neighbours_margin(mask) > 1


def test_all_values_of_16_bits_come(rng):
    """Chi-square of 2^20 uniforms over 256 values of either byte: 255 degrees of freedom."""
    dropout = drawn(rng, 0.5)
    bits = uniforms(dropout.seed, dropout.offset, 0, 0, range(1024), range(1024)).ravel()
    for byte in (bits & 255, bits >> 8):
        counts = np.bincount(byte, minlength=256)
        expected = bits.size / 256
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi - 255) < 6 * np.sqrt(2 * 255)


def test_many_seeds_and_offsets_agree_as_independent_masks_do(rng):
    """One element of the same place under 1024 neighbouring seeds, and under as many offsets."""
    at = range(3, 4), range(5, 6)
    base = drawn(rng, 0.5)
    for vary in ("seed", "offset"):
        kept = np.array(
            [
                Dropout(
                    0.5,
                    (base.seed + i * (vary == "seed")) % SEEDS,
                    (base.offset + 4 * i * (vary == "offset")) % OFFSETS,
                )
                .kept(0, 0, *at)
                .item()
                for i in range(1024)
            ]
        )
        for share in (kept.mean(), (kept[1:] == kept[:-1]).mean()):
            assert abs(share - 0.5) < 5.5 * 0.5 / 32


def test_p_is_rounded():
    assert Dropout(0.1).steps == 6554 and Dropout(0.1).factor == 65536 / (65536 - 6554)
    assert Dropout(2.0**-18).steps == 0 and not Dropout(2.0**-18).on
    assert Dropout(np.nextafter(1, 0)).steps == 65535 and Dropout(np.float32(0.5)).steps == 32768
    assert dropout_mask((1, 1, 3, 5), p=0, seed=7).all()


BAD = [
    ({"p": 1}, "p is 1: it must be a number from 0 up to, but not, 1"),
    ({"p": -0.1}, "p is -0.1"),
    ({"p": float("nan")}, "p is nan"),
    ({"p": True}, "p is True"),
    ({"p": "0.1"}, "p is '0.1'"),
    ({"p": 10**400}, "p is an integer of 401 digits"),
    ({"seed": -1}, r"seed is -1: it must be a whole number from 0 to 2\^64 - 1"),
    ({"seed": 1 << 64}, "seed is 18446744073709551616"),
    ({"seed": 1.0}, "seed is 1.0"),
    ({"offset": 2}, r"offset is 2: it must be a whole number from 0 to 2\^34 - 4, a multiple of 4"),
    ({"offset": 1 << 34}, "offset is 17179869184"),
    ({"shape": (1, 2, 3)}, r"shape is \(1, 2, 3\): it must be \(B, H, S_q, S_k\)"),
    ({"shape": (1, 0, 3, 4)}, r"shape is \(1, 0, 3, 4\)"),
    ({"shape": 5}, "shape is 5"),
    ({"shape": (1, 1, 2.9, 3)}, r"shape is \(1, 1, 2.9, 3\)"),
    ({"shape": (1, 1, float("inf"), 3)}, r"shape is \(1, 1, inf, 3\)"),
    ({"shape": "1123"}, "shape is '1123'"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_arguments(wrong, message):
    given = {"shape": (1, 1, 2, 2), "p": 0.1, "seed": 0, "offset": 0} | wrong
    with pytest.raises(ArgumentError, match=message):
        dropout_mask(given.pop("shape"), **given)


def test_the_largest_addresses_have_places_of_their_own():
    """Batch and head fill one word, and no carry of one reaches the other."""
    one = uniforms(1, 0, 1, 0, range(64), range(64))
    other = uniforms(1, 0, 0, 65535, range(64), range(64))
    assert (one == other).mean() < 0.01
