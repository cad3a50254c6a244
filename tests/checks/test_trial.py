"""Poisoned surroundings: what a stage must not touch and must not leave out."""

import numpy as np
import pytest
from numba import cuda

from cuda_reference import source
from flashcore_numba.checks.cases import normal
from flashcore_numba.checks.runner import KINDS
from flashcore_numba.checks.trial import LAYOUTS, Failed, Trial, family
from flashcore_numba.core.output import LSE, OUT
from flashcore_numba.simulator import KINDS as REPORTED
from flashcore_numba.stages import LADDER, Stage

from .stand_in import honest, stand_in


def stage_of(launch, **data) -> Stage:
    return Stage(number=0, name="stand_in", title="", idea="", launch=launch, **data)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_answer(layout, rng):
    x = normal(rng, 2, 3, 20, 33, 64)
    answer = Trial(stand_in())(x, layout=layout)
    expected, lse = honest(x)
    assert np.array_equal(answer.out, expected.astype(np.float16))
    assert np.array_equal(answer.lse, lse.astype(np.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_are_aligned_and_surrounded_by_nan(layout, rng):
    seen = {}

    def launch(problem, out, executor, lse=None, variant=None):
        assert problem.aligned
        seen["k"] = problem.k
        out[...] = honest(problem)[0]

    x = normal(rng, 1, 2, 8, 9, 64)
    Trial(stage_of(launch))(x, layout=layout)
    memory = seen["k"].base  # bytes, 16 more than the parent array so that it can be aligned
    start = -memory.ctypes.data % 16
    outer = memory[start : start + memory.size - 16].view(np.float16)
    assert outer.size > x.k.size
    assert np.isnan(outer).sum() == outer.size - x.k.size


def test_an_element_never_written_is_named(rng):
    def launch(problem, out, executor, lse=None, variant=None):
        answer = honest(problem)[0]
        out[:, :, :-1] = answer[:, :, :-1]
        out[:, :, -1, 1:] = answer[:, :, -1, 1:]

    with pytest.raises(Failed, match=r"2 of 1280 elements of out .*b=0, h=0, row=9, col=0") as failure:
        Trial(stage_of(launch))(normal(rng, 1, 2, 10, 12, 64))
    assert failure.value.kind == "unwritten"


def test_lse_never_written_fails(rng):
    def launch(problem, out, executor, lse=None, variant=None):
        out[...] = honest(problem)[0]

    with pytest.raises(Failed, match="elements of lse") as failure:
        Trial(stage_of(launch, outputs=(OUT, LSE)))(normal(rng, 1, 1, 10, 12, 64))
    assert failure.value.kind == "unwritten"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("behind", [True, False])
def test_a_write_beside_the_output_fails(layout, behind, rng):
    def launch(problem, out, executor, lse=None, variant=None):
        out[...] = honest(problem)[0]
        first = out.ctypes.data - out.base.ctypes.data  # byte offset of the window in its memory
        last = first + sum((n - 1) * stride for n, stride in zip(out.shape, out.strides, strict=True))
        at = last + 2 if behind else first - 2
        out.base[at : at + 2] = 0

    with pytest.raises(Failed, match="memory beside it") as failure:
        Trial(stage_of(launch))(normal(rng, 1, 2, 10, 12, 64), layout=layout)
    assert failure.value.kind == "guard"


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_changed_input_fails(name, rng):
    def launch(problem, out, executor, lse=None, variant=None):
        out[...] = honest(problem)[0]
        getattr(problem, name)[0, 0, 3, 5] += 1

    with pytest.raises(Failed, match=f"^{name}: an input"):
        Trial(stage_of(launch))(normal(rng, 1, 1, 10, 12, 64))


@cuda.jit
def racing_kernel(out):
    shared = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    shared[i] = i
    out[0, 0, 0, i] = shared[63 - i]


def test_a_report_of_the_simulator_fails_with_its_line(rng):
    def launch(problem, out, executor, lse=None, variant=None):
        out[...] = honest(problem)[0]
        executor.launch(racing_kernel, 1, 64, out)

    with pytest.raises(Failed, match=r"test_trial\.py:\d+") as failure:
        Trial(stage_of(launch))(normal(rng, 1, 1, 1, 12, 64))
    assert failure.value.kind == "race"


@pytest.mark.parametrize("kind", REPORTED)
def test_every_kind_of_report_has_a_family(kind):
    assert family(kind) in KINDS
    assert family(kind) != "simulator" or kind == "division by zero"


def test_a_stage_of_the_ladder_runs_under_every_schedule(rng):
    x = normal(rng, 1, 1, 8, 9, 64)
    expected = honest(x)[0]
    for order in ("lockstep", "forward", "reverse", "random:3"):
        answer = Trial(LADDER[0])(x, order=order)
        assert np.abs(answer.out - expected).max() < 5e-3


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 64), (10, 0)])
def test_a_cuda_kernel_that_writes_beside_its_output_is_caught(row, column, rng, tmp_path):
    (tmp_path / "beside.cu").write_text(
        'extern "C" __global__ void beside(unsigned short* out, int at) { out[at] += threadIdx.x == 0; }\n'
    )

    def launch(problem, out, executor, lse=None, variant=None):
        out[...] = honest(problem)[0]
        at = row * out.strides[2] // 2 + column
        executor.launch(source("beside", folder=tmp_path), 1, 1, out.view(np.uint16), np.int32(at))

    trial, x = Trial(stage_of(launch, language="CUDA C")), normal(rng, 1, 2, 10, 12, 64)
    if row == column == 0:
        trial(x, layout="inside")
        return
    with pytest.raises(Failed, match=r"out: memory beside it was written, 1 elements") as failure:
        trial(x, layout="inside")
    assert failure.value.kind == "guard"
