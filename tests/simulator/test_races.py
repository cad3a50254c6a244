"""Races that hide behind values that look alike, and stores that are alike and no race."""

import math

import numpy as np
import pytest
from numba import cuda, float32, int32

from flashcore_numba.simulator import simulate
from flashcore_numba.wide import store4

from .test_bugs import ORDERS, marked


@cuda.jit
def large_integers(x):
    t = cuda.threadIdx.x
    if t % 32 == 0:
        x[0] = 2**60 + t  # as float64 they are equal


@cuda.jit
def the_same_large_integer(x):
    x[0] = 2**60 + 1


@cuda.jit
def a_float_and_an_integer(x, word):
    """1.0 and a word in the same four bytes of dynamic shared memory."""
    floats, words = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    if t == 0:
        floats[0] = 1.0
    if t == 33:
        words[0] = word
    cuda.syncthreads()
    x[t] = words[0]


@cuda.jit
def wide_stores(x, different):
    s = cuda.shared.array(32, float32, 16)
    t = cuda.threadIdx.x
    store4(s, 4 * (t % 8), 1.0, 2.0, 3.0, t % 8 + different * (t // 8))
    cuda.syncthreads()
    x[t] = s[0]


@cuda.jit
def not_a_number_by_all(x):
    s = cuda.shared.array(1, float32)
    s[0] = math.nan
    cuda.syncthreads()
    x[cuda.threadIdx.x] = 1 if math.isnan(s[0]) else 0


@cuda.jit
def complex_by_all(x, z):
    z[0] = 1 + 2j
    cuda.syncthreads()
    x[cuda.threadIdx.x] = z[0].imag


@cuda.jit
def two_complex(x, z):
    z[0] = (1 + 2j) * (cuda.threadIdx.x // 32)


ONE_COMPLEX = np.zeros(1, np.complex128)
RACING = [(large_integers,), (a_float_and_an_integer, 1), (wide_stores, 1), (two_complex, ONE_COMPLEX)]
ALIKE = [
    (the_same_large_integer,),
    (a_float_and_an_integer, 0x3F800000),  # the bits of 1.0
    (wide_stores, 0),
    (not_a_number_by_all,),
    (complex_by_all, ONE_COMPLEX),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("stores", "kinds"), [(stores, ["race"]) for stores in RACING] + [(stores, []) for stores in ALIKE]
)
def test_stores_of_the_same_bits_are_no_race(stores, kinds, order):
    kernel, *given = stores
    given = [x.copy() if isinstance(x, np.ndarray) else x for x in given]
    problems = simulate(kernel, 1, 64, np.zeros(64, np.int64), *given, order=order, shared_bytes=128).problems
    assert [problem.kind for problem in problems] == kinds


@cuda.jit
def numbers_of_blocks(x):
    x[0] = 2**60 + cuda.blockIdx.x


@pytest.mark.parametrize("order", ORDERS)
def test_blocks_that_store_large_integers(order):
    (problem,) = simulate(numbers_of_blocks, 2, 32, np.zeros(1, np.int64), order=order).problems
    assert problem.kind == "race between blocks"
    assert simulate(the_same_large_integer, 2, 32, np.zeros(1, np.int64), order=order).problems == []


@cuda.jit
def fence_without_a_signal(x, y, counter):
    """The fence orders this block's own accesses; nothing says that the other block has stored."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        x[b] = b  # first
        cuda.threadfence()
        y[b] = x[b ^ 1]  # second


@cuda.jit
def signal_in_shared_memory(x, y, counter):
    s = cuda.shared.array(1, int32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        s[0] = 0
        x[b] = b  # first
        cuda.threadfence()
        cuda.atomic.add(s, 0, 1)
        y[b] = x[b ^ 1]  # second


@cuda.jit
def last_block(x, y, counter):
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if t == 0:
        x[b] = b
        cuda.threadfence()
        if cuda.atomic.add(counter, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence()
            y[0] = x[0] + x[1]


@pytest.mark.parametrize("order", ORDERS)
def test_a_fence_orders_blocks_only_with_an_atomic_in_global_memory(order):
    def arguments():
        return np.zeros(2), np.zeros(2), np.zeros(1, np.int32)

    for kernel in (fence_without_a_signal, signal_in_shared_memory):
        problems = simulate(kernel, 2, 32, *arguments(), order=order).problems
        assert {problem.kind for problem in problems} == {"race between blocks"}
        assert (problems[0].line, problems[0].other_line) == (
            marked(kernel, "first"),
            marked(kernel, "second"),
        )
    simulate(last_block, 2, 32, *arguments(), order=order).check()


@cuda.jit
def work_by_ticket(x, y, counter):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    while True:
        item = cuda.atomic.add(counter, 0, 1)
        if item >= 100:
            break
        cuda.atomic.add(y, item % 2, 1.0)
    s[t] = t  # first
    x[t] = s[63 - t]  # second


@cuda.jit
def work_by_ticket_with_barrier(x, y, counter):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    while True:
        item = cuda.atomic.add(counter, 0, 1)
        if item >= 100:
            break
        cuda.atomic.add(y, item % 2, 1.0)
    s[t] = t
    cuda.syncthreads()
    x[t] = s[63 - t]


@cuda.jit
def lock_written_as_a_break(x, y, counter):
    t = cuda.threadIdx.x
    if t % 32 == 0:
        while True:
            if cuda.atomic.cas(counter, 0, 0, 1) == 0:
                break
        x[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(counter, 0, 0)


@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_that_hands_out_work_waits_for_nobody(order):
    """After a lock or a flag a thread's accesses are not checked; after its share of the work they are."""

    def arguments():
        return np.zeros(64), np.zeros(2), np.zeros(1, np.int32)

    problems = simulate(work_by_ticket, 1, 64, *arguments(), order=order).problems
    lines = marked(work_by_ticket, "first"), marked(work_by_ticket, "second")
    assert lines in [(p.line, p.other_line) for p in problems if p.kind == "race"]
    for kernel in (work_by_ticket_with_barrier, lock_written_as_a_break):
        simulate(kernel, 1, 64, *arguments(), order=order).check()


@cuda.jit
def reads_the_other_half(floats, words, y):
    t = cuda.threadIdx.x
    floats[t] = t  # first
    y[t] = words[t ^ 32]  # second


@cuda.jit
def reads_its_own(floats, words, y):
    t = cuda.threadIdx.x
    floats[t] = t
    y[t] = words[t]


@cuda.jit
def reads_after_a_barrier(floats, words, y):
    t = cuda.threadIdx.x
    floats[t] = t
    cuda.syncthreads()
    y[t] = words[t ^ 32]


@cuda.jit
def reads_the_other_block(floats, words, y):
    i = cuda.grid(1)
    floats[i] = i  # first
    y[i] = words[i ^ 32]  # second


@pytest.mark.parametrize("order", ORDERS)
def test_two_arguments_may_be_one_memory_as_two_types(order):
    bits = np.arange(64, dtype=np.float32).view(np.int32)

    def launch(kernel, blocks, kind=np.int32):
        floats, y = np.zeros(64, np.float32), np.zeros(64, np.int64)
        return simulate(kernel, blocks, 64 // blocks, floats, floats.view(kind), y, order=order), y

    for kernel, kind in ((reads_the_other_half, "race"), (reads_the_other_block, "race between blocks")):
        found, _ = launch(kernel, 1 if kind == "race" else 2)
        (problem,) = found.problems
        assert (problem.kind, problem.array) == (kind, "floats/words")
        assert (problem.line, problem.other_line) == (marked(kernel, "first"), marked(kernel, "second"))
    assert launch(reads_its_own, 1)[0].check() and (launch(reads_its_own, 1)[1] == bits).all()
    assert (launch(reads_after_a_barrier, 1)[1] == bits[np.arange(64) ^ 32]).all()
    halves, _ = launch(reads_the_other_block, 2, np.float32)
    assert [problem.kind for problem in halves.problems] == ["race between blocks"]


@cuda.jit
def reads_bytes(floats, octets, y):
    t = cuda.threadIdx.x
    floats[t] = 1
    y[t] = octets[4 * (t ^ 32) + 3]


def test_bytes_of_another_argument():
    floats, y = np.zeros(64, np.float32), np.zeros(64, np.int64)
    (problem,) = simulate(reads_bytes, 1, 64, floats, floats.view(np.uint8), y).problems
    assert problem.kind == "race"
    assert (y == 0x3F).all()  # the highest byte of 1.0
    between = np.zeros(64 * 4 + 8, np.uint8)
    with pytest.raises(ValueError, match="argument floats: it shares memory with another argument"):
        simulate(reads_bytes, 1, 64, between[1:257].view(np.float32), between, y)
    nothing = np.zeros(0, np.float32)
    simulate(reads_nothing, 1, 32, nothing, nothing.view(np.int32), y).check()


@cuda.jit
def reads_nothing(floats, words, y):
    y[cuda.threadIdx.x] = floats.size + words.size


@cuda.jit
def races_before_and_after_another_blocks_barrier(x, y, flag):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if t < 32:
            x[t] = t  # first
        seen = flag[0]
        while seen == 0:
            seen = flag[0]
        if t >= 32:
            y[t] = x[t - 32]  # second
    else:
        cuda.syncthreads()
        if t == 0:
            flag[0] = 1


@pytest.mark.parametrize("order", ["lockstep", "forward", "random:1"])
def test_a_barrier_ends_the_stretch_of_its_own_block_alone(order):
    kernel = races_before_and_after_another_blocks_barrier
    problems = simulate(kernel, 2, 64, *np.zeros((2, 64)), np.zeros(1), order=order).problems
    (problem,) = [problem for problem in problems if problem.kind == "race"]
    assert (problem.line, problem.other_line) == (marked(kernel, "first"), marked(kernel, "second"))
    assert {block for block, _ in problem.threads} == {0}
