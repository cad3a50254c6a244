"""The copy engine's boxes begin at any element: what lies outside the tensor is zero, and is not stored."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference import TensorMap, load, source

HERE = Path(__file__).resolve().parent
COLUMNS = (-17, -16, -15, -5, -4, -3, -1, 0, 1, 7, 8, 13, 23, 24)
ROWS, WIDTH, BOX = 8, 24, (4, 16)
SOURCE = source("tensor_edges", "move_box", folder=HERE)


def padded(x, row, column):
    """x among zeros, and the part of them that a box there covers."""
    field = np.pad(x, ((0, 4), (32, 32)))
    return field, field[row : row + 4, 32 + column : 48 + column]


def expected(x, y, column):
    """What a load from x puts into shared memory, and y after a store of 1, 2, ..."""
    field, covered = padded(y, 2, column)
    covered[:] = np.arange(1, 65).reshape(BOX)
    return padded(x, 1, column)[1], field[:ROWS, 32 : 32 + WIDTH]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_box_may_begin_outside(column, rng):
    x, y = rng.standard_normal((2, ROWS, WIDTH)).astype(np.float32)
    seen, (right, after) = np.zeros(BOX, np.float32), expected(x, y, column)
    maps = TensorMap(x, BOX, 0), TensorMap(y, BOX, 0)
    launch = load(SOURCE, "cpu")((1,), (32,), (*maps, seen, np.int32(column), np.int32(column)))
    assert not launch.problems, launch
    np.testing.assert_array_equal(seen, right)
    np.testing.assert_array_equal(y, after)


@pytest.mark.gpu
@pytest.mark.parametrize("column", COLUMNS)
def test_a_gpu_does_the_same(column, rng):
    import cupy

    x, y = rng.standard_normal((2, ROWS, WIDTH)).astype(np.float32)
    right, after = expected(x, y, column)
    from_gpu, to_gpu, seen = cupy.asarray(x), cupy.asarray(y), cupy.zeros(BOX, cupy.float32)
    maps = TensorMap(from_gpu, BOX, 0), TensorMap(to_gpu, BOX, 0)
    load(SOURCE, "gpu")((1,), (32,), (*maps, seen, np.int32(column), np.int32(column)))
    np.testing.assert_array_equal(seen.get(), right)
    np.testing.assert_array_equal(to_gpu.get(), after)
