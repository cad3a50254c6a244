"""Every kernel in CUDA C compiles for every GPU of the table, and gets what it got before.

Variants are compiled here for compute capability 9.0 alone: `flashcore resources --save` compiles everything.
"""

import numpy as np
import pytest
from matrix import first_of_each

from cuda_reference import INCLUDE, source
from cuda_reference.compile import CompileError, compile, nvrtc_version, parse_log, target
from cuda_reference.source import BRANCHES
from flashcore_numba.core.features import Features
from flashcore_numba.core.multiprocessors import shared_limit
from flashcore_numba.core.problem import Problem
from flashcore_numba.evidence import resource_table
from flashcore_numba.predict.occupancy import of_kernel
from flashcore_numba.run.registers import examples, registers
from flashcore_numba.stages import LADDER, files
from flashcore_numba.stages.edited import loaded
from flashcore_numba.stages.find import find
from flashcore_numba.stages.runs import Run

ITEMS = list(resource_table.items(LADDER))
COMPILED = [item for item in ITEMS if item[3] == (9, 0) or item[1] in (None, find(item[0]).default_variant)]
AGAIN = "if that is meant: flashcore resources --save"
# Kernels that spill, with the reason why that is right. All others must not.
WIDE = "64 keys a tile at D = 128: 388 TFLOP/s at 4x16x4096x128 on an H200, 350 with 32 keys and no spill"
TWO_BLOCKS = (
    "two blocks of 512 threads leave a thread 64 registers; 16 bytes and less, on GPUs nobody measured"
)
PERSISTENT = "the loop over pieces of work takes two registers more; this schedule is for comparison"
SPILLS = {
    **{f"12 {variant}, D = 128, sm_90": WIDE for variant in ("large", "in_order", "mma_sync")},
    **{
        f"{stage}, D = 128, sm_{arch}": WIDE
        for stage in ("12 mma_sync", "13 split_kv")
        for arch in (100, 120)
    },
    "12 mma_sync, D = 256, sm_100": WIDE,
    **{f"11 warp_specialized, D = 64, sm_{arch}": TWO_BLOCKS for arch in (100, 120)},
    **{f"13 persistent, D = 128, sm_{arch}": PERSISTENT for arch in (80, 89, 90)},
}
# What the assembler says where it undoes a kernel's design: setmaxnreg ignored, wgmma serialised (twice).
FATAL = ("C7508", "C7509", "C7512")

DOUBLE = """// A kernel to compile.
extern "C" __global__ void double_all(float* x, int n) {
    extern __shared__ float row_smem[];
    __shared__ float tile_smem[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile_smem[threadIdx.x] = x[i] * FACTOR;
    row_smem[threadIdx.x] = tile_smem[31 - threadIdx.x];
    __syncthreads();
    if (i < n) x[i] = row_smem[31 - threadIdx.x];
}
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* x) {
    float values[64];
#pragma unroll
    for (int i = 0; i < 64; i++) values[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = values[i] * values[63 - i] + values[i ^ 5];
}
"""


@pytest.fixture(scope="module")
def table():
    return resource_table.read()


@pytest.mark.parametrize(
    "item", first_of_each(map(pytest.param, COMPILED), lambda item: item[0]), ids=resource_table.name
)
def test_a_kernel_is_compiled_as_the_table_says(item, table):
    name, now = resource_table.name(item), resource_table.compiled(*item)
    assert now, f"{name} launches nothing"
    assert name in table["kernels"], f"{name} is not in the table; {AGAIN}"
    exact = table["nvrtc"] == ".".join(map(str, nvrtc_version()))
    found = resource_table.differences(item, table["kernels"][name], now, exact)
    assert not found, "\n".join([*found, AGAIN])


def test_the_table_has_no_line_too_many(table):
    assert sorted(table["kernels"]) == sorted(map(resource_table.name, ITEMS)), AGAIN


def test_nothing_spills_without_a_reason(table):
    spilling = {name for name, kernels in table["kernels"].items() if any(k["spill_bytes"] for k in kernels)}
    assert spilling == set(SPILLS)


@pytest.mark.long
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("number", "capability"), [(12, (8, 0)), (15, (9, 0))])
def test_merging_spills_nothing(number, capability, head_dim):
    """O of before comes into the registers when those of the scores are free."""
    q, o = np.empty((4, 16, 4096, head_dim), np.float16), np.empty((4, 16, 4096, head_dim), np.float32)
    for float32_out in (False, True):
        features = Features(float32_out=float32_out, prior_out=o, prior_lse=o[..., 0].copy())
        problem = Problem(q, q, q, causal=True, features=features)
        (kernel,) = registers(Run(find(number), None), [problem], capability)
        assert kernel["spill_bytes"] == 0 and not kernel["warnings"], kernel


@pytest.mark.parametrize("item", ITEMS, ids=resource_table.name)
def test_a_block_fits_the_gpu(item, table):
    """Compiled for the tile that is chosen there; an SM holds at least one block of it."""
    for kernel in table["kernels"][resource_table.name(item)]:
        assert kernel["shared_bytes"] <= shared_limit(item[3])
        assert of_kernel(item[3], kernel).blocks >= 1


def test_every_gpu_has_the_stages_that_it_runs():
    found = {capability: set() for capability in resource_table.CAPABILITIES}
    for key, _, head_dim, capability in ITEMS:
        found[capability].add((find(key).number, head_dim))
    both = {(number, head_dim) for number in range(9, 17) for head_dim in (64, 128)} | {(7, 64), (8, 64)}
    both |= {(number, head_dim) for number in (12, 15) for head_dim in (32, 80, 96, 192, 256)}
    hopper = {each for each in both if each[0] >= 14}
    for capability, stages in found.items():
        without = set() if capability == (9, 0) else hopper
        if capability == (7, 5):
            without = without | {(13, 64), (13, 128), (9, 128), (10, 128)}
        assert stages == both - without, capability


def test_accumulators_stay_in_registers(table):
    """Registers have no index: an accumulator whose index the compiler does not know moves to a stack."""
    hopper = tuple(f"{stage.number:02d} " for stage in LADDER if stage.no_other_gpu)
    found = {name: kernels for name, kernels in table["kernels"].items() if name.startswith(hopper)}
    assert found
    assert not [name for name, kernels in found.items() if any(k["stack_bytes"] for k in kernels)]


def test_the_assembler_undoes_no_design(table):
    warnings = {
        name: warning
        for name, kernels in table["kernels"].items()
        for kernel in kernels
        for warning in kernel["warnings"]
    }
    assert not {name: text for name, text in warnings.items() if any(code in text for code in FATAL)}


def test_differences_are_named():
    item = ITEMS[0]
    kernel = {"kernel": "k", "registers": 40, "spill_bytes": 0, "warnings": []}
    changed = kernel | {"registers": 41, "spill_bytes": 8, "warnings": ["C7512"]}
    name = resource_table.name(item)
    assert resource_table.differences(item, [kernel], [kernel]) == []
    assert resource_table.differences(item, [kernel], [changed]) == [
        f"{name}: k: registers 40 became 41",
        f"{name}: k: spill_bytes 0 became 8",
        f"{name}: k: warnings [] became ['C7512']",
    ]
    assert len(resource_table.differences(item, [kernel], [changed], exact=False)) == 2
    assert resource_table.differences(item, [changed], [kernel | {"registers": 39}], exact=False) == [
        f"{name}: k: warnings ['C7512'] became []"
    ]
    assert resource_table.differences(item, [kernel], [kernel | {"kernel": "other"}]) == [
        f"{name}: other is not in the table",
        f"{name}: k is not launched any more",
    ]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, request):
    """Toy kernels stay out of the user's cache."""
    if "folder" in request.fixturenames:
        monkeypatch.setenv("FLASHCORE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "double_all.cu").write_text(DOUBLE)
    (tmp_path / "spill.cu").write_text(SPILLING)
    return tmp_path


@pytest.mark.parametrize("capability, arch", [((7, 5), "sm_75"), ((8, 0), "sm_80"), ((9, 0), "sm_90a")])
def test_the_report_of_the_assembler_is_read(folder, capability, arch):
    kernel = source("double_all", folder=folder, FACTOR=2)
    found = compile(kernel, capability)
    assert found.arch == target(capability) == arch
    assert f"for '{arch}'" in found.log
    assert 8 <= found.registers <= 40
    assert (found.spill_bytes, found.stack_bytes, found.shared_bytes) == (0, 0, 32 * 4)
    assert found.cubin.read_bytes()[:4] == b"\x7fELF"
    assert found.warnings == ()


def test_a_spill_is_seen(folder):
    found = compile(source("spill", folder=folder), (9, 0))
    assert found.registers == 32
    assert found.spill_bytes > 0
    assert found.stack_bytes > 0


def test_an_error_names_file_and_line(folder):
    kernel = source("double_all", folder=folder)
    with pytest.raises(CompileError, match=r'double_all\.cu\(6\): error: identifier "FACTOR" is undefined'):
        compile(kernel, (8, 0))


def test_an_unknown_kernel_is_named(folder):
    with pytest.raises(CompileError, match=r'double_all\.cu has no kernel extern "C" triple'):
        compile(source("double_all", "triple", folder=folder, FACTOR=3), (8, 0))


def test_a_compilation_is_kept_until_something_changes(folder, monkeypatch):
    import cuda_reference.compile as module

    count, run = [], module._compile

    def counted(*args):
        count.append(args)
        return run(*args)

    monkeypatch.setattr(module, "_compile", counted)
    kernel = source("double_all", folder=folder, FACTOR=2)
    first = compile(kernel, (8, 0))
    assert compile(kernel, (8, 0)) == first
    assert len(count) == 1
    for changed in (
        source("double_all", folder=folder, FACTOR=3),
        source("double_all", folder=folder, FACTOR=2),
    ):
        if changed == kernel:
            kernel.path.write_text(DOUBLE.replace("31 -", "30 -"))
        assert compile(changed, (8, 0)).cubin != first.cubin
    compile(kernel, (9, 0))
    (folder / "beside.cuh").write_text("// a header that the kernel may include")
    compile(kernel, (9, 0))
    assert len(count) == 5


def test_a_log_of_several_kernels_is_told_apart():
    log = """ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes stack, 2048 bytes smem, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_80'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 0 barriers, 400 bytes cmem[0]
"""
    assert parse_log(log) == {
        "one": {"registers": 64, "spill_bytes": 64, "stack_bytes": 16, "shared_bytes": 2048},
        "two": {"registers": 10, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0},
    }


@pytest.mark.parametrize("missing", ["cudart", "nvcc"])
def test_missing_headers_are_named(missing, monkeypatch, folder):
    """Where crt/ does not lie beside CUDA's own headers, it comes with the compiler driver's."""
    import cuda.pathfinder as pathfinder

    found = pathfinder.locate_nvidia_header_directory

    def locate(library):
        if library == missing:
            return None
        here = found(library)
        return type(here)(abs_path=str(folder), found_via="test") if library == "cudart" else here

    monkeypatch.setattr(pathfinder, "locate_nvidia_header_directory", locate)
    from cuda_reference.compile import include_folders

    what = "crt/mma.h" if missing == "nvcc" else "CUDA headers"
    with pytest.raises(CompileError, match=rf"{what}.*missing: pip install 'flashcore-numba\[compiler\]'"):
        include_folders("#include <mma.h>")


def _reaches(stage, header):
    including = {header, *(path.name for path in files.headers_including([header]))}
    texts = [path.read_text() for path in files.kernels_of(stage.number)]
    return any(f'#include "{name}"' in text for name in including for text in texts)


REACHING = {
    header: next((stage for stage in LADDER[6:] if _reaches(stage, header.name)), None)
    for header in sorted(INCLUDE.glob("*.cuh"))
}


@pytest.mark.parametrize(
    "header", [header for header, stage in REACHING.items() if stage], ids=lambda header: header.name
)
def test_an_edited_header_is_what_the_compiler_reads(header):
    """Also where only another header includes it: the compiler of the GPU looks beside the includer first."""
    stage, edit = REACHING[header], _marked(header)
    with loaded(stage.number, {header.name: edit}) as copy, pytest.raises(CompileError, match="was read"):
        registers(Run(copy, None), examples(copy, 64), stage.compute_capability)


@pytest.mark.parametrize(
    "header", [header for header, stage in REACHING.items() if not stage], ids=lambda header: header.name
)
def test_so_is_one_of_a_branch(header, tmp_path):
    """By a kernel that includes it, or a header that does."""
    kernel = _includer(header, BRANCHES.glob("*.cu"))
    if kernel is None:
        between = _includer(header, header.parent.glob("*.cuh"))
        (tmp_path / between.name).write_text(between.read_text())
        kernel = _includer(between, BRANCHES.glob("*.cu"))
    (tmp_path / kernel.name).write_text(kernel.read_text())
    (tmp_path / header.name).write_text(_marked(header))
    with pytest.raises(CompileError, match="was read"):
        compile(source(kernel.stem, folder=tmp_path, HEAD_DIM=64), (9, 0))


def _includer(header, paths):
    return next((path for path in sorted(paths) if f'"{header.name}"' in path.read_text()), None)


def _marked(header):
    return header.read_text().replace("#pragma once", "#pragma once\n#error this edit was read", 1)
