"""Scratch memory from one CUDA C launch to the next: what nobody wrote may not be read, by any of them."""

import numpy as np
import pytest

from cuda_reference import source
from flashcore_numba.run.executor import Simulator

KERNELS = """
extern "C" __global__ void writes(float* to, int count, int stride) {
    if (threadIdx.x < count) to[threadIdx.x * stride] = threadIdx.x;
}
extern "C" __global__ void reads(float* out, const float* from, int index) {
    if (threadIdx.x == 0) out[0] = from[index];
}
extern "C" __global__ void copies(float* to, const float* from) {
    to[2 * threadIdx.x] = from[2 * threadIdx.x];
}
extern "C" __global__ void writes_bytes(unsigned char* to) {
    to[2 * threadIdx.x] = 1;
}
extern "C" __global__ void reads_bytes(float* out, const unsigned char* from, int index) {
    if (threadIdx.x == 0) out[0] = from[index];
}
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scratch")
    (folder / "scratch.cu").write_text(KERNELS)
    return lambda entry: source("scratch", entry, folder=folder)


def found(executor):
    """The kinds of what the last launch reported; nothing was wrong before."""
    for launch in executor.launches[:-1]:
        launch.check()
    return [problem.kind for problem in executor.launches[-1].problems]


@pytest.mark.parametrize(
    ("index", "kinds"), [(99, ["uninitialised read"]), (64, ["uninitialised read"]), (63, [])]
)
def test_half_a_scratch_array_is_not_all_of_it(kernel, index, kinds):
    executor = Simulator()
    partial, out = executor.empty((2, 64), np.float32), np.zeros(1, np.float32)
    executor.launch(kernel("writes"), 1, 128, partial, np.int32(64), np.int32(1))
    executor.launch(kernel("reads"), 1, 128, out, partial, np.int32(index))
    assert found(executor) == kinds
    assert out[0] == 63 or kinds


def test_a_second_launch_adds_to_what_was_written(kernel):
    executor = Simulator()
    partial, out = executor.empty((2, 64), np.float32), np.zeros(1, np.float32)
    for half in partial:
        executor.launch(kernel("writes"), 1, 128, half, np.int32(64), np.int32(1))
    assert partial.written().all()
    executor.launch(kernel("reads"), 1, 128, out, partial, np.int32(99))
    assert found(executor) == []


@pytest.mark.parametrize(("index", "kinds"), [(2, []), (3, ["uninitialised read"])])
def test_what_lies_between_written_elements_is_not_written(kernel, index, kinds):
    executor = Simulator()
    partial, out = executor.empty((128,), np.float32), np.zeros(1, np.float32)
    executor.launch(kernel("writes"), 1, 128, partial, np.int32(64), np.int32(2))
    executor.launch(kernel("reads"), 1, 128, out, partial, np.int32(index))
    assert found(executor) == kinds


def test_columns_that_interleave_are_told_apart(kernel):
    executor = Simulator()
    pairs = executor.empty((64, 2), np.float32)
    pairs[:, 1] = 5
    executor.launch(kernel("copies"), 1, 64, pairs[:, 0], pairs[:, 1])
    assert found(executor) == []
    assert pairs.written().all()
    assert (pairs == 5).all()


@pytest.mark.parametrize(("index", "kinds"), [(2, []), (3, ["uninitialised read"])])
def test_bytes_are_told_apart(kernel, index, kinds):
    executor = Simulator()
    partial, out = executor.empty((128,), np.uint8), np.zeros(1, np.float32)
    executor.launch(kernel("writes_bytes"), 1, 64, partial)
    executor.launch(kernel("reads_bytes"), 1, 64, out, partial, np.int32(index))
    assert found(executor) == kinds


def test_without_checks_a_launch_counts_as_one_that_wrote_all(kernel):
    executor = Simulator(races=False)
    partial = executor.empty((128,), np.float32)
    executor.launch(kernel("writes"), 1, 128, partial, np.int32(64), np.int32(1))
    assert partial.written().all()


def test_what_a_stopped_launch_did_not_write_is_no_further_problem(kernel):
    executor = Simulator()
    partial, out = executor.empty((64,), np.float32), np.zeros(1, np.float32)
    executor.launch(kernel("writes"), 1, 128, partial, np.int32(128), np.int32(2))
    executor.launch(kernel("reads"), 1, 128, out, partial, np.int32(63))
    assert [problem.kind for problem in executor.launches[0].problems] == ["out of bounds"]
    assert not executor.launches[1].problems
