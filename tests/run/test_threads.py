"""Many threads, and forks among them: stages, kernels and reports that share one executor."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flashcore_numba.stages import LADDER

ROOT = Path(__file__).resolve().parents[2]
STAGES = [stage.number for stage in LADDER if stage.number]
BEGIN = """
import faulthandler, os, sys, threading, time
import numpy as np
faulthandler.enable()
sys.setswitchinterval(1e-6)  # a thread is interrupted wherever it can be

def together(*functions):
    failed, begin = [], threading.Barrier(len(functions))
    def run(function):
        begin.wait()
        try:
            function()
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if failed: raise ExceptionGroup("in threads", failed)

def arrays(seed, rows=64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 1, rows, 64)).astype(np.float16) for _ in range(3)]
"""
RACING = """\
extern "C" __global__ void racing(float* y) {
    __shared__ float all[64];
    all[threadIdx.x] = threadIdx.x + ADDED;
    y[threadIdx.x] = all[63 - threadIdx.x];
}
"""


def python(program, *arguments):
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "stages",
    [STAGES, [12, 7, 12, 10, 12, 16, 12, 8]],
    ids=["every stage", "12 and others"],
)
def test_stages_in_threads_that_nothing_warmed(stages):
    """Kernels are loaded and set up by some threads while others launch."""
    python(
        f"""
        from flashcore_numba import attention
        stages, found = {stages}, {{}}
        def one(i, stage):
            found[i] = attention(*arrays(i), stage=stage, causal=i % 2 == 1)
        work = list(enumerate(stages + stages[::-1]))
        together(*(lambda i=i, stage=stage: one(i, stage) for i, stage in work))
        for i, stage in work:
            again = attention(*arrays(i), stage=stage, causal=i % 2 == 1)
            assert np.array_equal(found[i], again), (i, stage)
        """
    )


@pytest.mark.long
def test_a_thread_that_comes_while_another_launches():
    """The second loads a kernel of its own, in the middle of a long launch of the first."""
    python(
        """
        from flashcore_numba import attention
        from cuda_reference.cpu import LOCK
        long, short = arrays(0, rows=300), arrays(1)
        attention(*short, stage=12)
        found = []
        def first():
            found.append(attention(*long, stage=12))
        def second(stage):
            while LOCK.acquire(blocking=False):  # until the first is in its launch
                LOCK.release()
                time.sleep(0.001)
            found.append(attention(*short, stage=stage))
        together(first, *(lambda stage=stage: second(stage) for stage in (7, 9, 14)))
        assert len(found) == 4
        """
    )


@pytest.mark.long
def test_modules_and_reports_in_threads(tmp_path):
    source = tmp_path / "racing.cu"
    source.write_text(RACING)
    python(
        """
        from cuda_reference.cpu import CpuModule
        def one(added, launches=[]):
            y = np.zeros(64, np.float32)
            launch = CpuModule(sys.argv[1], {"ADDED": added}).racing(1, 64, (y,))
            assert y[63] == added
            def read():
                races = [p for p in launch.problems if p.kind == "race"]
                assert {(p.line, p.other_line) for p in races} <= {(3, 4), (4, 3)} and races
                assert launch.totals()["global_store_requests"] == 2
            together(read, read, read)
        together(*(lambda added=i % 3: one(added) for i in range(9)))
        """,
        source,
    )


@pytest.mark.long
def test_checks_in_threads():
    python(
        """
        from flashcore_numba.checks import check_stage
        from flashcore_numba.stages.find import find
        from flashcore_numba.checks.runner import names
        wanted = names(find(12))[:3]
        def one(number):
            report = check_stage(find(number), backend="simulator", seed=1, names=wanted)
            assert len(report.results) and report.passed, report.failures
        together(*(lambda n=n: one(n) for n in (12, 8, 12, 10)))
        """
    )


@pytest.mark.long
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
def test_a_fork_while_threads_launch(how):
    """The child finds the executor at rest, and can use it."""
    python(
        """
        import multiprocessing
        from flashcore_numba import attention
        expected = attention(*arrays(0), stage=12)
        over = threading.Event()
        def busy(stage):
            while not over.is_set():
                attention(*arrays(1), stage=stage)
        def child():
            assert np.array_equal(attention(*arrays(0), stage=12), expected)
            assert attention(*arrays(0), stage=7).shape == expected.shape
        def forks():
            try:
                for _ in range(5):
                    if sys.argv[1] == "os.fork":
                        if not (pid := os.fork()):
                            child()
                            os._exit(0)
                        status = os.waitpid(pid, 0)[1]
                    else:
                        process = multiprocessing.get_context("fork").Process(target=child)
                        process.start()
                        process.join()
                        status = process.exitcode
                    assert status == 0, status
            finally:
                over.set()
        together(forks, lambda: busy(12), lambda: busy(8))
        """,
        how,
    )


def test_a_fork_while_a_thread_computes_a_cached_property():
    """Python before 3.12 locks it for all objects of a class, and the child has nobody who would unlock."""
    python(
        """
        from functools import cached_property
        from cuda_reference.files import fork_safe
        begun, over = threading.Event(), threading.Event()
        @fork_safe
        class Slow:
            @cached_property
            def value(self):
                begun.set()
                over.wait()
                return 1
        thread = threading.Thread(target=lambda: Slow().value)
        thread.start()
        begun.wait()
        if not (pid := os.fork()):
            over = threading.Event()  # the thread may have been about to wait, with the lock of the other
            over.set()
            os._exit(Slow().value)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        over.set()
        thread.join()
        """
    )


@pytest.mark.long
def test_a_program_may_end_while_a_thread_launches():
    python(
        """
        from flashcore_numba import attention
        def busy():
            while True:
                attention(*arrays(1, rows=200), stage=12)
        for _ in range(2):
            threading.Thread(target=busy, daemon=True).start()
        time.sleep(1)
        """
    )


@pytest.mark.long
def test_arrays_that_change_during_the_call():
    """Whatever comes out, nothing crashes and nothing is reported that the kernel did not do."""
    python(
        """
        from flashcore_numba import attention
        q, k, v = arrays(0)
        over = threading.Event()
        def change():
            rng = np.random.default_rng(1)
            while not over.is_set():
                k[...] = rng.standard_normal(k.shape)
        def call():
            try:
                for stage in (12, 7):
                    assert np.isfinite(attention(q, k, v, stage=stage)).all()
            finally:
                over.set()
        together(change, call)
        """
    )


@pytest.mark.long
def test_a_signal_handler_may_not_launch_inside_a_launch():
    python(
        """
        import signal
        from cuda_reference import cpu
        from flashcore_numba import attention
        attention(*arrays(0), stage=12)
        run = cpu.CpuKernel._run
        def interrupted(self, *args):
            signal.raise_signal(signal.SIGALRM)  # as one that comes while the kernel runs
            return run(self, *args)
        told = []
        def handler(*_):
            try:
                attention(*arrays(0), stage=12)
            except RuntimeError as error:
                told.append(str(error))
        signal.signal(signal.SIGALRM, handler)
        cpu.CpuKernel._run = interrupted
        attention(*arrays(0), stage=12)
        assert told == ["mma_sync cannot be launched by a signal handler while mma_sync runs"], told
        """
    )
