"""What stages 07 to 10 say of themselves: their shared memory, their barriers, their bank conflicts."""

import re

import numpy as np
import pytest

from cuda_reference import FOLDER
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import (
    stage07_wmma_qk,
    stage08_wmma_full,
    stage09_async_copy,
    stage10_pipeline,
)

# The memory map of 49,536 bytes that the plan of stage 09 prints.
PLAN = {"q": 6144, "k": 9216, "v": 9216, "s": 9216, "p": 3072, "m": 192, "l": 192, "o": 12288}
WARPS = {7: 8, 8: 8, 9: 12, 10: 12}
BARRIERS_A_TILE = {7: 3, 8: 4, 9: 4, 10: 4}
KEYS = {7: 32, 8: 32, 9: 32, 10: 64}


def constants(file, **defines):
    """The `constexpr int` of a kernel's source, with their values."""
    values = dict(defines)
    for statement in re.findall(r"^constexpr int ([^;]*);", (FOLDER / file).read_text(), re.MULTILINE):
        for name, value in re.findall(r"(\w+) = ([^,]+)", statement):
            values[name] = eval(value, {}, values)
    return values


def launched(stage, rng, S_q, S_k, head_dim=64, variant=None):
    """The output of a random problem, its log-sum-exp, and the launch."""
    q, k, v = (rng.standard_normal((1, 1, rows, head_dim)).astype(np.float16) for rows in (S_q, S_k, S_k))
    out, lse = np.full(q.shape, np.nan, np.float16), np.full(q.shape[:3], np.nan, np.float32)
    executor = Simulator()
    stage.launch(Problem(q, k, v), out, executor, lse, variant)
    executor.check()
    return out, lse, executor.launches[0]


def conflicts(launch, text):
    """(ideal wavefronts, wavefronts) of the source lines that hold `text`."""
    rows = [row for row in launch.lines() if row.space == "shared" and text in row.text]
    assert rows, f"no line of {launch.kernel.label} that touches shared memory holds {text!r}"
    total = sum(row.wavefronts for row in rows)
    return total - sum(row.conflicts for row in rows), total


def test_stage_09_has_the_plans_memory_map():
    assert stage09_async_copy.memory_map(64) == PLAN
    assert sum(PLAN.values()) == 49536


@pytest.mark.parametrize("head_dim", [64, 128])
def test_stage_09s_launcher_and_kernel_have_one_memory_map(head_dim):
    of_kernel = constants("stage09_async_copy.cu", HEAD_DIM=head_dim)
    begin = 0
    for name, size in stage09_async_copy.memory_map(head_dim).items():
        assert of_kernel[f"{name.upper()}_AT"] == begin
        assert of_kernel[f"{name.upper()}_BYTES"] == size
        begin += size
    assert of_kernel["SMEM_BYTES"] == begin


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_stage_10s_launcher_and_kernel_have_one_memory_map(head_dim, stages):
    of_kernel = constants("stage10_pipeline.cu", HEAD_DIM=head_dim, STAGES=stages)
    begin = 0
    for name, size in stage10_pipeline.memory_map(head_dim, stages).items():
        assert of_kernel[f"{name.upper()}_AT"] == begin
        assert of_kernel[f"{name.upper()}_BYTES"] == size
        begin += size
    assert of_kernel["SMEM_BYTES"] == begin <= 227 * 1024


@pytest.mark.long
@pytest.mark.parametrize("module", [stage07_wmma_qk, stage08_wmma_full, stage09_async_copy, stage10_pipeline])
def test_barriers_of_a_tile(module, rng):
    number = module.STAGE.number
    short, long = (launched(module.STAGE, rng, 32, tiles * KEYS[number])[2].totals() for tiles in (2, 5))
    each = (long["barriers"] - short["barriers"]) / (3 * WARPS[number])
    assert each == BARRIERS_A_TILE[number]


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_deeper_pipeline_changes_no_bit(head_dim, rng):
    seed = int(rng.integers(2**32))
    shallow, lse, _ = launched(stage10_pipeline.STAGE, np.random.default_rng(seed), 50, 330, head_dim, "1")
    for variant in ("2", "3", "4"):
        deep = launched(stage10_pipeline.STAGE, np.random.default_rng(seed), 50, 330, head_dim, variant)
        np.testing.assert_array_equal(deep[0], shallow)
        np.testing.assert_array_equal(deep[1], lse)


def test_what_the_plans_map_leaves_unpadded_meets_in_the_banks(rng):
    launch = launched(stage09_async_copy.STAGE, rng, 48, 128)[2]
    slower = {
        "q_rmem[i], q_smem": 8,
        "(o, o_smem": 4,
        "(p, p_smem": 4,
        "k_transposed, k_smem": 1,
        "(v, v_smem": 1,
    }
    for text, factor in slower.items():
        ideal, counted = conflicts(launch, text)
        assert counted == factor * ideal, text


def test_stage_10s_fragments_meet_in_no_bank(rng):
    launch = launched(stage10_pipeline.STAGE, rng, 48, 128)[2]
    for text in ("load_matrix_sync", "store_matrix_sync"):
        ideal, counted = conflicts(launch, text)
        assert counted == ideal, text
