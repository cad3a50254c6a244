import doctest

import pytest

from flashcore_numba.predict import occupancy as module
from flashcore_numba.predict.occupancy import Occupancy, occupancy


def test_the_docstrings_examples():
    failed, tried = doctest.testmod(module)
    assert (failed, tried) == (0, 2)


@pytest.mark.parametrize(
    ("capability", "kernel", "expected"),
    [
        ((8, 9), (1024, 32, 0), Occupancy(1, 32, 32 / 48, "warps")),
        ((9, 0), (1024, 32, 0), Occupancy(2, 64, 1.0, "registers")),
        ((9, 0), (32, 16, 0), Occupancy(32, 32, 0.5, "blocks")),
        ((8, 6), (32, 16, 0), Occupancy(16, 16, 16 / 48, "blocks")),
        # 100 KiB of an SM hold one block of 99, because each block costs 1 KiB more.
        ((8, 9), (128, 64, 99 * 1024), Occupancy(1, 4, 4 / 48, "shared memory")),
        ((8, 9), (128, 64, 100 * 1024), Occupancy(0, 0, 0.0, "shared memory")),
        # 255 registers a thread, given out by 8: 2 warps in each quarter of the register file.
        ((8, 0), (128, 255, 0), Occupancy(2, 8, 8 / 64, "registers")),
        ((8, 0), (256, 65, 0), Occupancy(3, 24, 24 / 64, "registers")),
    ],
)
def test_hand_computed(capability, kernel, expected):
    assert occupancy(capability, *kernel) == expected


def test_an_unknown_gpu_has_none():
    assert occupancy((99, 0), 128, 32, 0) is None
