"""Kernels in CUDA C by name: loading, running without a GPU, and what is said where something is missing."""

import re
from pathlib import Path

import numpy as np
import pytest
from cuda_toy import PLAIN, REVERSE, arguments, plain_stage, toy

import cuda_reference
from cuda_reference import cpu, load, source
from cuda_reference.source import headers
from flashcore_numba import UnsupportedError, attention, cli
from flashcore_numba.calls import refuse
from flashcore_numba.checks import check_stage
from flashcore_numba.core import oracle
from flashcore_numba.core.problem import Problem
from flashcore_numba.core.shapes import Shape
from flashcore_numba.evidence.counts import count
from flashcore_numba.run import executor
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.run.executor import Simulator, simulated
from flashcore_numba.simulator import SimulationError
from flashcore_numba.stages import LADDER
from flashcore_numba.stages.runs import Run

RACING = REVERSE.replace("__syncthreads();", ";")
NO_COMPILER = "the CPU executor needs a C++ compiler"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the tests that change no file: one elsewhere is compiled anew."""
    return tmp_path_factory.mktemp("toy")


@pytest.fixture
def no_compiler(monkeypatch):
    def missing(*args):
        raise cpu.CompilerMissingError(NO_COMPILER)

    monkeypatch.setattr(cpu, "find_compiler", missing)


def test_a_source_is_named_by_its_file():
    kernel = source("stage12_mma_sync", HEAD_DIM=64, CAUSAL=True)
    assert kernel.entry == "mma_sync"
    assert kernel.path == cuda_reference.FOLDER / "stage12_mma_sync.cu"
    assert kernel.defines == (("CAUSAL", 1), ("HEAD_DIM", 64))
    assert kernel.label == "mma_sync (CAUSAL=1, HEAD_DIM=64)"
    assert kernel == source("stage12_mma_sync", CAUSAL=1, HEAD_DIM=64)
    assert source("stage13_split_kv", "merge").entry == "merge"


def test_a_digest_follows_the_files(tmp_path):
    kernel = toy(tmp_path, FACTOR=2)
    first = kernel.digest
    assert toy(tmp_path, FACTOR=3).digest != first
    kernel.path.write_text(REVERSE + "\n")
    assert kernel.digest != first


VALUE = 'extern "C" __global__ void value(float* out) { out[0] = VALUE; }\n'


@pytest.mark.parametrize(
    ("texts", "changed"),
    [
        ({"value.cu": '#include "v.h"\n'}, "v.h"),
        ({"value.cu": '#include "sub/v.cuh"\n'}, "sub/v.cuh"),
        ({"value.cu": '  #  include "../v.inl"  // the value\n'}, "../v.inl"),
        ({"value.cu": '#include "sub/a.h"\n', "sub/a.h": '#include "b.h"\n'}, "sub/b.h"),
        ({"value.cu": '#include "sub/a.h"\n', "sub/a.h": '#include "../kernels/sub/b.h"\n'}, "sub/b.h"),
    ],
)
def test_a_changed_header_is_compiled_anew(texts, changed, tmp_path):
    folder = tmp_path / "kernels"
    (folder / "sub").mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text + VALUE * (name == "value.cu"))
    out, digests = np.zeros(1, np.float32), set()
    for value in (1, 2):
        (folder / changed).write_text(f"#pragma once\n#define VALUE {value}\n")
        kernel = source("value", folder=folder)
        digests.add(kernel.digest)
        load(kernel, "cpu")(1, 1, (out,))
        assert out[0] == value
    assert len(digests) == 2


def test_headers_that_include_each_other_come_to_an_end(tmp_path):
    (tmp_path / "value.cu").write_text('#include "a.h"\n#include "not_there.h"\n')
    (tmp_path / "a.h").write_text(f'#include "../{tmp_path.name}/b.h"\n')
    (tmp_path / "b.h").write_text(f'#include "../{tmp_path.name}/a.h"\n')
    found = headers(tmp_path / "value.cu")
    assert {path.name for path in tmp_path.iterdir()} - {Path(path).name for path in found} == {"value.cu"}
    (tmp_path / "other.h").write_text("")
    assert headers(tmp_path / "value.cu") == found


def test_a_kernel_runs_on_the_cpu(folder, rng):
    x, y, n, expected = arguments(rng)
    launch = load(toy(folder, FACTOR=2), "cpu")((2,), (64,), (x, y, n))
    np.testing.assert_array_equal(y, expected)
    assert launch.problems == []


def test_a_changed_file_is_compiled_anew(tmp_path, rng):
    x, y, n, expected = arguments(rng)
    kernel = toy(tmp_path, FACTOR=2)
    load(kernel, "cpu")((2,), (64,), (x, y, n))
    kernel.path.write_text(REVERSE.replace("y[i] = ", "y[i] = -"))
    load(kernel, "cpu")((2,), (64,), (x, y, n))
    np.testing.assert_array_equal(y, -expected)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: load("no_such_stage", "cpu"), FileNotFoundError, r"no_such_stage\.cu"),
        (lambda: load(source("x"), defines={"D": 1}), ValueError, "defines"),
    ],
)
def test_wrong_use_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_an_unknown_back_end_is_named(tmp_path):
    with pytest.raises(ValueError, match="'gpu' and 'cpu'"):
        load(toy(tmp_path, FACTOR=2), "tpu")


def test_the_simulator_runs_and_counts_it(folder, rng):
    x, y, n, expected = arguments(rng, 128)
    executor = Simulator()
    executor.launch(toy(folder, FACTOR=2), 2, 64, x, y, n)
    np.testing.assert_array_equal(y, expected)
    executor.check()
    (launch,) = executor.launches
    totals = launch.totals()
    assert totals["global_load_requests"] == totals["global_store_requests"] == 4  # a warp each
    assert totals["global_load_sectors"] == 16
    assert totals["shared_load_wavefronts"] == totals["shared_store_wavefronts"] == 4
    assert totals["barriers"] == 4
    lines = {(row.line, row.op, row.space) for row in launch.lines()}
    assert {
        (5, "load", "global"),
        (5, "store", "shared"),
        (7, "load", "shared"),
        (7, "store", "global"),
    } <= lines
    assert "reverse (FACTOR=2)" in str(launch)
    assert "tile_smem[threadIdx.x]" in str(launch)


def test_the_simulator_names_a_race(tmp_path, rng):
    x, y, n, _ = arguments(rng)
    executor = Simulator()
    executor.launch(toy(tmp_path, text=RACING, FACTOR=2), 2, 64, x, y, n)
    with pytest.raises(SimulationError, match=r"race: reverse\.cu:[57].*line [57]"):
        executor.check()


def test_scratch_that_was_never_written_is_reported(folder, rng):
    executor = Simulator()
    x, y = executor.empty(64, np.float32), executor.empty(64, np.float32)
    executor.launch(toy(folder, FACTOR=2), 1, 64, x, y, np.int32(64))
    assert [found.kind for found in executor.launches[0].problems] == ["uninitialised read"]
    executor = Simulator()
    x[:] = 1
    executor.launch(toy(folder, FACTOR=2), 1, 64, x, y, np.int32(64))
    executor.launch(toy(folder, FACTOR=2), 1, 64, y, x, np.int32(64))
    executor.check()
    assert (x == 4).all()


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse", "random:3"])
def test_every_order_gives_the_same(folder, rng, order):
    x, y, n, expected = arguments(rng)
    executor = Simulator(order=order, ops=False)
    executor.launch(toy(folder, FACTOR=2), 2, 64, x, y, n)
    np.testing.assert_array_equal(y, expected)
    assert executor.launches[0].lines() == [], "without ops nothing is counted"


def test_the_compiler_compiles_it(tmp_path):
    executor = Compiler((8, 0))
    executor.launch(
        toy(tmp_path, FACTOR=2), 1, 64, *np.empty((2, 64), np.float32), np.int32(64), shared_bytes=128
    )
    (kernel,) = executor.kernels
    assert kernel.name == "reverse (FACTOR=2)"
    assert kernel.shared_bytes == 64 * 4 + 128
    assert kernel.spill_bytes == 0


def test_a_stage_in_cuda_c_passes_the_check(tmp_path):
    some = ("ragged 33", "causal ragged 70 rows, 33 keys", "extreme: one key dominates", "a scale of 0.3")
    report = check_stage(plain_stage(tmp_path), names=some)
    assert len(report.results) == len(some)
    assert report.passed, "\n".join(f"{failure.name}: {failure.message}" for failure in report.failures)


def test_a_wrong_stage_in_cuda_c_fails_it(tmp_path):
    stage = plain_stage(tmp_path, PLAIN.replace("row + 1 + S_k - S_q", "row + 1"))
    (failure, *_) = check_stage(stage, stop_at_first=True, names=["causal ragged 33 rows, 70 keys"]).failures
    assert failure.kind == "value"
    assert "top-left" in failure.message


def test_a_stage_in_cuda_c_is_counted(tmp_path):
    counted = count(Run(plain_stage(tmp_path), None), Shape(1, 1, 40, 64))
    assert counted.right
    assert counted.moved()["global_requests"] > 0
    assert counted.as_dict()["lines"]


@pytest.mark.long
def test_attention_runs_it_on_host_arrays(tmp_path, rng):
    q, k, v = (rng.standard_normal((2, 2, 40, 64)).astype(np.float16) for _ in range(3))
    out, lse = attention(q, k, v, causal=True, stage=plain_stage(tmp_path), return_lse=True)
    right, right_lse = oracle.attention(q, k, v, True, None)
    np.testing.assert_allclose(out, right, atol=2e-3)
    np.testing.assert_allclose(lse, right_lse, atol=2e-3)


def test_where_no_compiler_is_the_stage_is_refused(no_compiler, tmp_path):
    stage = plain_stage(tmp_path)
    array = np.zeros((1, 1, 8, 64), np.float16)
    with pytest.raises(
        UnsupportedError, match=f"stage 99 plain cannot run on host arrays here .{re.escape(NO_COMPILER)}"
    ):
        refuse(stage, Problem(array, array, array))
    able, sentences = simulated([LADDER[0], stage])
    assert able == [LADDER[0]]
    assert sentences == [f"99 plain: not run, {NO_COMPILER}"]


CUDA = [stage for stage in LADDER if stage.language == "CUDA C"]


@pytest.mark.parametrize("command", ["check", "count", "mutants"])
def test_where_no_compiler_is_a_command_says_one_sentence(command, no_compiler, monkeypatch, capsys):
    monkeypatch.setattr("flashcore_numba.core.gpu.available", lambda: False)
    assert cli.main([command, str(CUDA[0].number)]) == 1
    out, err = capsys.readouterr()
    assert err == f"flashcore {command}: {CUDA[0].label}: not run, {NO_COMPILER}\n"
    assert out == ""


def test_why_not_simulated_knows_numba(no_compiler):
    assert executor.why_not_simulated("Numba") is None
    assert executor.why_not_simulated("CUDA C") == NO_COMPILER
