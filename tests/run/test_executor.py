"""The simulator and the compiler as executors of the same launch function."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numba import cuda, float32

from flashcore_numba import LADDER, Problem
from flashcore_numba.run import compiler
from flashcore_numba.run.compiler import Compiler, CompilerMissingError
from flashcore_numba.run.executor import Simulator


@cuda.jit
def double_kernel(x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = x[i] * float32(2)


@cuda.jit
def racing_kernel(y):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = y[i]
    y[i] = tile[63 - i]  # no barrier before it


@cuda.jit
def shared_kernel(y):
    tile = cuda.shared.array(64, float32)
    more = cuda.shared.array(0, float32)
    i = cuda.threadIdx.x
    tile[i] = y[i]
    more[i] = y[i]
    cuda.syncthreads()
    y[i] = tile[63 - i] + more[63 - i]


@cuda.jit
def local_kernel(y, n):
    values = cuda.local.array(512, float32)
    for i in range(n):
        values[i] = y[i]
    for i in range(n):
        y[i] = values[n - 1 - i]


@cuda.jit
def float64_kernel(x):
    x[0] = x[0] * 0.1


def test_simulator_collects_launches(rng):
    x = rng.standard_normal(40).astype(np.float32)
    executor = Simulator()
    y = executor.empty(40, np.float32)
    assert np.isnan(y).all(), "scratch memory is poisoned"
    executor.launch(double_kernel, 2, 32, x, y)
    np.testing.assert_array_equal(y, 2 * x)
    executor.check()
    assert len(executor.launches) == 1


def test_simulator_reports_a_race():
    executor = Simulator()
    executor.launch(racing_kernel, 1, 64, np.zeros(64, np.float32))
    assert executor.launches[0].problems
    with pytest.raises(Exception, match="race"):
        executor.check()


def test_simulator_options_reach_the_launch():
    executor = Simulator(races=False)
    executor.launch(racing_kernel, 1, 64, np.zeros(64, np.float32))
    executor.check()


def launch_stage(executor, stage, head_dim=64):
    q = np.empty((1, 2, 70, head_dim), np.float16)
    stage.launch(Problem(q, q, q), np.empty_like(q), executor)


@pytest.mark.long
def test_compiler_reads_the_resources():
    executor = Compiler()
    executor.launch(double_kernel, 1, 32, *np.empty((2, 8), np.float32))
    (kernel,) = executor.kernels
    assert kernel.name == "double_kernel"
    assert ".visible .entry" in kernel.ptx
    assert ".target sm_90a" in kernel.ptx
    assert 8 <= kernel.registers <= 255
    assert (kernel.spill_bytes, kernel.stack_bytes, kernel.shared_bytes) == (0, 0, 0)
    assert f"Used {kernel.registers} registers" in kernel.log


@pytest.mark.parametrize("lto", [False, True])
def test_compiler_links_what_numba_links(lto):
    """The operators of float16 are code of its own."""

    @cuda.jit(lto=lto)
    def negative(x, y):
        y[0] = -x[0] * x[1]

    executor = Compiler()
    executor.launch(negative, 1, 1, *np.empty((2, 8), np.float16))
    assert executor.kernels[0].registers >= 8
    assert executor.kernels[0].stack_bytes == 0


def test_compiler_counts_shared_and_local_memory():
    executor = Compiler()
    y = np.empty(64, np.float32)
    executor.launch(shared_kernel, 1, 64, y, shared_bytes=1024)
    executor.launch(local_kernel, 1, 1, y, 64)
    shared, local = executor.kernels
    assert shared.shared_bytes == 64 * 4 + 1024
    assert local.stack_bytes >= 512 * 4
    assert local.shared_bytes == 0


@pytest.mark.long
def test_compiler_compiles_once_for_each_set_of_types(monkeypatch):
    compiler._compile.cache_clear()
    executor, again = Compiler(), Compiler()
    for each in (executor, executor, again):
        launch_stage(each, LADDER[0])
    assert len(executor.kernels) == len(again.kernels) == 1
    assert compiler._compile.cache_info().misses == 1


def test_compiler_types_arrays_by_layout():
    executor = Compiler()
    x = np.empty((64, 2), np.float32)
    executor.launch(double_kernel, 1, 32, x[:, 0].copy(), x[:, 1].copy())
    executor.launch(double_kernel, 1, 32, x[:, 0], x[:, 1])
    executor.launch(double_kernel, 1, 32, np.broadcast_to(x[:1, 0], 64), x[:, 1])
    contiguous, strided = executor.kernels
    assert contiguous.ptx != strided.ptx


@pytest.mark.parametrize("capability, target", [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((9, 0), "sm_90a")])
def test_compiler_targets_what_it_is_told(capability, target):
    executor = Compiler(capability)
    executor.launch(double_kernel, 1, 32, *np.empty((2, 8), np.float32))
    assert f".target {target}\n" in executor.kernels[0].ptx
    assert f"for '{target}'" in executor.kernels[0].log


def test_compiler_shows_float64():
    """What the lint of every stage looks for is there when a kernel has it."""
    executor = Compiler()
    executor.launch(float64_kernel, 1, 1, np.empty(1, np.float32))
    assert ".f64" in executor.kernels[0].ptx


def test_without_an_assembler_only_the_ptx_is_there(monkeypatch):
    found = compiler._found
    monkeypatch.setattr(compiler, "_found", lambda library: library != "nvJitLink" and found(library))
    monkeypatch.setattr(compiler.shutil, "which", lambda program: None)
    compiler._compile.cache_clear()
    executor = Compiler()
    executor.launch(double_kernel, 1, 32, *np.empty((2, 8), np.float32))
    compiler._compile.cache_clear()
    (kernel,) = executor.kernels
    assert ".visible .entry" in kernel.ptx
    assert (kernel.registers, kernel.spill_bytes, kernel.stack_bytes, kernel.shared_bytes) == (None,) * 4


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setattr(compiler, "_found", lambda library: library != "nvvm")
    compiler.why_not.cache_clear()
    try:
        with pytest.raises(CompilerMissingError, match=r"libnvvm is missing: .*flashcore-numba\[compiler\]"):
            Compiler()
    finally:
        compiler.why_not.cache_clear()


def test_no_device_stays_attached():
    from numba.cuda.cudadrv import devices

    Compiler().launch(double_kernel, 1, 32, *np.empty((2, 8), np.float32))
    assert devices._runtime._get_attached_context() is None


def test_ptxas_on_the_path_gives_the_same_report(monkeypatch):
    """The fallback runs the program it finds, on the PTX; a stand-in answers with a report of ptxas."""
    found = compiler._found
    report = """ptxas info    : Compiling entry function 'k' for 'sm_90a'
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes stack, 2048 bytes smem"""
    seen = []

    def run(command, **options):
        with Path(command[-1]).open() as file:
            seen.append((command[0], command[2], ".visible .entry" in file.read()))
        return subprocess.CompletedProcess(command, 0, "", report)

    monkeypatch.setattr(compiler, "_found", lambda library: library != "nvJitLink" and found(library))
    monkeypatch.setattr(compiler.shutil, "which", lambda program: f"/bin/{program}")
    monkeypatch.setattr(compiler.subprocess, "run", run)
    compiler._compile.cache_clear()
    executor = Compiler()
    executor.launch(double_kernel, 1, 32, *np.empty((2, 8), np.float32), shared_bytes=100)
    compiler._compile.cache_clear()
    (kernel,) = executor.kernels
    assert seen == [("/bin/ptxas", "-arch=sm_90a", True)]
    assert (kernel.registers, kernel.spill_bytes, kernel.stack_bytes, kernel.shared_bytes) == (
        64,
        64,
        16,
        2148,
    )
