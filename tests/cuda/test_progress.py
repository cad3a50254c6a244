"""Threads that wait through memory run until they are done; what cannot end is told, in any order of threads.
Limits of time and of memory, and Ctrl-C."""

import gc
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from matrix import few

import cuda_reference
from cuda_reference.cpu import CpuModule
from flashcore_numba import ArgumentError, attention
from flashcore_numba.checks import check
from flashcore_numba.checks.runner import check_stage
from flashcore_numba.run.executor import Simulator
from flashcore_numba.simulator.problems import SimulationError
from flashcore_numba.stages.edited import with_copies
from flashcore_numba.stages.find import find

FILE = Path(__file__).resolve().parent / "progress.cu"
SCHEDULES = ("forward", "reverse", "random:1", "random:2")
ENDLESS = {
    kernel: FILE.read_text().count("\n", 0, at.start()) + 1
    for at in re.finditer("// ENDLESS", FILE.read_text())
    for kernel in [re.findall(r"__global__ void (\w+)\(", FILE.read_text()[: at.start()])[-1]]
}


def run(kernel, schedule="forward", grid=2, block=64, *more, **options):
    out, flags = np.zeros(4096, np.float32), np.zeros(64, np.uint32)
    launch = CpuModule(FILE).kernel(kernel)(grid, block, (out, flags, *more), schedule=schedule, **options)
    return launch, out


RIGHT = {
    **dict.fromkeys(["flag_in_shared", "flag_to_a_later_warp", "volatile_flag"], ([3, 3], {})),
    **dict.fromkeys(["counts_while_it_waits", "vote_until_all_are_done"], ([3, 3], {})),
    **dict.fromkeys(["long_in_registers", "long_without_a_store"], ([3, 3], {})),
    **dict.fromkeys(["lock_of_each_thread", "lock_with_backoff", "tickets"], ([128], {})),
    "ring_between_blocks": ([780], {}),
    "grid_barrier": ([6] * 4096, {"grid": 64}),
    "scan_from_the_first_block": (list(range(31)), {"grid": 30}),
    "scan_from_the_last_block": (list(range(31)), {"grid": 30}),
    "gives_up": ([5000, 5000], {}),
}


@pytest.mark.parametrize("schedule", few(SCHEDULES, "reverse"))
@pytest.mark.parametrize("kernel", RIGHT)
def test_who_waits_gets_what_it_waits_for(kernel, schedule):
    expected, options = RIGHT[kernel]
    launch, out = run(kernel, schedule, **options)
    assert not launch.problems, launch
    assert out[: len(expected)].tolist() == expected


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("schedule", few(SCHEDULES, "reverse"))
def test_waiting_needs_neither_checks_nor_counts(schedule, checks):
    for kernel in ("volatile_flag", "tickets", "scan_from_the_last_block"):
        launch, out = run(kernel, schedule, checks=checks, counts=False)
        assert not launch.problems and out[0] == {"volatile_flag": 3, "tickets": 128}.get(kernel, 0), launch


@pytest.mark.parametrize("schedule", few(SCHEDULES, "reverse"))
@pytest.mark.parametrize("kernel", few(ENDLESS, *(ENDLESS.keys() - {"counts_its_looks"})))
def test_what_cannot_end_is_told_with_its_line(kernel, schedule):
    launch, _ = run(kernel, schedule)
    assert {(p.kind, p.line) for p in launch.problems} >= {("endless loop", ENDLESS[kernel])}, launch
    assert all(p.kind in ("endless loop", "race", "race between blocks") for p in launch.problems), launch


@pytest.mark.parametrize("schedule", few(SCHEDULES, "reverse"))
def test_what_a_poll_waits_for_is_told(schedule):
    launch, _ = run("nobody_sets_the_flag", schedule, grid=1)
    (problem,) = launch.problems
    said = (
        r"32 threads \(0 to 31\) come back to flags at byte 0 again and again, and nobody changes memory: "
        r"this was last changed by thread 7 \(warp 0, lane 7\); 32 more waiting at __syncthreads, line \d+ "
    )
    assert re.match(said, problem.text), problem
    assert "atomicExch(flags, 2u)" in problem.other.text


@pytest.mark.long
def test_blocks_that_find_no_room_are_told():
    launch, _ = run("grid_barrier", grid=400, block=1)
    (problem,) = launch.problems
    assert problem.kind == "endless loop" and "144 blocks have not begun" in problem.text, launch


@pytest.mark.long
def test_a_loop_in_registers_is_given_up():
    launch, _ = run("registers_for_ever", grid=1, block=1)
    (problem,) = launch.problems
    assert problem.kind == "endless loop" and "for 10 s of processor time" in problem.text, launch
    assert problem.site.text.startswith("while (x != 0)")


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_time_limit_is_an_outcome_of_its_own(schedule):
    launch, _ = run("first_block_ends", schedule, 3, time_limit=0.3)
    (problem,) = [p for p in launch.problems if "race" not in p.kind]
    assert problem.kind == "time limit", launch
    assert problem.text.startswith("stopped by time_limit = 0.3 s after 1 of 3 blocks; thread")
    assert "while (out[0]" in problem.site.text


@pytest.mark.parametrize("kernel", ["changes_memory_for_ever", "registers_for_ever"])
def test_the_time_limit_stops_any_loop(kernel):
    launch, _ = run(kernel, time_limit=0.2)
    assert [p.kind for p in launch.problems] == ["time limit"]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "3", [1]])
def test_a_time_limit_is_a_number_of_seconds(limit):
    with pytest.raises(ValueError, match=r"time_limit is .*: it must be a number of seconds above 0"):
        run("tickets", time_limit=limit)


@pytest.mark.parametrize("kernel", ["changes_memory_for_ever", "registers_for_ever"])
def test_ctrl_c_stops_a_launch_and_the_next_one_runs(kernel):
    knock = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    CpuModule(FILE)  # compiled before the time runs
    gc.collect()  # what is raised while Python closes files of modules that nobody uses is lost
    knock.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run(kernel)
    finally:
        knock.cancel()
    launch, out = run("tickets")
    assert not launch.problems and out[0] == 128


@pytest.mark.long
def test_ctrl_c_is_quick():
    program = (
        "from test_progress import CpuModule, FILE, run\n"
        "CpuModule(FILE)\n"
        "print('ready', flush=True)\n"
        "try:\n    run('changes_memory_for_ever')\n"
        "except KeyboardInterrupt:\n    print('stopped', run('tickets')[1][0], flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        assert process.stdout.readline() == "stopped 128.0\n"
        assert time.monotonic() - start < 10  # of a busy machine; a quiet one takes 0.1
        process.wait()


def test_other_threads_run_while_a_launch_does():
    turns, done = [0], threading.Event()

    def count():
        while not done.wait(0.001):
            turns[0] += 1

    other = threading.Thread(target=count)
    other.start()
    try:
        run("changes_memory_for_ever", time_limit=0.5)
    finally:
        done.set()
        other.join()
    assert turns[0] > 10


def requests(launch):
    return {(row.line, row.op, row.array): (row.requests, row.lanes, row.sectors) for row in launch.lines()}


@pytest.mark.parametrize("schedule", few(SCHEDULES, "reverse"))
def test_a_long_log_is_counted_as_a_short_one(schedule):
    short, _ = run("many_loads", schedule, 1, 64, np.int32(100))
    long, _ = run("many_loads", schedule, 1, 64, np.int32(10000))
    assert not short.problems and not long.problems
    loads = {100: requests(short), 10000: requests(long)}
    at = next(key for key in loads[100] if key[1] == "load" and key[2] == "out")
    for n, rows in loads.items():
        assert rows[at] == (2 * n, 64 * n, 8 * n)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.long
def test_the_log_does_not_grow():
    run("many_loads", "forward", 1, 64, np.int32(6000))
    before = peak()
    run("many_loads", "forward", 1, 64, np.int32(60000))  # 4 million accesses, 120 MB of them
    assert peak() - before < 40


@pytest.mark.long
def test_a_poll_between_blocks_stays_small():
    before = peak()
    launch, _ = run("counts_its_looks", grid=8)
    assert launch.problems and peak() - before < 150


@pytest.mark.long
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_local_memory_is_half_a_megabyte(schedule):
    launch, out = run("local_array", schedule, 1)
    assert not launch.problems and out[:64].tolist() == [t * 1001 for t in range(64)]
    launch, _ = run("local_array_too_large", schedule, 1)
    (problem,) = launch.problems
    assert problem.kind == "stack overflow" and "outgrow the 512 KB" in problem.text, launch
    launch, out = run("tickets", schedule)
    assert not launch.problems and out[0] == 128


def problem(rng, seq=64):
    return [rng.standard_normal((1, 1, seq, 64)).astype(np.float16) for _ in "qkv"]


@pytest.mark.long
def test_attention_takes_a_time_limit(rng):
    q, k, v = problem(rng)
    with pytest.raises(SimulationError, match=r"time limit: .*stopped by time_limit = 0.001 s after"):
        attention(*problem(rng, 512), stage=8, time_limit=1e-3)
    assert np.array_equal(attention(q, k, v, stage=8, time_limit=600), attention(q, k, v, stage=8))


@pytest.mark.parametrize("limit", [0, -2.5, "soon", True, float("nan")])
def test_a_bad_time_limit_is_named(limit, rng):
    said = rf"time_limit is {re.escape(repr(limit))}: it must be a number of seconds above 0, or None"
    for call in (
        lambda: attention(*problem(rng), stage=8, time_limit=limit),
        lambda: Simulator(time_limit=limit),
        lambda: check([8], backend="simulator", time_limit=limit),
    ):
        with pytest.raises(ArgumentError, match=said):
            call()


@pytest.mark.long
def test_check_stops_a_launch_at_its_deadline(tmp_path):
    text = (cuda_reference.FOLDER / "stage08_wmma_full.cu").read_text()
    at = text.index("{", text.index('extern "C" __global__')) + 1
    endless = "for (float x = 1; x > 0; x = x > 1e6f ? 1 : x + 1) __syncthreads();"
    (tmp_path / "stage08_wmma_full.cu").write_text(f"{text[:at]} {endless} {text[at:]}")
    stage = with_copies(find(8), tmp_path)
    report = check_stage(stage, seed=1, stop_at_first=True, launch_limit=0.5)
    (failure,) = report.failures
    assert failure.kind == "time" and "stopped by time_limit = 0.5 s after 0 of" in failure.message, failure
    start = time.monotonic()
    report = check_stage(stage, seed=1, deadline=time.time() + 1.5)
    assert {failure.kind for failure in report.failures} == {"time"}
    assert "stopped by time_limit" in report.failures[0].message and time.monotonic() - start < 60
    assert report.failures[-1].message == "not run: the time limit was reached"
