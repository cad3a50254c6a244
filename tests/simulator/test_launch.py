"""Launches that no GPU accepts, and what surrounds a launch."""

import re

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba.simulator import Launch, SimulationError, scratch, simulate
from flashcore_numba.wide import load4

from . import kernels as K


@cuda.jit
def fill(dst, value):
    i = cuda.grid(1)
    if i < dst.size:
        dst[i] = value


@cuda.jit
def big_static(dst):
    s = cuda.shared.array(13_000, float32)
    s[0] = dst[0]


@cuda.jit
def static_and_dynamic(dst):
    s = cuda.shared.array(4096, float32)
    s[0] = dst[0]


def vector(n=64):
    return np.zeros(n, np.float32)


BAD_LAUNCHES = {
    "grid: 0 is not one to three positive integers": lambda: simulate(fill, 0, 32, vector(), 1),
    "grid: (1, 2.5) is not": lambda: simulate(fill, (1, 2.5), 32, vector(), 1),
    "block: (1, 1, 1, 1) is not": lambda: simulate(fill, 1, (1, 1, 1, 1), vector(), 1),
    "block: (64, 32, 1) has 2048 threads": lambda: simulate(fill, 1, (64, 32), vector(), 1),
    "block: (1, 1, 128) has z = 128": lambda: simulate(fill, 1, (1, 1, 128), vector(), 1),
    "grid: (70000, 70000, 1) is too large": lambda: simulate(fill, (70_000, 70_000), 32, vector(), 1),
    "shared_bytes: '4' is not": lambda: simulate(fill, 1, 32, vector(), 1, shared_bytes="4"),
    "max_turns: 0 is not": lambda: simulate(fill, 1, 32, vector(), 1, max_turns=0),
    "count_blocks: [5] is no": lambda: simulate(fill, 1, 32, vector(), 1, count_blocks=[5]),
    "count_blocks: 'x' is no": lambda: simulate(fill, 1, 32, vector(), 1, count_blocks="x"),
    "shared_bytes: 300000 is not": lambda: simulate(fill, 1, 32, vector(), 1, shared_bytes=300_000),
    "order: 'sideways' is not": lambda: simulate(fill, 1, 32, vector(), 1, order="sideways"),
    "order: 'random' is not": lambda: simulate(fill, 1, 32, vector(), 1, order="random"),
    "fill(dst, value) takes 2 arguments, got 1": lambda: simulate(fill, 1, 32, vector()),
    "argument dst: list is neither": lambda: simulate(fill, 1, 32, [0.0], 1),
    "argument value: str is neither": lambda: simulate(fill, 1, 32, vector(), "1"),
    "argument dst: an array of object": lambda: simulate(fill, 1, 32, np.array([None]), 1),
    "argument dst: strides (-4,) are negative": lambda: simulate(fill, 1, 32, vector()[::-1], 1),
    "is not a function decorated with @cuda.jit": lambda: simulate(3, 1, 32),
    "s: 52000 bytes of static shared memory": lambda: simulate(big_static, 1, 32, vector()),
    "s: 16384 static and 220000 dynamic": lambda: simulate(
        static_and_dynamic, 1, 32, vector(), shared_bytes=220_000
    ),
}


@pytest.mark.parametrize("message", BAD_LAUNCHES)
def test_bad_launch_is_refused(message):
    with pytest.raises((ValueError, TypeError)) as caught:
        BAD_LAUNCHES[message]()
    assert message in str(caught.value)


def test_arguments_keep_their_values(rng):
    for value in (3, 2.5, np.float32(1.5), True, np.int64(7), np.float16(0.5)):
        dst = np.full(40, np.nan)
        simulate(fill, 2, 32, dst, value).check()
        np.testing.assert_array_equal(dst, np.full(40, float(value)))


def test_read_only_output_is_refused():
    dst = vector()
    dst.flags.writeable = False
    with pytest.raises(Exception, match="read-only"):
        simulate(fill, 1, 32, dst, 1)
    assert (dst == 0).all()


def test_same_call_same_result(rng):
    x, dst = rng.standard_normal(4097, dtype=np.float32), vector(4096)
    first, second = (simulate(K.copy_misaligned, 16, 256, x, dst, order="random:3") for _ in range(2))
    assert first.totals() == second.totals()
    assert str(first) == str(second)


@cuda.jit
def take_tickets(count, blocks):
    if cuda.threadIdx.x == 0:
        blocks[cuda.atomic.add(count, 0, 1)] = cuda.blockIdx.x


def test_orders_are_orders_of_blocks_too():
    def begun(order):
        blocks = np.zeros(8, np.int64)
        simulate(take_tickets, 8, 32, np.zeros(1, np.int64), blocks, order=order).check()
        return blocks.tolist()

    assert begun("forward") == begun("lockstep") == list(range(8))
    assert begun("reverse") == list(range(8))[::-1]
    assert sorted(begun("random:1")) == list(range(8))
    assert len({tuple(begun(f"random:{seed}")) for seed in range(5)}) > 2


@cuda.jit
def add_all(total, values, places, before):
    i = cuda.grid(1)
    before[i] = cuda.atomic.add(total, places[i], values[i])


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse"])
def test_atomic_adds_of_floats_round_in_the_order_of_the_launch(order, rng):
    values, places = rng.standard_normal(256).astype(np.float32), rng.integers(0, 5, 256)
    total, before = vector(5), vector(256)
    simulate(add_all, 2, 128, total, values, places, before, order=order).check()
    right, old = vector(5), vector(256)
    for i in range(256)[:: -1 if order == "reverse" else 1]:
        old[i] = right[places[i]]
        right[places[i]] += values[i]
    assert np.array_equal(total, right) and np.array_equal(before, old)
    wide = np.bincount(places, values.astype(np.float64), 5)
    assert np.allclose(total, wide, atol=1e-4)


def test_everything_in_one_error():
    @cuda.jit
    def two_problems(src, dst):
        s = cuda.shared.array(32, float32)
        i = cuda.threadIdx.x
        s[i] = src[i]
        dst[i] = s[31 - i]
        dst[i] = src[i + 1]

    with pytest.raises(SimulationError) as caught:
        simulate(two_problems, 1, 32, vector(32), vector(32)).check()
    assert sorted(p.kind for p in caught.value.problems) == ["out of bounds", "race"]
    assert "two_problems: 2 problem(s)" in str(caught.value)
    assert "index [32] of src, shape (32,), block 0 thread 31 (warp 0 lane 31); 1 thread(s)" in str(
        caught.value
    )


@cuda.jit
def wrong_row(src, dst):
    dst[cuda.threadIdx.x] = src[cuda.blockIdx.x, 2][0]


@cuda.jit
def too_many_indices(src, dst):
    row = src[cuda.blockIdx.x]
    dst[cuda.threadIdx.x] = row[0, 0, 0]


@pytest.mark.parametrize(
    "kernel, says",
    [
        (wrong_row, "index [0, 2] of src, shape (2, 2, 3), block 0 thread 0"),
        (too_many_indices, "a part of src has 2 dimensions and is indexed with 3"),
    ],
)
def test_an_array_and_a_part_of_it_are_told_apart(kernel, says):
    with pytest.raises(Exception, match=re.escape(says)):
        simulate(kernel, 1, 32, np.zeros((2, 2, 3), np.float32), vector()).check()


@cuda.jit
def past_a_row(src, dst):
    row = src[0, 1]
    dst[cuda.threadIdx.x] = row[cuda.threadIdx.x + 40]


def test_an_index_of_a_row_is_no_index_of_the_array():
    result = simulate(past_a_row, 1, 32, np.zeros((2, 2, 64), np.float32), vector())
    assert "index [64] of a part of src, shape (64,), block 0 thread 24" in str(result)


@cuda.jit
def far(dst):
    dst[cuda.threadIdx.x + 64] = 0


def test_threads_that_did_not_run_yet_are_not_counted():
    """Blocks run in groups, and the first fault ends the launch."""
    assert "; 64 thread(s)" in str(simulate(far, 2, 32, vector()))
    assert "; at least 4096 thread(s)" in str(simulate(far, 512, 32, vector()))


@cuda.jit
def number_as_array(src, dst):
    i = cuda.threadIdx.x
    dst[i] = i[i, 0]


@cuda.jit
def array_as_number(src, dst):
    dst[cuda.threadIdx.x] = src * 2


@cuda.jit
def number_as_type(src, dst):
    part = cuda.local.array(2, cuda.blockIdx.x)
    dst[0] = part[0]


@cuda.jit
def array_as_index(src, dst):
    dst[src] = 1


@cuda.jit
def wide_number(src, dst):
    dst[0] = load4(cuda.threadIdx.x, (0, 0))[0]


@pytest.mark.parametrize(
    "kernel, says",
    [
        (number_as_array, "an index of a number"),
        (array_as_number, "an array where a number is needed"),
        (array_as_index, "an array where a number is needed"),
        (number_as_type, "a value where a type is needed"),
        (wide_number, "a wide access wants an array in global or shared memory"),
    ],
)
def test_a_number_for_an_array_is_told_in_words(kernel, says):
    with pytest.raises(Exception, match=says):
        simulate(kernel, 1, 32, vector(), vector()).check()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, np.uint8])
def test_scratch_is_poisoned_and_behaves_like_an_array(dtype):
    array = scratch((4, 6), dtype)
    assert array.shape == (4, 6)
    assert array.dtype == dtype
    assert (
        np.isnan(array).all() if np.dtype(dtype).kind == "f" else (array == np.array(-1).astype(dtype)).all()
    )
    assert not array.written().any()
    array[1] = 2
    array[:, 3:].fill(1)
    np.testing.assert_array_equal(array.written(), array == array.astype(np.float64).clip(1, 2))
    total = array[1] + array[1]
    assert total.written() is None
    assert array.view(np.uint8).reshape(-1).shape == (24 * array.itemsize,)


@cuda.jit(device=True)
def put(shared, i, value):
    shared[i] = value


@cuda.jit(device=True)
def put_twice(shared, i, value):
    put(shared, i, value)
    put(shared, i, 2 * value)


@cuda.jit
def two_calls(dst):
    shared = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    put(shared, i, 1)
    put_twice(shared, 63 - i, 2)
    cuda.syncthreads()
    dst[i] = shared[i]


def test_calls_of_a_device_function_can_be_kept_apart():
    plain = simulate(two_calls, 1, 64, vector(), ops=False)
    apart = simulate(two_calls, 1, 64, vector(), ops=False, calls=True)
    assert plain.totals() == apart.totals()
    first = two_calls.py_func.__code__.co_firstlineno
    races = [problem for problem in apart.problems if problem.kind == "race"]
    chains = {(p.site.caller.line - first, p.other.caller.caller.line - first) for p in races}
    assert chains == {(4, 5)}
    assert all(problem.site.caller is None for problem in plain.problems)
    assert [p.site.line for p in plain.problems] == [races[0].site.line]


@cuda.jit(device=True)
def mirrored(value, waits):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if waits:
        cuda.syncthreads()
    tile[t] = value
    cuda.syncthreads()
    return tile[63 - t]


@cuda.jit
def mirrors_twice(dst, waits):
    t = cuda.threadIdx.x
    dst[t] = mirrored(float32(t), False) + mirrored(float32(2 * t), waits)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("order", ["lockstep", "reverse"])
def test_all_calls_of_a_device_function_have_one_shared_array(order, calls):
    """PTX declares it once, so the second call overwrites what a slow thread still reads in the first."""
    options = {"order": order, "calls": calls}
    right = simulate(mirrors_twice, 1, 64, vector(), True, **options).check()
    assert right.totals()["shared_bytes_per_block"] == 256
    (problem,) = simulate(mirrors_twice, 1, 64, vector(), False, **options).problems
    assert problem.kind == "race"


@cuda.jit
def mirrors_two_types(dst):
    t = cuda.threadIdx.x
    dst[t] = mirrored(t, False) + mirrored(float32(t), False)


@cuda.jit
def each_half_its_own(dst):
    t = cuda.threadIdx.x
    if t < 32:
        left = cuda.shared.array(32, float32)
        left[t] = t
    else:
        right = cuda.shared.array(32, float32)
        right[t - 32] = t
    dst[t] = t


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse", "random:1", "random:2"])
def test_shared_bytes_are_those_of_the_arrays_that_are_compiled(order):
    """For other types of arguments Numba compiles the function again; which warp comes first is no matter."""
    for kernel, nbytes in ((mirrors_two_types, 512), (each_half_its_own, 256)):
        totals = simulate(kernel, 4, 64, vector(), order=order).check().totals()
        assert totals["shared_bytes_per_block"] == nbytes


@cuda.jit
def one_barrier(dst):
    cuda.syncthreads()
    dst[cuda.threadIdx.x] = 1


def test_memory_that_runs_out_is_no_line_that_the_simulator_lacks(monkeypatch):
    def no_room(*_):
        raise MemoryError("Unable to allocate 96.0 GiB")

    monkeypatch.setattr(Launch, "meet", no_room)
    with pytest.raises(MemoryError, match=r"96\.0 GiB"):
        simulate(one_barrier, 1, 32, vector())
