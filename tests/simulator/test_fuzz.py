"""Random kernels: the simulator in every order, two other simulators and the planted faults agree.

Each run draws fresh seeds; a failure names them. `make test-all` goes on for a minute. `fuzz.py` runs
thousands, on a GPU too.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest
from numba import cuda, int64

from .fuzz import agree, check, check_all, compare_with_record, faults, fingerprint, run
from .greenlet_oracle import Oracle
from .random_kernels import kernel, mutants
from .undefined_arithmetic import undefined

LONG = 60  # seconds


def seeds(rng, count: int) -> range:
    first = int(rng.integers(2**31))
    return range(first, first + count)


@pytest.mark.long
def test_random_kernels(rng):
    assert faults(check_all(seeds(rng, 6))) == []


@pytest.mark.long
@pytest.mark.timeout(10 * LONG)
def test_many_random_kernels(rng):
    until, checked = time.monotonic() + LONG, 0
    while time.monotonic() < until:
        verdicts = check_all(seeds(rng, 20))
        assert faults(verdicts) == []
        checked += len(verdicts["simulator"])
    assert checked


@pytest.mark.long
def test_random_kernels_compute_nothing_undefined(rng):
    assert {seed: found for seed in seeds(rng, 12) if (found := undefined(kernel(seed)))} == {}


@pytest.mark.long
def test_undefined_arithmetic_is_found(rng):
    """The check can fail: a sum that overflows, a large remainder."""
    original = kernel(int(rng.integers(2**31)))
    last = "\n    v = int64(int64(2) ** int64(62)) + int64(int64(2) ** int64(62))"
    last += "\n    v = float64(1e20) % float64(7)\n    v = -int16(-32768)\n"
    lines = original.explicit.rstrip().splitlines()
    lines.insert(next(n for n, line in enumerate(lines) if line.startswith("    t = ")) + 1, last.strip("\n"))
    found = undefined(replace(original, explicit="\n".join(lines) + "\n"))
    assert [text.split(": ")[1].split()[0] for text in found] == ["add", "mod", "-"], found


def test_a_record_of_a_gpu_is_compared(rng, tmp_path):
    """With what the simulator computes nothing differs; another value and another kernel are told."""
    made = kernel(int(rng.integers(2**31)))
    _, got = run(made, made.source)
    name, array = next((name, array) for name, array in got.items() if name[0] == "y")
    place = [0] * array.ndim
    result = {"seed": made.seed, "kernel": fingerprint(made.source)}
    path = tmp_path / "record.json"

    def compare(text, **changes):
        path.write_text(json.dumps({"differences": [{**result, "simulator": [text], **changes}]}))
        return compare_with_record(path)

    value = array[tuple(place)]
    assert compare(f"{name}{place}: 77 for {value}; 3 differ") == []
    assert len(compare(f"{name}{place}: {value} for {value + 1}; 3 differ")) == 1
    (told,) = compare(f"{name}{place}: 77 for {value}; 3 differ", kernel="0")
    assert "another kernel" in told


def test_a_seed_is_one_kernel(rng):
    seed = int(rng.integers(2**31))
    one, two = kernel(seed), kernel(seed)
    assert one == two
    assert one.source != kernel(seed + 1).source
    assert [mutant.change for mutant in mutants(one)] == [mutant.change for mutant in mutants(two)]


# The checks themselves can fail


@cuda.jit
def in_order(x, y):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    y[t] = s[31 - t]


@cuda.jit
def unordered(x, y):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    y[t] = s[31 - t]


@cuda.jit
def half_ordered(x, y):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    s[t] = x[t]
    if t < 16:
        cuda.syncwarp(0xFFFF)
        y[t] = s[t + 16]


@cuda.jit
def unwritten(x, y):
    s = cuda.shared.array(32, int64)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[t]


@cuda.jit
def two_blocks(x, y):
    t = cuda.threadIdx.x
    y[t] = x[t] + cuda.blockIdx.x


@cuda.jit
def outside(x, y):
    y[cuda.threadIdx.x + 1] = x[0]


@pytest.mark.parametrize(
    "function, faults",
    [
        (in_order, (False, False, False)),
        (unordered, (True, True, False)),
        (half_ordered, (True, False, False)),
        (unwritten, (False, True, False)),
        (two_blocks, (True, False, False)),
        (outside, (False, False, True)),
    ],
)
def test_the_oracle_sees(function, faults):
    """Races, reads of what nobody wrote, indices outside."""
    found = Oracle(function, 2 if function is two_blocks else 1, 32, [np.arange(32), np.zeros(32, np.int64)])
    assert (bool(found.races), bool(found.uninitialised), bool(found.fault)) == faults


def test_a_wrong_result_is_seen(rng):
    """One spelling of a kernel stores something else at its end."""
    right = next(
        found
        for found in map(kernel, seeds(rng, 100))
        if "y_int64" in found.arrays and "        return\n" not in found.source
    )
    wrong = replace(right, explicit=right.explicit + "    y_int64[i, int64(5)] = int64(12345)\n")
    assert check(right).kind == "equal"
    assert check(wrong).kind == "wrong value"


def test_agree():
    want = {"y": np.array([1, 2**63], np.uint64), "z_float64": np.array([0.5, 0.25])}
    near = {"y": want["y"].copy(), "z_float64": want["z_float64"] + 1e-13}
    far = {"y": want["y"] + np.uint64(1), "z_float64": want["z_float64"] + 1e-9}
    assert agree(near, want) == []
    assert [text.split("[")[0] for text in agree(far, want)] == ["y", "z_float64"]
