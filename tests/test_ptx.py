"""The PTX of Numba's stages: no float64 instruction, which an L4 runs at 1/64 of the float32 rate, and no
instruction of a feature that is off.
"""

import re

import numpy as np
import pytest
from matrix import few

from flashcore_numba import LADDER, Problem
from flashcore_numba.core.features import Features
from flashcore_numba.run.compiler import Compiler
from flashcore_numba.stages.edited import Edit, edited

CASES = [
    pytest.param(stage, variant, id="-".join(filter(None, [stage.label, variant])))
    for stage in LADDER
    if stage.language == "Numba"
    for variant in stage.variants or [None]
]


@pytest.mark.parametrize("stage, variant", few(CASES, (LADDER[0], None)))
def test_no_float64(stage, variant, rng):
    head_dim = int(rng.choice(stage.head_dims))
    contiguous = np.empty((1, 4, 70, head_dim), np.float16)
    strided = np.empty((1, 70, 4, head_dim), np.float16).transpose(0, 2, 1, 3)
    executor = Compiler()
    for array in (contiguous, strided):
        lse = np.empty(array.shape[:3], np.float32) if stage.returns_lse else None
        stage.launch(
            Problem(array, array, array, causal=stage.causal), array, executor, lse=lse, variant=variant
        )
    assert executor.kernels, f"stage {stage.label} launched nothing"
    assert not float64(executor)


def float64(executor):
    """The lines with a float64 instruction."""
    return [
        f"{kernel.name}: {line.strip()}"
        for kernel in executor.kernels
        for line in kernel.ptx.splitlines()
        if ".f64" in line
    ]


WITHOUT_FEATURES = (
    Edit("tile, slope, q, k, v, out, lse = sequence(q, k, v, out, lse, options)", "tile = cuda.blockIdx.x"),
    Edit("end(row, seq_q, seq_k, causal, options)", "interval(row, seq_q, seq_k, causal)[1]"),
    Edit("import diagonal\n", "import diagonal, interval\n"),
    Edit("        m, l = start(m, l, lane, options)\n", ""),
    Edit("logit(score, diagonal(row, seq_q, seq_k) - first_key - lane, slope, options)", "score"),
    Edit("if visible > 0 or SINKS else", "if visible > 0 else"),
)


def instructions(stage, problem):
    """The kernel's PTX with its names numbered, and without the symbols of every device function."""
    executor = Compiler()
    stage.launch(problem, np.empty_like(problem.q), executor)
    (kernel,) = executor.kernels
    names: dict[str, str] = {}
    text = re.sub(r"//.*|\b_Z\w+", "", kernel.ptx)
    text = re.sub(r"_cudapy_smem_\d+", lambda found: names.setdefault(found[0], f"smem{len(names)}"), text)
    return [line for line in text.splitlines() if line.strip() and not line.startswith(".common")]


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_feature_that_is_off_leaves_no_instruction(head_dim):
    problem = Problem(*np.zeros((3, 1, 4, 70, head_dim), np.float16), causal=True)
    with edited(5, *WITHOUT_FEATURES) as without:
        expected = instructions(without, problem)
    stage = LADDER[4]
    assert instructions(stage, problem) == expected
    sinks = Features(sinks=np.zeros(4, np.float32))
    on = Problem(problem.q, problem.k, problem.v, causal=True, features=sinks)
    assert instructions(stage, on) != expected


@pytest.mark.long
def test_no_float64_in_features():
    numbers, slopes = np.zeros(4, np.int32), np.zeros((3, 4), np.float32)
    features = Features((3, 4), 5.0, slopes[0], slopes, numbers[:3], numbers, numbers)
    arrays = np.zeros((3, 1, 4, 70, 64), np.float16)
    executor = Compiler()
    LADDER[4].launch(Problem(*arrays, features=features), arrays[0], executor)
    assert executor.kernels and not float64(executor)
