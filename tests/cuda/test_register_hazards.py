"""Registers of the stages: used while wgmma has them, used without a fence, read without a value."""

import re
from pathlib import Path
from subprocess import run

import numpy as np
import pytest

from cuda_reference.cpu import CpuModule, build
from cuda_reference.cpu.unset import rewritten
from flashcore_numba.checks import Edit, Mutant, kill_one
from flashcore_numba.core.problem import Problem
from flashcore_numba.run.executor import Simulator
from flashcore_numba.stages import LADDER

ROWS = "warpgroup_rows.cuh"
S14, S15, S16 = "stage14_tma_wgmma.cu", "stage15_ping_pong.cu", "stage16_cluster_split.cu"
CASES = (
    "ragged 33 rows, 70 keys, two heads, two batches",
    "20 rows, 1100 keys",
    "every size of GPU gives the same answer",
)
RESCALED = """            if (!done)
#pragma unroll
                for (int i = 0; i < D_V / 2; i++) o_rmem[i] *= rescale[i / 2 % 2];
"""
WAIT = "            ptx::wgmma_wait<0>();  // O is whole, P and V have been read\n"
TILES = "    const uint64_t q_tile = ptx::wgmma_tile(q_smem), k_tile = ptx::wgmma_tile(k_smem);\n"
LAST_USE = "    ptx::wgmma_fence();  // the last use of these registers is over\n"
EDITS = {
    "P packed before P V has read it": (
        15,
        (
            Edit(WAIT, f"            pack(p_rmem, s_rmem);\n{WAIT}", S15),
            Edit(f"{RESCALED}            pack(p_rmem, s_rmem);\n", RESCALED, S15),
        ),
        r"missing wait: .*p_rmem\[.* and line \d+ .*wgmma_rs.*left operand",
    ),
    "a fence for the first half only": (
        16,
        (Edit("    ptx::wgmma_fence();  // P", "    if (FIRST == 0) ptx::wgmma_fence();  // P", ROWS),),
        r"missing fence: .*wgmma_rs.*the left operand",
    ),
    "no fence before Q K^T": (
        15,
        (Edit(f"{TILES}{LAST_USE}", TILES, ROWS),),
        r"missing fence: .*wgmma_ss.*before its first wgmma",
    ),
    "l without a value, 14": (
        14,
        (Edit("l = {0.0f, 0.0f}, rescale;", "l, rescale;", S14),),
        r"uninitialised read: .*l\[0\] \*= .* and stage14_tma_wgmma.cu:\d+ `Row.*: a part of `l` is read",
    ),
    "l without a value, 15": (
        15,
        (Edit("l = {0.0f, 0.0f}, rescale;", "l, rescale;", S15),),
        r"uninitialised read: .*l\[0\] \*= .* and line \d+ `RowState m.*: a part of `l` is read",
    ),
    "O without a value": (
        14,
        (Edit("Output o_rmem = {};", "Output o_rmem;", S14),),
        r"uninitialised read: .*: an element of `o_rmem` is read",
    ),
    "one sum without a value": (
        12,
        (Edit("r < LANE_ROWS; r++) sum[r] = 0", "r + 1 < LANE_ROWS; r++) sum[r] = 0", "warp_rows.cuh"),),
        r"uninitialised read: .*sum\[r\].* and line \d+ `RowState sum;`: a part of `sum` is read",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EDITS)
def test_the_hazard_is_named(name):
    stage, edits, says = EDITS[name]
    fate = kill_one(Mutant(stage, name, name, edits), names=CASES)
    assert fate.status == "killed"
    assert re.search(says, fate.message), fate.message


DECLARATIONS = """
typedef int number;
struct Pair { float first; int second; };
extern "C" __global__ void declares(float* out) {
    float a, *b = out, c[2][3], d = 1;
    unsigned n; unsigned long long big; const float* p; Pair pair;
    for (int i = 0, j; i < 2; i++) { j = i; out[i] = j; }  // float comment;
    auto f = [&](int x) { half2 h; (void)h; return x; };
    __shared__ float tile[4]; static int count; volatile __shared__ int flag;
    a = d; n = 1; big = 2; p = b; pair.first = p[0] + n + big + f(1); c[0][0] = 0;
    goto end;
end:
    out[2] = a + pair.first + c[0][0] + 0 * sizeof(tile) + 0 * sizeof(count) + 0 * sizeof(flag);
}
"""


def test_declarations_without_a_value_are_found(tmp_path):
    """Each on its own line, members of a struct too, at which the compiler ignores the attribute."""
    source = tmp_path / "declares.cu"
    source.write_text(f"#include <cuda_fp16.h>\n{DECLARATIONS}")
    text = rewritten(source, [])
    named = re.findall(r'__builtin_object_size\(p, 0\), "(\w+)", \{"[^"]*declares.cu", (\d+)\}', text)
    assert sorted(named, key=lambda each: (int(each[1]), each[0])) == [
        ("first", "4"), ("second", "4"), ("a", "6"), ("c", "6"), ("big", "7"), ("n", "7"), ("p", "7"),
        ("pair", "7"), ("j", "8"), ("h", "9"),
    ]  # fmt: skip
    body = text[text.index("#line 1") :].splitlines()[1:]
    assert len(body) == len(source.read_text().splitlines())
    launch = CpuModule(source).kernel("declares")(1, 1, (np.zeros(4, np.float32),))
    assert not launch.problems, launch


@pytest.mark.parametrize("taken", [0, 1])
def test_lines_keep_their_numbers_after_a_group_that_is_skipped(taken, tmp_path):
    """Where the text of an include is, inside the group, with line numbers of its own."""
    (tmp_path / "long.cuh").write_text("#pragma once\n" + "int unused;\n" * 30)
    (tmp_path / "short.cuh").write_text("#pragma once\nint used;\n")
    source = tmp_path / "groups.cu"
    lines = (
        *("#if TAKEN", '#include "long.cuh"', "#else", "int other = __LINE__;", '#include "short.cuh"'),
        *("#endif", "int after = __LINE__;"),
    )
    source.write_text("\n".join(lines) + "\n")
    command = [*build.find_compiler().command.split(), "-x", "c++", "-E", f"-DTAKEN={taken}", "-"]
    said = run(command, input=rewritten(source, []), capture_output=True, text=True, check=True).stdout
    assert "int after = 7;" in said and ("int other = 4;" in said) is (not taken)


@pytest.mark.long
@pytest.mark.parametrize(
    "stage",
    [stage for stage in LADDER if stage.language == "CUDA C"],
    ids=lambda stage: stage.name,
)
def test_the_stages_compile_with_their_variables_watched(stage, rng, monkeypatch, tmp_path):
    """Not as they stand, which is what happens to a source that the attribute does not fit."""
    kernels, compiled = [], []
    executor = Simulator()
    monkeypatch.setattr(executor, "launch", lambda kernel, *args, **options: kernels.append(kernel))
    rows = rng.standard_normal((1, 1, 64, 64)).astype(np.float16)
    stage.launch(Problem(rows, rows, rows), np.empty_like(rows), executor)
    runtime = build.build_runtime(build.find_compiler())
    compile_ = build._compile
    monkeypatch.setattr(build, "_compile", lambda *args: compiled.append(args[1]) or compile_(*args))
    monkeypatch.setattr(build, "cache_folder", lambda name: tmp_path)
    build.build_kernels(build.find_compiler(), runtime, kernels[-1].path, "", dict(kernels[-1].defines), True)
    assert len(compiled) == 1 and "cleanup(cpu_scope_end_0)" in compiled[0]


def test_headers_keep_their_places(tmp_path):
    """An error, and a problem, in a header that a source includes are told with the header's own line."""
    (tmp_path / "adds.cuh").write_text(
        "#pragma once\n__device__ float total(const float* x) {\n    float sum;\n"
        "    for (int i = 0; i < 4; i++) sum += x[i];\n    return sum;\n}\n"
    )
    (tmp_path / "uses.cu").write_text(
        '#include "adds.cuh"\n#include "adds.cuh"\n'
        'extern "C" __global__ void uses(float* out) {\n    out[threadIdx.x] = total(out);\n}\n'
    )
    launch = CpuModule(tmp_path / "uses.cu").kernel("uses")(1, 4, (np.ones(4, np.float32),))
    [problem] = [each for each in launch.problems if each.kind == "uninitialised read"]
    assert (Path(problem.file).name, problem.line, problem.other_line) == ("adds.cuh", 4, 3)
    assert problem.text.startswith("`sum` is read by thread")


def test_of_a_variable_with_a_value_only_a_part_is_unset(tmp_path):
    source = tmp_path / "half.cu"
    source.write_text(
        'extern "C" __global__ void half(float* out, int count) {\n    float pair[2];\n    pair[0] = 1;\n'
        "    for (int i = 0; i < count; i++) out[i] = pair[i];\n}\n"
    )
    launch = CpuModule(source).kernel("half")(1, 1, (np.ones(2, np.float32), 2))
    [problem] = launch.problems
    assert problem.text.startswith("a part of `pair` is read by thread") and problem.line == 4


def test_a_declaration_that_only_looks_like_one_compiles(tmp_path):
    """Where the attribute does not fit, the source is compiled as it stands."""
    source = tmp_path / "odd.cu"
    source.write_text(
        "#define DECLARE(type) type\n#define NAMED struct Odd { int x; }\nNAMED;\n"
        'extern "C" __global__ void odd(int* out) {\n    Odd a, b = {2};\n    a.x = b.x;\n'
        "    *out = a.x;\n}\ntemplate <class T> struct Later;\n"
    )
    out = np.zeros(1, np.int32)
    assert not CpuModule(source).kernel("odd")(1, 1, (out,)).problems
    assert out[0] == 2
