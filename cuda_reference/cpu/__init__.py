"""Runs CUDA C kernels without a GPU: on NumPy arrays, a fiber a CUDA thread, every access to memory watched.

    module = CpuModule("kernel.cu", defines={"D": 64}, schedule="random:7")
    launch = module.kernel_name((blocks,), (threads,), (x, np.int32(n)), shared_mem=49152)
    launch.problems, launch.lines(), launch.totals()

What it executes, checks and counts, and what not, is said in README.md beside this file.
"""

import ctypes
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cuda_reference.cpu.arguments import Memory, Parameter, Written, pack
from cuda_reference.cpu.build import (
    HERE,
    INCLUDE,
    CompileError,
    CompilerMissingError,
    build_kernels,
    build_runtime,
    find_compiler,
)
from cuda_reference.cpu.report import KINDS, ExecutionError, KernelProblem, Launch, LineCounts, Places, Site
from cuda_reference.extents import MOST_THREADS, block_extents, grid_extents
from cuda_reference.files import MachineError, lock
from cuda_reference.shown import shown
from cuda_reference.tensor_map import TensorMap

__all__ = [
    "KINDS",
    "CompileError",
    "CompilerMissingError",
    "CpuKernel",
    "CpuModule",
    "ExecutionError",
    "KernelProblem",
    "Launch",
    "LineCounts",
    "MachineError",
    "Site",
    "SourceError",
    "load",
    "why_not",
]

MOST_SHARED, MOST_STATIC_SHARED = 232448, 48 * 1024
# The runtime runs one launch at a time. While it does, no other library may be loaded and no function of one
# called: the runtime would take what they do for accesses of the kernel.
LOCK = lock()


_running: list[str] = []


@contextmanager
def _alone(kernel: str) -> Iterator[None]:
    """Lets one thread at a time launch; refuses a signal handler that would launch inside a launch."""
    with LOCK:
        if _running:
            raise RuntimeError(f"{kernel} cannot be launched by a signal handler while {_running[0]} runs")
        _running.append(kernel)
        try:
            yield
        finally:
            _running.clear()


class SourceError(ValueError):
    """A kernel source breaks a rule that the executor needs: the message names the rule and the line."""


def why_not() -> str | None:
    """Why kernels cannot be run on the CPU here, in one sentence that says what to do; None when they can."""
    try:
        find_compiler()
    except CompilerMissingError as error:
        return str(error)
    return None


def load(
    path: str | Path, kernel: str, defines: Mapping[str, object] | None = None, **options: Any
) -> "CpuKernel":
    """One kernel of a `.cu` file: see `CpuModule` for the rest."""
    return CpuModule(path, defines, **options).kernel(kernel)


class CpuModule:
    """The kernels of one `.cu` file: `module.name` or `module.kernel("name")` is one of them.

    defines: macros. schedule: "forward", "reverse" or "random:SEED", the order in which threads run. checks:
    look for problems. counts: count accesses by source line. time_limit: seconds after which a launch is
    stopped, and has a problem of the kind "time limit"; None: it may take as long as it does. An endless loop
    needs no limit where it changes nothing (README.md says which do). Ctrl-C stops a launch at once.
    optimise: False leaves every variable where a debugger finds it.

    Raises SourceError, CompileError, CompilerMissingError.
    """

    def __init__(
        self,
        source: str | Path,
        defines: Mapping[str, object] | None = None,
        *,
        schedule: str = "forward",
        checks: bool = True,
        counts: bool = True,
        time_limit: float | None = None,
        optimise: bool = True,
    ) -> None:
        self.source = Path(source).resolve()
        self.early = bool((defines or {}).get("EARLY", 0))  # begins under the end of the kernel before
        self.options: dict[str, Any] = {
            "schedule": schedule, "checks": checks, "counts": counts, "time_limit": time_limit,
        }  # fmt: skip
        self._declared = _declarations(self.source)
        exports = "CPU_MODULE\n" + "\n".join(
            f"CPU_KERNEL({each.name}, ({each.cluster}), ({each.bounds}), {each.parameters})"
            for each in self._declared.values()
        )
        compiler = find_compiler()
        self.compile_seconds = -time.perf_counter()
        runtime = build_runtime(compiler)
        held, texts = build_kernels(compiler, runtime, self.source, exports, defines or {}, optimise)
        self.compile_seconds += time.perf_counter()
        if of_host := held.calls_the_host():
            raise CompileError(f"{self.source.name}: {of_host[0]} is declared but defined nowhere on a GPU")
        shared = held.static_shared()
        for arrays in shared.values():
            self._check_static(arrays, texts)
        self.static_shared = {
            name: sum(shared.get(f"{len(name)}{name}", {}).values()) for name in self._declared
        }
        self.library = held.path
        self._places = Places(held, texts, (HERE / "shim", INCLUDE / "ptx.cuh"))
        with LOCK:
            self._runtime = runtime.load()
            self.code = held.load()
            self._kernels = {name: CpuKernel(self, declared) for name, declared in self._declared.items()}

    def _check_static(self, arrays: Mapping[str, int], texts: Mapping[str, bytes]) -> None:
        """Raise CompileError for more shared memory in one function than a GPU's compiler takes."""
        if (size := sum(arrays.values())) <= MOST_STATIC_SHARED:
            return
        largest, place = max(arrays, key=arrays.__getitem__), self.source.name
        for path, text in texts.items():
            if found := re.search(rf"__shared__[^;]*\b{largest}\b", text.decode()):
                place = f"{Path(path).name}:{len(found.string[: found.end()].splitlines())}:1"
                break
        raise CompileError(
            f"{self.source.name} does not compile:\n{place}: error: {', '.join(sorted(arrays))}: a block has "
            f"at most {MOST_STATIC_SHARED} bytes of static shared memory, not {size}; an `extern __shared__` "
            "array may have more"
        )

    @property
    def names(self) -> list[str]:
        """The kernels of the file."""
        return list(self._declared)

    def kernel(self, name: str) -> "CpuKernel":
        """The kernel of that name. Raises AttributeError."""
        if name not in self._kernels:
            raise AttributeError(
                f"{self.source.name} has no kernel {shown(name)}, only {', '.join(self._declared)}"
            )
        return self._kernels[name]

    def __getattr__(self, name: str) -> "CpuKernel":
        if name.startswith("_"):
            raise AttributeError(name)
        return self.kernel(name)


class CpuKernel:
    """One kernel, called like CuPy's: `kernel(grid, block, args, shared_mem=0)`."""

    def __init__(self, module: CpuModule, declared: "_Declaration") -> None:
        self.name = declared.name
        self._module = module
        self._entry = getattr(module.code, f"cpu_run_{self.name}")
        described = (ctypes.c_uint32 * 128)()
        count = getattr(module.code, f"cpu_describe_{self.name}")(described)
        declare = getattr(module.code, f"cpu_declared_{self.name}")
        declare.restype = ctypes.c_char_p
        names = _names(declare().decode())
        if len(names) != count:
            names = [f"#{i}" for i in range(count)]
        self.parameters = [
            Parameter(
                name,
                described[2 * i],
                bool(described[2 * i + 1] & 0xFF),
                bool(described[2 * i + 1] >> 8 & 0xFF),
            )
            for i, name in enumerate(names)
        ]
        limits = (ctypes.c_uint32 * 4)()
        getattr(module.code, f"cpu_limits_{self.name}")(limits)
        self.cluster = tuple(limits[:3])
        self.max_threads = limits[3]

    def __call__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        scratch: Sequence[np.ndarray | tuple[np.ndarray, np.ndarray]] = (),
        **options: Any,
    ) -> Launch:
        """Runs the kernel; the arrays then hold what it wrote.

        grid, block: 1 to 3 extents. args: NumPy arrays (any strides; a pointer to the first element is
        passed), NumPy scalars, None and TensorMap. shared_mem: bytes of dynamic shared memory. scratch: those
        of the arrays that hold nothing yet, so that reading them before writing is a problem; (array,
        written) is one that holds something where `written`, bool and of its shape, says so, which is then
        told what else the launch wrote (with `checks`). options: those of the module, for this launch.

        Raises TypeError and ValueError on arguments that do not fit, MemoryError where the machine has no
        room for so many threads. What is wrong with the kernel itself
        is in the result's `problems`; its `check()` raises them.
        """
        unknown = set(options) - set(self._module.options)
        if unknown:
            raise TypeError(
                f"unknown option {shown(unknown.pop())}, known are {', '.join(self._module.options)}"
            )
        options = self._module.options | options
        shape = self._shape(grid_extents(grid), block_extents(block), shared_mem)
        if len(args) != len(self.parameters):
            names = ", ".join(parameter.name for parameter in self.parameters)
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments ({names}), not {len(args)}")
        arrays = [value.array if isinstance(value, TensorMap) else value for value in args]
        memory = Memory([array for array in arrays if isinstance(array, np.ndarray)])
        packed = [
            pack(self.name, parameter, i, value, memory)
            for i, (parameter, value) in enumerate(zip(self.parameters, args, strict=True))
        ]
        masks = _Masks(arrays, scratch, memory)
        ranges, array_names = self._ranges(arrays, memory, masks)
        with _alone(self.name):
            started = time.perf_counter()
            report = self._run(shape, shared_mem, packed, ranges, array_names, options)
            seconds = time.perf_counter() - started
        passed = [array for array in arrays if isinstance(array, np.ndarray)]
        for array in passed:  # of a constant parameter too: a cast may have written there, as on a GPU
            if array.flags.writeable:
                memory.copy_back(array)
        memory.copy_back_gaps([array for array in passed if array.size])
        masks.give()
        return Launch(self.name, report, self._module._places, seconds)

    def _shape(self, grid: tuple[int, ...], block: tuple[int, ...], shared_mem: int) -> list[int]:
        threads = math.prod(block)
        if threads > self.max_threads:
            raise ValueError(f"{self.name} takes at most {self.max_threads} threads, not {threads}")
        if not isinstance(shared_mem, int | np.integer) or not 0 <= shared_mem <= MOST_SHARED:
            raise ValueError(
                f"a block has at most {MOST_SHARED} bytes of dynamic shared memory, not {shown(shared_mem)}"
            )
        static = self._module.static_shared[self.name]
        if static + shared_mem > MOST_SHARED:
            raise ValueError(
                f"{self.name}: a block has at most {MOST_SHARED} bytes of shared memory, not {static} static "
                f"and {shared_mem} dynamic ones"
            )
        if any(extent % blocks for extent, blocks in zip(grid, self.cluster, strict=True)):
            raise ValueError(f"the grid {tuple(grid)} is no multiple of the cluster {self.cluster}")
        return [*grid, *block, *self.cluster]

    def _ranges(self, arrays: list[Any], memory: Memory, masks: "_Masks") -> tuple[list[int], list[bytes]]:
        """Start, end, constant and the address of what was written of each distinct array, those that may be
        written first; and their names.
        """
        found: dict[tuple[int, int], list] = {}
        for parameter, array in zip(self.parameters, arrays, strict=True):
            if not isinstance(array, np.ndarray) or not array.size:
                continue
            bounds = memory.bounds(array)
            entry = found.setdefault(bounds, [True, 0, parameter.name])
            entry[1] = entry[1] or masks.address(array)
            entry[0] &= parameter.constant and not entry[1]  # what is constant is not watched
        ordered = sorted(found.items(), key=lambda item: item[1][0])
        ranges = [number for bounds, entry in ordered for number in (*bounds, int(entry[0]), entry[1])]
        return ranges, [entry[2].encode() for _, entry in ordered]

    def _run(
        self,
        shape: list[int],
        shared_mem: int,
        packed: list[bytes],
        ranges: list[int],
        names: list[bytes],
        options: dict[str, Any],
    ) -> str:
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in packed]
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
        kind, _, seed = str(options["schedule"]).partition(":")
        order = {"forward": 0, "reverse": 1, "random": 2}.get(kind)
        if order is None or (seed and not seed.isdigit()):
            raise ValueError(
                f'schedule is "forward", "reverse" or "random:SEED", not {shown(options["schedule"])}'
            )
        limit = _seconds(options["time_limit"])
        early = self._module.early
        settings = [options["checks"], options["counts"], order, int(seed or 0), limit, early]
        runtime = self._module._runtime
        runtime.cpu_end.restype = ctypes.c_char_p
        started = runtime.cpu_start(
            self._entry,
            self._module.code.cpu_dynamic_shared,
            pointers,
            (ctypes.c_uint * 9)(*shape),
            ctypes.c_uint(shared_mem),
            (ctypes.c_uint64 * max(1, len(ranges)))(*ranges),
            (ctypes.c_char_p * max(1, len(names)))(*names),
            len(names),
            (ctypes.c_double * 6)(*settings),
        )
        if not started:
            raise MemoryError(f"{self.name}: the machine has no thread left for the launch")
        try:  # what a signal raises, it raises between two waits
            while not runtime.cpu_wait():
                pass
        finally:
            report = runtime.cpu_end()
        if report is None:
            raise MemoryError(f"{self.name}: there is no memory for the stacks of its threads")
        return report.decode(errors="replace")


class _Masks:
    """What was written of the scratch arrays of a launch: before it, and then by it."""

    def __init__(self, arrays: list[Any], scratch: Sequence[Any], memory: Memory) -> None:
        self._memory = memory
        self._known: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for each in scratch:
            array, written = each if isinstance(each, tuple) else (each, np.zeros(each.shape, bool))
            self._known[id(array)] = array, written
        passed = [array for array in arrays if isinstance(array, np.ndarray) and array.size]
        spans = {memory.span(array) for array in passed if id(array) in self._known}
        self._masks = {span: Written(span) for span in spans}
        for array in passed if spans else ():
            if mask := self._masks.get(memory.span(array)):
                mask.take(array, memory.address(array), self._known.get(id(array), (array, None))[1])
        self._known = {id(array): self._known[id(array)] for array in passed if id(array) in self._known}

    def address(self, array: np.ndarray) -> int:
        """Where the runtime finds which bytes of the array were written; 0 for what is no scratch."""
        if id(array) not in self._known:
            return 0
        return self._masks[self._memory.span(array)].address(self._memory.bounds(array)[0])

    def give(self) -> None:
        for array, written in self._known.values():
            self._masks[self._memory.span(array)].give(array, self._memory.address(array), written)


def _seconds(limit: Any) -> float:
    if limit is None:
        return math.inf
    number = isinstance(limit, int | float | np.integer | np.floating) and not isinstance(limit, bool)
    if not number or not limit > 0:
        raise ValueError(
            f"time_limit is {limit!r}: it must be a number of seconds above 0, or None for no limit"
        )
    return float(min(limit, 1e9))


def _names(parameters: str) -> list[str]:
    """The names in a list of parameters: `const half *q, int n` has q and n."""
    return [part.split("=")[0].split()[-1].lstrip("*&") for part in parameters.split(",") if part.strip()]


class _Declaration:
    """What the text of a source says of a kernel."""

    def __init__(self, name: str, parameters: str, between: str) -> None:
        self.name = name
        self.parameters = " ".join(parameters.split())
        bounds = re.search(r"__launch_bounds__\s*(\((?:[^()]|\([^()]*\))*\))", between)
        cluster = re.search(r"__cluster_dims__\s*(\((?:[^()]|\([^()]*\))*\))", between)
        self.bounds = bounds[1][1:-1] if bounds else str(MOST_THREADS)
        self.cluster = cluster[1][1:-1] if cluster else "1"


KERNEL = re.compile(
    r'extern\s+"C"\s+__global__((?:\s+(?:void|\w+\s*\((?:[^()]|\([^()]*\))*\)))+)\s+(\w+)\s*\(([^{;]*?)\)\s*\{'
)
SHARED = re.compile(r"extern\s+__shared__\s+([^;]*);")
SHARED_FORM = re.compile(r"(__align__\s*\(\s*\d+\s*\)\s+)?[\w\s]+\bsmem\s*\[\s*\]")


def _declarations(source: Path) -> dict[str, _Declaration]:
    def blank(match: re.Match) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, source.read_text(), flags=re.DOTALL)
    found = {
        name: _Declaration(name, parameters, between) for between, name, parameters in KERNEL.findall(text)
    }
    if not found:
        raise SourceError(f'{source.name} declares no kernel as extern "C" __global__ void name(...)')
    for match in SHARED.finditer(text):
        if not SHARED_FORM.fullmatch(match[1].strip()):
            line = text.count("\n", 0, match.start()) + 1
            raise SourceError(
                f"{source.name}:{line}: dynamic shared memory must be called smem: "
                "`extern __shared__ __align__(1024) unsigned char smem[];`"
            )
    return found
