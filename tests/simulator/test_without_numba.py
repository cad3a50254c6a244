"""The names that stand for Numba's: each is one of Numba's, and a kernel runs the same with either."""

import importlib.util
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

import flashcore_numba.simulator
from flashcore_numba.simulator import Launch, SimulationError, Unsupported, cuda, float32, simulate, types
from flashcore_numba.simulator.stub import KernelName
from flashcore_numba.simulator.vecmath import function, operation

from . import broken_kernels, foreign_bugs, foreign_kernels


def without_numba(module: ModuleType, folder: Path) -> Any:
    """A copy of the module, line by line, in which only what it imports from Numba has changed."""
    text = Path(str(module.__file__)).read_text()
    text = re.sub(r"^import numba$", "import flashcore_numba.simulator as numba", text, flags=re.MULTILINE)
    text = re.sub(r"^from numba\b", "from flashcore_numba.simulator", text, flags=re.MULTILINE)
    assert not re.search(r"(import|from) numba\b", text)
    path = folder / Path(str(module.__file__)).name
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_without_numba", path)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("copies")
    originals = (foreign_kernels, foreign_bugs, broken_kernels)
    return {module.__name__: without_numba(module, folder) for module in originals}


def same(one: Launch, other: Launch) -> None:
    """The launches counted and reported the same, at the same lines."""
    assert one.totals() == other.totals()
    assert list(map(str, one.problems)) == list(map(str, other.problems))
    assert str(one) == str(other)


def equal(one: tuple, other: tuple) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def run_case(case: Callable, seed: int, **options: Any) -> tuple[Launch, tuple]:
    kernel, grid, block, args, *_ = case(np.random.default_rng(seed))
    options["shared_bytes"] = getattr(case, "shared_bytes", 0)
    return simulate(kernel, grid, block, *args, **options), args


@pytest.mark.parametrize("name", foreign_kernels.CASES)
def test_a_correct_kernel_runs_the_same(name: str, copies: dict, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 30))
    with_numba, results = run_case(foreign_kernels.CASES[name], seed)
    alone, own = run_case(copies[foreign_kernels.__name__].CASES[name], seed)
    same(with_numba, alone)
    equal(results, own)


@pytest.mark.parametrize("name", foreign_bugs.CASES)
def test_a_bug_is_named_the_same(name: str, copies: dict, rng: np.random.Generator) -> None:
    seed = int(rng.integers(1 << 30))
    with_numba, _ = run_case(foreign_bugs.CASES[name], seed, max_turns=1000)
    alone, _ = run_case(copies[foreign_bugs.__name__].CASES[name], seed, max_turns=1000)
    assert alone.problems
    same(with_numba, alone)


def test_wide_accesses_run_the_same(copies: dict, rng: np.random.Generator) -> None:
    for name in ("misaligned", "aligned_tile", "unaligned_tile"):
        src = rng.standard_normal(64, dtype=np.float32)
        kernels = (getattr(broken_kernels, name), getattr(copies[broken_kernels.__name__], name))
        same(*(simulate(kernel, 1, 64, src, np.zeros_like(src), shared_bytes=256) for kernel in kernels))


# What the names stand for, asked of Numba


def kernel_names() -> list[str]:
    """Every name for kernels that the stand-in for `numba.cuda` offers, with its members."""
    names = []
    for name in dir(cuda):
        if isinstance(found := getattr(cuda, name), KernelName):
            names += [name, *(f"{name}.{member}" for member in vars(found) if not member.startswith("_"))]
    return names


def test_every_name_for_kernels_is_numbas() -> None:
    names = kernel_names()
    assert {"grid", "shared.array", "atomic.add", "const.array_like", "shfl_down_sync", "ldcg"} <= set(names)
    for name in names:
        found = numba.cuda
        for part in name.split("."):
            found = getattr(found, part)
    assert set(vars(numba.cuda.atomic)) - {
        "__module__",
        "__doc__",
        "_description_",
        "__dict__",
        "__weakref__",
    } == {name.partition(".")[2] for name in names if name.startswith("atomic.")}


def test_every_number_type_is_numbas() -> None:
    named = {name: kind for name, kind in vars(types).items() if isinstance(kind, types.Type)}
    assert len(named) >= 15
    for name, kind in named.items():
        theirs = getattr(numba.types, name)
        assert str(theirs) == ("none" if kind is types.void else kind.name), name
        if kind is not types.void:
            assert kind.dtype == function(theirs).dtype == function(kind).dtype, name  # type: ignore[union-attr]
            assert type(kind(1)) is type(np.array(theirs(1))[()]), name
    for name in set(named) & set(flashcore_numba.simulator.__all__):
        assert getattr(numba, name) is getattr(numba.types, name)
        assert getattr(flashcore_numba.simulator, name) is named[name]


def test_every_function_of_libdevice_is_numbas() -> None:
    names = dir(cuda.libdevice)
    assert len(names) > 50
    for name in names:
        mine, theirs = getattr(cuda.libdevice, name), getattr(numba.cuda.libdevice, name)
        assert function(mine) is function(theirs) is not None
        assert operation(mine) == operation(theirs)


def test_signatures_are_written_as_numba_writes_them() -> None:
    assert str(types.void(float32[:], types.int32)) == "void(float32[:], int32)"
    assert str(float32[:, ::1]) == "float32[:, ::1]"
    with pytest.raises(TypeError, match=r"float32\[64\]: an array's type has a : or ::1 for each dimension"):
        float32[64]  # type: ignore[index]


# Launches


@cuda.jit("float32(float32, float32)", device=True, inline="always")
def scaled(x, factor):
    return factor * x


@cuda.jit(types.void(float32[:], float32[:], float32), fastmath=True)
def scale_neighbours(x, out, factor):
    buffer = cuda.shared.array(0, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    buffer[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    if i < x.size:
        out[i] = scaled(buffer[t ^ 1], factor)


@cuda.jit
def forgets_the_barrier(x):
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    tile[i] = x[i]
    x[i] = tile[63 - i]


def test_a_launch_runs_as_a_program_for_a_gpu_has_it(rng: np.random.Generator) -> None:
    host = rng.standard_normal(200, dtype=np.float32)
    stream = cuda.stream()
    x, out = cuda.to_device(host, stream=stream), cuda.device_array(200, np.float32)
    assert np.isnan(out).all()
    scale_neighbours[4, 64, stream, 64 * 4](x, out, np.float32(3))
    stream.synchronize()
    cuda.synchronize()
    want = 3 * host.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_allclose(out.copy_to_host(), want)
    assert type(out.copy_to_host()) is np.ndarray
    given = np.zeros_like(host)
    assert out.copy_to_host(given) is given
    np.testing.assert_allclose(given, want)
    out.copy_to_device(host)
    np.testing.assert_array_equal(out, host)
    scale_neighbours.forall(200, sharedmem=128 * 4)(host, given, np.float32(1))
    np.testing.assert_allclose(given, want / 3)


def test_a_launch_raises_what_is_wrong() -> None:
    with pytest.raises(SimulationError) as raised:
        forgets_the_barrier[1, 64](np.zeros(64, np.float32))
    (problem,) = raised.value.problems
    lines, first = inspect.getsourcelines(forgets_the_barrier.py_func)
    assert problem.kind == "race"
    assert [lines[n - first].strip() for n in (problem.line, problem.other_line)] == [
        "tile[i] = x[i]",
        "x[i] = tile[63 - i]",
    ]


@cuda.jit
def copy(x, out):
    out[cuda.grid(1)] = x[cuda.grid(1)]


def test_a_read_of_device_memory_that_nobody_wrote_is_named() -> None:
    with pytest.raises(SimulationError, match="uninitialised read"):
        copy[1, 32](cuda.device_array(32), cuda.device_array(32))
    written = cuda.device_array_like(np.zeros(32))
    copy[1, 32](cuda.to_device(np.arange(32.0)), written)
    copy[1, 32](written, cuda.device_array(32))


def test_device_arrays_keep_the_order_of_their_elements() -> None:
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for array in (
        cuda.to_device(columns),
        cuda.device_array_like(columns),
        cuda.device_array((2, 3), order="F"),
    ):
        assert array.shape == (2, 3) and array.strides == columns.strides
    with pytest.raises(ValueError, match="strides is"):
        cuda.device_array(3, strides=(8,))


@pytest.mark.parametrize(
    "wrong, error, message",
    [
        (lambda: copy(1, 2), ValueError, r"copy\(\.\.\.\) has no grid: a kernel is launched by copy\[grid"),
        (lambda: scaled(1, 2), TypeError, r"scaled\(\.\.\.\) is a device function"),
        (lambda: copy[4](1, 2), ValueError, r"copy\[4\]: a launch is kernel\[grid, block\]"),
        (lambda: copy[1, 0](1, 2), ValueError, "block: 0 is not one to three positive integers"),
        (lambda: cuda.jit(3), TypeError, "jit: 3 is neither a function nor a signature"),
        (lambda: cuda.grid(1), TypeError, "cuda.grid is called outside a kernel"),
        (lambda: cuda.threadIdx.x, AttributeError, "cuda.threadIdx has no x here: outside a kernel"),
        (
            lambda: cuda.current_context(),
            AttributeError,
            "cuda.current_context: the simulator has no such part",
        ),
        (lambda: cuda.libdevice.nanf, AttributeError, "cuda.libdevice.nanf: the simulator knows acos|ceil"),
    ],
)
def test_what_a_program_cannot_do_is_said(wrong: Callable, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


@cuda.jit
def asks_for_a_group(x):
    cuda.cg.this_grid().sync()


def test_a_part_of_numba_that_nobody_stands_for_is_refused_in_a_kernel() -> None:
    with pytest.raises(
        Unsupported, match=r"test_without_numba\.py:\d+: the simulator does not know this name"
    ):
        asks_for_a_group[1, 1](np.zeros(1))
