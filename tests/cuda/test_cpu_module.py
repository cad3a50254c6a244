"""The CPU executor's front: sources, arguments, compilers, its cache, and a debugger."""

import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cuda_reference.cpu import CompileError, CompilerMissingError, CpuModule, SourceError, build, why_not
from cuda_reference.cpu.arguments import Memory

HERE = Path(__file__).resolve().parent
SCALE = """\
extern "C" __global__ void __launch_bounds__(64) scale(const float* x, float* y, int n, float factor) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
"""


@pytest.fixture(scope="module")  # a file elsewhere is compiled anew, and nothing changes this one
def kernel(tmp_path_factory):
    path = tmp_path_factory.mktemp("kernel") / "scale.cu"
    path.write_text(SCALE)
    return CpuModule(path).scale


def arrays(rng, n=100):
    return rng.standard_normal(n).astype(np.float32), np.zeros(n, np.float32)


def test_strided_views_are_written_in_place(kernel, rng):
    x, wide = rng.standard_normal(100).astype(np.float32), np.zeros((3, 200), np.float32)
    kernel(2, 64, (x, wide[1, 50:150], np.int32(100), np.float32(3))).check()
    assert np.array_equal(wide[1, 50:150], 3 * x)
    assert not wide[[0, 2]].any() and not wide[1, :50].any() and not wide[1, 150:].any()


def test_in_place(kernel, rng):
    x, _ = arrays(rng)
    expected = 2 * x
    kernel(2, 64, (x, x, np.int32(100), np.float32(2))).check()
    assert np.array_equal(x, expected)


@pytest.mark.parametrize(
    ("grid", "block", "change", "error", "message"),
    [
        (2, 64, {}, None, ""),
        (2, 65, {}, ValueError, "at most 64 threads, not 65"),
        (0, 64, {}, ValueError, "grid is 1 to 3 positive extents"),
        (2, 64, {0: 7}, TypeError, r"argument 0 \(x\) is a pointer"),
        (2, 64, {1: "frozen"}, TypeError, r"argument 1 \(y\) may be written by the kernel"),
        (2, 64, {2: np.int64(100)}, TypeError, r"argument 2 \(n\) has 4 bytes, the int64 passed 8"),
        (2, 64, {3: 2.0}, TypeError, r"argument 3 \(factor\): pass a NumPy scalar"),
        (2, 64, {3: None}, TypeError, r"argument 3 \(factor\)"),
        (2, 64, {3: "absent"}, TypeError, r"takes 4 arguments \(x, y, n, factor\), not 3"),
    ],
)
def test_arguments(kernel, rng, grid, block, change, error, message):
    x, y = arrays(rng)
    args = [x, y, np.int32(100), np.float32(2)]
    for position, value in change.items():
        if value == "frozen":
            y.flags.writeable = False
        elif value == "absent":
            args.pop(position)
        else:
            args[position] = value
    if error is None:
        kernel(grid, block, args).check()
        assert np.array_equal(y, 2 * x)
        return
    with pytest.raises(error, match=message):
        kernel(grid, block, args)
    assert not y.any()


def test_options(kernel, rng):
    args = (*arrays(rng), np.int32(100), np.float32(2))
    with pytest.raises(TypeError, match="unknown option 'order'"):
        kernel(2, 64, args, order="forward")
    with pytest.raises(ValueError, match='schedule is "forward", "reverse" or "random:SEED"'):
        kernel(2, 64, args, schedule="lockstep")
    with pytest.raises(ValueError, match="at most 232448 bytes"):
        kernel(2, 64, args, shared_mem=232449)


def test_what_a_cast_writes_into_a_constant_array_is_seen(tmp_path):
    path = tmp_path / "casts.cu"
    path.write_text('extern "C" __global__ void casts(const float* x) { const_cast<float*>(x)[1] = 7; }\n')
    x = np.zeros(3, np.float32)
    CpuModule(path).casts(1, 1, (x,)).check()
    assert x.tolist() == [0, 7, 0]


BESIDE = """\
extern "C" __global__ void beside(float* out, int elsewhere) {  // two rows of four, eight apart
    const int t = threadIdx.x;
    if (t < 8) out[t / 4 * 8 + t % 4] = t;
    if (t == 0 && elsewhere) out[elsewhere] = 7;
}
"""


@pytest.mark.parametrize(("elsewhere", "changed"), [(0, []), (5, [(0, 7)])])
def test_what_is_written_between_elements_is_seen(tmp_path, elsewhere, changed):
    path = tmp_path / "beside.cu"
    path.write_text(BESIDE)
    wide = np.full((3, 8), -1, np.float32)
    CpuModule(path).beside(1, 32, (wide[:2, 2:6], np.int32(elsewhere))).check()
    assert wide[:2, 2:6].ravel().tolist() == [*range(8)]
    wide[:2, 2:6] = -1
    assert np.argwhere(wide != -1).tolist() == [list(each) for each in changed]


def test_memory_beside_elements_stays_as_others_left_it():
    wide = np.zeros((2, 8), np.uint8)
    one, other = wide[:, 1:3], wide[:, 2:4]
    memory = Memory([one, other])
    copy = np.ndarray((2, 8), np.uint8, memory._bytes, memory.address(one) - 1 - memory._bytes.ctypes.data)
    wide[0, 4:6] = 1  # by somebody else, while the kernel runs
    copy[0, 5:7] = 2  # by the kernel
    copy[:, 2:4] = 3
    for array in (one, other):
        memory.copy_back(array)
    memory.copy_back_gaps([one, other])
    assert wide.tolist() == [[0, 0, 3, 3, 1, 2, 2, 0], [0, 0, 3, 3, 0, 0, 0, 0]]


def test_nobody_writes_beside_the_elements_of_a_constant(tmp_path):
    path = tmp_path / "casts.cu"
    path.write_text('extern "C" __global__ void casts(const float* x) { const_cast<float*>(x)[1] = 7; }\n')
    x = np.frombuffer(bytes(32), np.float32)[::2]
    CpuModule(path).casts(1, 1, (x,)).check()
    assert not x.base.any()


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("__global__ void f(float* x) {}", SourceError, 'declares no kernel as extern "C"'),
        (
            'extern "C" __global__ void f(float* x) {\n    extern __shared__ float tile[];\n}',
            SourceError,
            r"bad\.cu:2: dynamic shared memory must be called smem",
        ),
        (
            'extern "C" __global__ void f(float* x) {\n    x[0] = y;\n}',
            CompileError,
            r"bad\.cu:2:\d+: error: .*y.*",
        ),
        (
            'extern "C" __global__ void f(float* x) {\n    int getpid();\n    x[0] = sqrtf(getpid());\n}',
            CompileError,
            r"bad\.cu: getpid is declared but defined nowhere on a GPU",
        ),
        (
            'extern "C" __global__ void f(float* x) {\n    __shared__ float a[8192], b[4097];\n'
            "    a[threadIdx.x] = b[threadIdx.x] = 0;\n    x[0] = a[1] + b[2];\n}",
            CompileError,
            r"^bad\.cu does not compile:\nbad\.cu:2:1: error: a, b: a block has at most 49152 bytes of "
            "static shared memory, not 49156;",
        ),
        (
            "__device__ void g(float* x) {\n    __shared__ volatile float big[1 << 28];\n"
            "    big[threadIdx.x] = 0;\n    x[0] = big[1];\n}\n"
            'extern "C" __global__ void f(float* x) { g(x); }',
            CompileError,
            r"bad\.cu:2:1: error: big: .* not 1073741824;",
        ),
    ],
)
def test_bad_sources(tmp_path, source, error, message):
    path = tmp_path / "bad.cu"
    path.write_text(source)
    with pytest.raises(error, match=message):
        CpuModule(path)


def test_shared_memory_up_to_what_a_block_has(tmp_path):
    path = tmp_path / "both.cu"
    path.write_text(
        'extern "C" __global__ void both(float* x) {\n    __shared__ float tile[12288];\n'
        "    extern __shared__ __align__(1024) unsigned char smem[];\n"
        "    tile[threadIdx.x] = x[threadIdx.x];\n    smem[threadIdx.x] = 1;\n    __syncthreads();\n"
        "    x[threadIdx.x] = tile[threadIdx.x ^ 1] + smem[threadIdx.x];\n}\n"
    )
    module, x = CpuModule(path), np.zeros(32, np.float32)
    room = 232448 - 49152
    module.both(1, 32, (x,), shared_mem=room).check()
    assert (x == 1).all()
    with pytest.raises(ValueError, match=rf"^both: .* not 49152 static and {room + 1} dynamic ones$"):
        module.both(1, 32, (x,), shared_mem=room + 1)
    assert (x == 1).all()


def test_a_kernel_may_print(tmp_path):
    path = tmp_path / "prints.cu"
    path.write_text('extern "C" __global__ void prints(float* x) { printf("%g\\n", x[0]); }\n')
    assert CpuModule(path).names == ["prints"]


def test_no_such_kernel(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    with pytest.raises(AttributeError, match=r"scale\.cu has no kernel 'scales', only scale"):
        CpuModule(path).kernel("scales")


def test_comments_declare_nothing(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(
        '// extern "C" __global__ void one(float* x) {}\n/* extern "C" __global__ void two() {} */\n' + SCALE
    )
    assert CpuModule(path).names == ["scale"]


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    build.find_compiler.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    yield tmp_path
    build.find_compiler.cache_clear()


def test_no_compiler_is_one_sentence(no_compiler):
    assert why_not() == build.INSTALL
    with pytest.raises(CompilerMissingError, match=re.escape("apt install g++")):
        CpuModule(HERE / "banks.cu")


@pytest.mark.parametrize(
    ("name", "said"), [("g++", "g++ (Debian) 9.4.0"), ("clang++", "clang version 14.0.6")]
)
def test_an_old_compiler_is_named(no_compiler, name, said):
    script = no_compiler / name
    script.write_text(f"#!/bin/sh\necho '{said}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert why_not() == f"{build.INSTALL} ({name} here is too old: {said})"


def test_a_compiler_named_in_vain(no_compiler, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX names no-such-compiler, which is not there" in (why_not() or "")


@pytest.mark.long
def test_kernels_read_the_compiled_header(tmp_path):
    compiler, flags = build.find_compiler(), ["-std=c++17", "-O1", "-w"]
    header = build._compiled_headers(compiler, flags)
    assert (header is not None) == (compiler.family == "g++")
    options = [] if header is None else ["-I", str(header.path.parent)]
    unit = tmp_path / "unit.cpp"
    unit.write_text('#include "cuda_dialect.h"\n')
    shim = ["-I", str(build.HERE / "shim")]
    command = [*compiler.command.split(), "-H", "-fsyntax-only", str(unit), *flags, *options, "-DD=64", *shim]
    read = subprocess.run(command, capture_output=True, text=True).stderr
    assert read.startswith("! ") == bool(options), read


def compile_in_a_process(path):
    started = CpuModule(path)
    return started.library, started.names


@pytest.mark.long
def test_parallel_processes_share_the_cache(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(SCALE + f"// {tmp_path}\n")
    with ProcessPoolExecutor(4) as pool:
        results = list(pool.map(compile_in_a_process, [path] * 4))
    assert len(set(map(str, results))) == 1
    assert results[0][0].is_file()


@pytest.mark.long
def test_the_cache_knows_what_it_is_made_of(tmp_path):
    path, header = tmp_path / "scale.cu", tmp_path / "factor.cuh"
    header.write_text("#define EXTRA 1.0f\n")
    path.write_text('#include "factor.cuh"\n' + SCALE.replace("factor * x[i]", "factor * x[i] + EXTRA"))
    first = CpuModule(path)
    assert CpuModule(path).library == first.library
    assert CpuModule(path, {"EXTRA_DEFINE": 1}).library != first.library
    assert CpuModule(path, optimise=False).library != first.library
    header.write_text("#define EXTRA 2.0f\n")
    changed = CpuModule(path)
    assert changed.library != first.library
    y = np.zeros(1, np.float32)
    changed.scale(1, 1, (np.ones(1, np.float32), y, np.int32(1), np.float32(1))).check()
    assert y[0] == 3


@pytest.mark.long
@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
def test_a_debugger_stops_in_one_thread(tmp_path):
    """What README.md says of gdb."""
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    program = tmp_path / "run.py"
    program.write_text(
        "import numpy as np\nfrom cuda_reference.cpu import CpuModule\n"
        f"kernel = CpuModule({str(path)!r}, optimise=False).scale\n"
        "x = np.arange(128, dtype=np.float32)\n"
        "kernel(2, 64, (x, np.zeros_like(x), np.int32(128), np.float32(2))).check()\n"
    )
    command = [
        "gdb", "-q", "-batch", "-ex", "set breakpoint pending on",
        "-ex", "break scale.cu:3 if threadIdx.x == 37 && blockIdx.x == 1",
        "-ex", "run", "-ex", "print i", "-ex", "print x[i]", "-ex", "backtrace 1",
        "--args", sys.executable, str(program),
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert "$1 = 101" in said and "$2 = 101" in said and "scale (" in said, said
