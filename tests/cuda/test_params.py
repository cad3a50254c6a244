"""Host and kernel mean the same by params.cuh, and by what a row sees."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule
from flashcore_numba.core.problem import Problem
from flashcore_numba.stages.parts.cuda_arguments import cuda_arguments, strides

SOURCE = Path(__file__).with_name("params.cu")


@pytest.fixture(scope="module")
def kernel():
    return CpuModule(SOURCE).params


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_q, seq_k", [(5, 9), (9, 5), (7, 7)])
def test_a_kernel_reads_what_the_host_packed(kernel, seq_q, seq_k, causal):
    q = np.zeros((2, 6, seq_q, 64), np.float16)
    k = np.zeros((2, seq_k, 3, 64), np.float16).transpose(0, 2, 1, 3)
    v = np.zeros((2, 3, 2 * seq_k, 64), np.float16)[:, :, ::2]
    problem, out = Problem(q, k, v, causal=causal), np.zeros((2, 6, seq_q, 128), np.float16)[..., :64]
    fields, scale = np.zeros(19, np.int64), np.zeros(1, np.float32)
    intervals = np.zeros((seq_q, 2), np.int32)
    arguments = cuda_arguments(problem, out, None, 0.3)
    kernel(1, 1, (*arguments, fields, scale, intervals)).check()
    layout = [int(step) for x in (q, k, v, out) for step in strides(x)]
    assert fields[:12].tolist() == layout
    assert fields[12:17].tolist() == [seq_q, seq_k, 6, 2, causal]
    assert fields[17] == layout[3] + 2 * layout[4] + 3 * layout[5]
    assert fields[18] == (6 + 2) * seq_q
    assert scale[0] == np.float32(0.3)
    assert intervals.tolist() == [list(problem.mask.interval(row)) for row in range(seq_q)]


def test_the_executor_names_the_parameters_that_macros_declare(kernel):
    names = [parameter.name for parameter in kernel.parameters]
    assert names[:6] == ["q", "k", "v", "out", "lse", "q_batch"]
    assert names[17:] == [*("S_q", "S_k", "H", "group", "scale_log2", "causal"),
                          *("fields", "scale_log2_out", "intervals")]  # fmt: skip
