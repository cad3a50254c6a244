"""A report's facts are fields, and its message is made of them."""

from pathlib import Path

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule
from cuda_reference.cpu.facts import Block, Line, Memory, Thread, Variable, pieces_of
from cuda_reference.cpu.report import ABOUT
from cuda_reference.cpu.report import KINDS as EXECUTOR_KINDS
from flashcore_numba.checks.runner import KINDS as CHECK_KINDS
from flashcore_numba.checks.trial import FAMILIES
from flashcore_numba.simulator.problems import KINDS as SIMULATOR_KINDS

KERNEL = """
extern "C" __global__ void rows(float* out) {
    __shared__ float row[64];
    extern __shared__ __align__(16) float smem[];
    if (threadIdx.x < 16) row[threadIdx.x] = 1.0f;
    smem[threadIdx.x] = 2.0f;
    __syncthreads();  // both are whole before they are read
    const float mine = row[threadIdx.x];
    out[threadIdx.x] = mine + smem[32 + threadIdx.x];
}
"""


def test_static_memory_has_a_name_and_dynamic_memory_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.cu"
    path.write_text(KERNEL)
    launch = CpuModule(path).rows(1, 32, (np.zeros(32, np.float32),), shared_mem=256)
    static, dynamic = sorted(launch.problems, key=lambda problem: problem.line)
    for problem, memory, said in (
        (static, Memory("static", "row", 64), "`row` (shared memory, byte 64 of it)"),
        (dynamic, Memory("shared", "", 128), "shared memory at byte 128"),
    ):
        assert problem.kind == "uninitialised read" and problem.memory == memory
        assert said in problem.text and said in str(problem)
        assert problem.text.endswith("[block 0,0,0]") and problem.pieces[-1] == Block(0, 0, 0)
    assert static.threads == [16] and "thread 16 (warp 0, lane 16)" in static.text
    assert dynamic.threads == [0]


def test_every_fact_gets_its_words() -> None:
    sent = "\x02thread:33:\x03 at \x02line:7:\x03 of \x02global:8:out\x03 and \x02nowhere:0:\x03"
    pieces, about = pieces_of(
        sent + "\x02about:0:ledger\x03\x02variable:0:x\x03\x02static:12:\x03", lambda: [(8, 8, "tile")]
    )
    assert about == "ledger"
    facts = [piece for piece in pieces if not isinstance(piece, str)]
    assert facts[:3] == [Thread(33), Line(7), Memory("global", "out", 8)]
    assert facts[3:] == [Memory("nowhere", "", 0), Variable("x"), Memory("static", "tile", 4)]
    assert "".join(map(str, pieces)) == (
        "thread 33 (warp 1, lane 1) at line 7 of out at byte 8 and address (nil), near no array of the launch"
        "`x``tile` (shared memory, byte 4 of it)"
    )
    assert pieces_of("words alone", list) == (("words alone",), "")


@pytest.mark.parametrize("kind", sorted({*SIMULATOR_KINDS, *EXECUTOR_KINDS}))
def test_every_kind_of_report_has_a_family(kind: str) -> None:
    assert FAMILIES[kind] in CHECK_KINDS


def test_what_the_runtime_says_a_report_is_about_is_known() -> None:
    source = Path(CpuModule.__init__.__code__.co_filename).parent / "src"
    text = "".join(path.read_text() for path in source.glob("*.cpp"))
    assert {about for about in ABOUT if f'fact("about", 0, "{about}")' in text} == set(ABOUT)
