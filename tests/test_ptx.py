"""The PTX of every stage has no float64 instruction: an L4 runs those at 1/64 of the float32 rate."""

import numpy as np
import pytest
from matrix import few

from flashcore_numba import LADDER, Problem
from flashcore_numba.run.compiler import Compiler

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
    found = [
        f"{kernel.name}: {line.strip()}"
        for kernel in executor.kernels
        for line in kernel.ptx.splitlines()
        if ".f64" in line
    ]
    assert not found, "float64 in " + "; ".join(found[:5])
