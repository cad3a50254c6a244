"""Calls of attention() in CUDA graphs: nothing is allocated by a call, no kernel is added, no memory shared.

What must hold for the first call of a process runs in a process of its own, `capturing.py`.
"""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from matrix import few

from flashcore_numba import LADDER, attention
from flashcore_numba.run import workspace

sys.path.insert(0, str(Path(__file__).parent))
from capturing import MODES, TOLERANCE, error, library, normal

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 80
HAVE_TORCH = importlib.util.find_spec("torch") is not None
TORCH = pytest.param(
    "torch",
    marks=pytest.mark.skipif(
        not HAVE_TORCH, reason="PyTorch is missing: pip install 'flashcore-numba[peers]'"
    ),
)
EACH_KIND = pytest.mark.parametrize("kind", ["cupy", TORCH])
RUNS = {
    number: [f"{number}:{variant}" for variant in LADDER[number - 1].variants or "-"]
    for number in range(1, 17)
}
# Stages together in a process; of 13 and 15, which need memory, the first is each in each mode.
GROUPS = [(13,), (15,), (14, 16), (12, 11), (10, 9), (8, 7), (6, 5), (4, 3, 2, 1)]
# (B, H, S_q, S_k, D): stage 15 deals out pieces of work, stage 13 splits.
DEALT, SPLIT = (2, 34, 512, 512, 64), (1, 4, 130, 8192, 64)
EACH_MEMORY = pytest.mark.parametrize(("stage", "shape"), [(15, DEALT), (13, SPLIT)], ids=["15", "13"])


def child(kind, mode, rng, *runs):
    """Run `capturing.py`; its own words where something was wrong."""
    command = [sys.executable, str(Path(__file__).with_name("capturing.py")), kind, mode]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, str(rng.integers(2**31)), *runs],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@EACH_KIND
@pytest.mark.parametrize(
    "group",
    few(map(pytest.param, GROUPS), *map(pytest.param, GROUPS[:3])),
    ids=lambda group: "-".join(map(str, group)),
)
def test_the_first_thing_that_a_process_does(kind, group, rng):
    """In CUDA's strictest mode, which is PyTorch's default."""
    child(kind, "global", rng, *(run for number in group for run in RUNS[number]))


@EACH_KIND
@pytest.mark.parametrize("mode", few(MODES[1:], "thread_local"))
@pytest.mark.parametrize("stage", [13, 15])
def test_the_first_thing_in_another_mode(kind, mode, stage, rng):
    child(kind, mode, rng, str(stage))


class Call:
    """attention() on arrays and an output of its own, whose inputs can be renewed."""

    def __init__(self, lib, stage, shape, rng, causal=True):
        self.lib, self.stage, self.shape, self.rng, self.causal = lib, stage, shape, rng, causal
        self.arrays = [lib.array(x) for x in normal(rng, shape)]
        self.out = lib.empty(tuple(self.arrays[0].shape))

    def __call__(self, handle=None):
        attention(*self.arrays, causal=self.causal, stage=self.stage, out=self.out)

    def renew(self):
        for array, new in zip(self.arrays, normal(self.rng, self.shape), strict=True):
            self.lib.fill(array, self.lib.array(new))
        self.lib.fill(self.out, float("nan"))

    def check(self):
        assert error(self.lib, self.out, self.arrays, self.causal) <= TOLERANCE


@EACH_KIND
@EACH_MEMORY
def test_graphs_run_beside_each_other_and_beside_calls(kind, stage, shape, rng):
    """Captured one after the other on one stream; replayed on two others at a time, with calls on a third."""
    lib = library(kind)
    calls = [Call(lib, stage, shape, rng) for _ in range(3)]
    home = lib.stream()
    graphs = [lib.captured(call, "global", home)[0] for call in calls[:2]]
    streams = [lib.stream() for _ in range(3)]
    for _ in range(4):
        for call in calls:
            call.renew()
        lib.synchronize()
        for _ in range(20):
            for graph, stream in zip(graphs, streams, strict=False):
                lib.replay(graph, stream)
            with lib.on(streams[2]):
                calls[2]()
        lib.replay(graphs[0], streams[1])  # another stream than before, and still running there
        lib.synchronize()
        for call in calls:
            call.check()


@EACH_MEMORY
def test_branches_of_one_graph(stage, shape, rng):
    """Two streams of one capture: their calls run at the same time."""
    import cupy

    lib = library("cupy")
    calls = [Call(lib, stage, shape, rng) for _ in range(2)]
    main, side = lib.stream(), lib.stream()
    lib.synchronize()
    with main:
        main.begin_capture(0)
        fork, join = (cupy.cuda.Event(disable_timing=True) for _ in range(2))
        fork.record(main)
        side.wait_event(fork)
        with side:
            calls[1]()
        calls[0]()
        join.record(side)
        main.wait_event(join)
        graph = main.end_capture()
    for _ in range(10):
        for call in calls:
            call.renew()
        lib.synchronize()
        graph.launch(main)
        lib.synchronize()
        for call in calls:
            call.check()


@EACH_KIND
@pytest.mark.parametrize("mode", few(MODES, "global"))
@EACH_MEMORY
def test_a_capture_beside_calls_in_another_thread(kind, mode, stage, shape, rng):
    """The other thread makes calls of new layouts too, whose first one loads and allocates."""
    lib, failures, ended = library(kind), [], threading.Event()
    batch, heads, seq_q, seq_k, head_dim = shape
    others = [Call(lib, stage, (batch, heads, seq_q + i, seq_k + i, head_dim), rng) for i in range(12)]
    calls = [Call(lib, stage, shape, rng) for _ in range(6)]
    lib.synchronize()

    def eager():
        try:
            with lib.on(lib.stream()):
                while not ended.is_set():
                    for other in others:
                        other()
        except Exception as error:  # told by the test itself
            failures.append(error)

    thread = threading.Thread(target=eager)
    captured = []

    def capture(handle):
        if not thread.is_alive() and not ended.is_set():
            thread.start()  # PyTorch synchronises the device before a capture, and must not wait for this
        time.sleep(0.05)
        for call in calls:
            call(handle)
        time.sleep(0.05)
        ended.set()
        thread.join()

    captured.append(lib.captured(capture, mode)[0])
    assert not failures, failures
    lib.synchronize()
    for other in others:
        other.check()
    for call in calls:
        call.renew()
    lib.synchronize()
    stream = lib.stream()
    lib.replay(captured[0], stream)
    lib.synchronize()
    for call in calls:
        call.check()


@EACH_KIND
@EACH_MEMORY
def test_the_memory_of_graphs_that_are_gone_is_used_again(kind, stage, shape, rng):
    lib, before = library(kind), len(workspace._tied)
    call = Call(lib, stage, shape, rng)
    made = set()
    for _ in range(12):
        graph, _ = lib.captured(call, "global")
        made |= {id(piece) for _, piece in workspace._tied}
        lib.replay(graph, lib.stream())
        lib.synchronize()
        call.check()
        del graph
        gc.collect()
        time.sleep(0.02)  # the driver tells from a thread of its own
    assert len(workspace._tied) <= before + 3
    assert len(made) <= before + 4


def test_an_output_of_a_capture_lives_as_long_as_its_graph(rng):
    """CuPy's graphs have no memory of their own: what the caller lets go must not be given to others."""
    import cupy

    lib = library("cupy")
    call = Call(lib, 15, DEALT, rng)
    stream = lib.stream()

    def queue(_):
        return attention(*call.arrays, causal=True, stage=15).data.ptr

    graph, at = lib.captured(queue, "relaxed", stream)
    with stream:
        others = [cupy.full(call.arrays[0].shape, 7, cupy.float16) for _ in range(8)]
    assert at not in {other.data.ptr for other in others}
    graph.launch(stream)
    lib.synchronize()
    assert all((other == 7).all() for other in others)


def test_counters_are_0_when_nothing_runs(rng):
    import cupy

    lib = library("cupy")
    for _ in range(3):
        Call(lib, 15, DEALT, rng)()
    lib.synchronize()
    assert workspace._memory_of_counters
    for memory in workspace._memory_of_counters:
        whole = cupy.ndarray((memory.size // 4,), np.uint32, cupy.cuda.MemoryPointer(memory, 0))
        assert not whole.any()
