import doctest

import pytest

from flashcore_numba.core import gpu, multiprocessors
from flashcore_numba.core.multiprocessors import MULTIPROCESSORS, shared_limit


def test_the_docstrings_examples():
    assert doctest.testmod(multiprocessors) == (0, 1)


def test_what_a_block_may_have():
    """CUDA C++ Programming Guide, "Compute Capabilities": maximum shared memory per thread block."""
    kib = {
        (7, 0): 96,
        (7, 5): 64,
        (8, 0): 163,
        (8, 6): 99,
        (8, 9): 99,
        (9, 0): 227,
        (10, 0): 227,
        (12, 0): 99,
    }
    assert {each: shared_limit(each) for each in MULTIPROCESSORS} == {
        each: 1024 * size for each, size in kib.items()
    }


@pytest.mark.parametrize(("newer", "like"), [((8, 7), (8, 6)), ((10, 3), (10, 0)), ((12, 1), (12, 0))])
def test_an_unknown_gpu_is_taken_for_the_last_one_before_it(newer, like):
    assert shared_limit(newer) == shared_limit(like)


def test_a_device_that_is_not_there_has_none():
    assert gpu.shared_limit(1000) == 0


@pytest.mark.gpu
def test_the_driver_says_the_same():
    assert gpu.shared_limit() == shared_limit(gpu.compute_capability())
