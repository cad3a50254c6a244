"""Every kind of problem is reported with the kernel's own lines, and correct twins report nothing."""

import inspect

import numpy as np
import pytest
from matrix import few
from numba import cuda, int32

from flashcore_numba.simulator import KINDS, SimulationError, scratch, simulate

from . import broken_kernels as B
from . import kernels as K
from .cases import attention

ORDERS = ("lockstep", "forward", "reverse", "random:1")

BROKEN = {
    "missing_barrier": "race",
    "missing_syncwarp": "race",
    "syncwarp_for_two_warps": "race",
    "all_write_one": "race",
    "race_through_global": "race",
    "pool_seen_twice": "race",
    "atomic_beside_plain_read": "race",
    "blocks_read_an_atomic": "race between blocks",
    "blocks_of_different_length_broken": "race",
    "blocks_share_an_element": "race between blocks",
    "divergent_barrier": "divergent barrier",
    "two_barriers": "divergent barrier",
    "barrier_after_exit": "barrier after exit",
    "out_of_bounds": "out of bounds",
    "negative_index": "out of bounds",
    "local_out_of_bounds": "out of bounds",
    "unwritten_shared": "uninitialised read",
    "unwritten_local": "uninitialised read",
    "misaligned": "misaligned",
    "unaligned_tile": "misaligned",
    "running_max_from_tiny": "not a number",
    "shuffle_in_branch": "warp mask",
    "endless": "endless loop",
    "divides_by_zero": "division by zero",
}
CORRECT = [
    *("with_barrier", "with_syncwarp", "one_writes_one", "global_with_barrier", "blocks_add_atomically"),
    *("each_block_reads_its_atomic", "own_atomic_then_read"),
    *("aligned_tile", "running_max_from_minus_infinity", "not_a_number_discarded", "not_a_number_read"),
    *("blocks_of_different_length", "whole_block_exits", "guarded_index", "shuffle_with_its_lanes"),
]


def marked(kernel, mark: str) -> int | None:
    """The line of the kernel with this word in its comment."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    found = [first + k for k, line in enumerate(lines) if mark in line.partition("#")[2]]
    return found[0] if found else None


def run(kernel, order, **options):
    blocks = 2 if "block" in kernel.py_func.__name__ else 1
    src = np.random.default_rng().standard_normal(64 * blocks, dtype=np.float32)
    return simulate(kernel, blocks, 64, src, np.zeros_like(src), order=order, shared_bytes=256, **options)


def test_every_kind_is_planted():
    assert set(BROKEN.values()) | {"time limit"} == set(KINDS)  # which is no fault of the kernel alone


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
@pytest.mark.parametrize("name", BROKEN)
def test_broken_kernel_is_named(name, order):
    kernel = getattr(B, name)
    options = {"max_turns": 100} if name == "endless" else {}
    result = run(kernel, order, **options)
    first, second = marked(kernel, "first"), marked(kernel, "second")
    if name == "two_barriers" and order == "lockstep":
        second = None  # the launch ends at the first barrier, before the other side gets to its own
    assert {problem.kind for problem in result.problems} >= {BROKEN[name]}
    problem = next(p for p in result.problems if p.kind == BROKEN[name])
    assert problem.line == first
    assert problem.other_line == second
    assert problem.file == kernel.py_func.__code__.co_filename
    assert f":{first} `" in str(problem)
    with pytest.raises(SimulationError, match=problem.kind):
        result.check()


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
@pytest.mark.parametrize("name", CORRECT)
def test_correct_twin_reports_nothing(name, order):
    result = run(getattr(B, name), order)
    assert result.problems == []
    assert result.check() is result


def test_races_can_be_switched_off():
    assert run(B.missing_barrier, "lockstep", races=False).problems == []


@pytest.mark.parametrize("order", few(ORDERS, "lockstep"))
@pytest.mark.parametrize("trailing_barrier", [True, False])
def test_trailing_barrier_of_the_tile_loop(trailing_barrier, order, rng):
    """The missing trailing barrier lets a fast warp overwrite the tile that a slow one still reads."""
    q, k, v = (rng.standard_normal((64, 32), dtype=np.float32) for _ in range(3))
    out = np.full((64, 32), np.nan, np.float32)
    kernel = K.make_attention_tiled(32, trailing_barrier)
    result = simulate(kernel, 2, (32, 32), q, k, v, out, np.float32(0.2), order=order)
    if trailing_barrier:
        assert result.problems == []
        np.testing.assert_allclose(out, attention(q, k, v, 0.2), rtol=1e-4, atol=1e-5)
        return
    source, first = inspect.getsourcelines(kernel.py_func)
    write = first + next(n for n, line in enumerate(source) if "v_smem[ty, tx + 32 * c] = v" in line)
    read = first + next(n for n, line in enumerate(source) if "acc[c] += p * v_smem" in line)
    pairs = {(p.kind, p.line, p.other_line) for p in result.problems}
    assert ("race", write, read) in pairs


def test_lockstep_hides_what_reverse_order_shows():
    """The value of a racing read depends on the schedule; the report does not."""
    src = np.arange(64, dtype=np.float32)
    results = {}
    for order in ("forward", "reverse"):
        out = np.zeros(64, np.float32)
        simulate(B.syncwarp_for_two_warps, 1, 64, src, out, order=order)
        results[order] = out
    assert not np.array_equal(results["forward"], results["reverse"], equal_nan=True)


@cuda.jit
def others_read_what_atomics_changed(y):
    s = cuda.shared.array(40, int32)
    t = cuda.threadIdx.x
    s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, t ^ 1, 7)
    y[t] = s[(1 - t) % 40]  # thread 0 reads what it changed itself, the others what others did


@pytest.mark.parametrize("order", ORDERS)
def test_an_element_that_one_thread_changes_and_reads_hides_no_race(order):
    (problem,) = simulate(others_read_what_atomics_changed, 1, 40, np.zeros(40), order=order).problems
    assert problem.kind == "race" and "element 1:" not in str(problem)


def test_scratch_remembers_what_a_launch_wrote(rng):
    src = rng.standard_normal(64, dtype=np.float32)
    middle, dst = scratch(64, np.float32), np.zeros(64, np.float32)
    assert np.isnan(middle).all()
    early = simulate(K.copy_coalesced, 1, 64, middle, dst)
    assert [p.kind for p in early.problems] == ["uninitialised read"]
    assert "src element 0 was never written" in early.problems[0].text
    simulate(K.copy_coalesced, 1, 32, src, middle[:32]).check()
    half = simulate(K.copy_coalesced, 1, 64, middle, dst)
    assert "element 32" in half.problems[0].text
    assert "32 thread(s)" in half.problems[0].text
    middle[32:] = 1
    simulate(K.copy_coalesced, 1, 64, middle, dst).check()
    np.testing.assert_array_equal(dst, np.concatenate([src[:32], np.ones(32, np.float32)]))
