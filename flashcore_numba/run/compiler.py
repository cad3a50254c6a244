"""Compiles kernels, Numba's and CUDA C, without a GPU and reads what the assembler says of them."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
from numba.cuda.cudadrv import devices, nvrtc
from numba.cuda.cudadrv.driver import _Linker
from numba.cuda.dispatcher import _Kernel
from numba.cuda.np import numpy_support
from numba.cuda.types import Array
from numba.cuda.typing.typeof import Purpose, typeof

from cuda_reference import Source
from cuda_reference.compile import compile as compile_cuda
from cuda_reference.compile import parse_log
from cuda_reference.extras import install
from flashcore_numba.core.errors import UnsupportedError
from flashcore_numba.core.multiprocessors import shared_limit

EXAMPLE_SM_COUNT = 132  # of an H200: what a launcher that fills a GPU goes by where there is none


class CompilerMissingError(RuntimeError):
    """The libraries of the CUDA compiler are not installed: the message says what to install."""


@cache
def why_not() -> str | None:
    """Why kernels cannot be compiled here, in one sentence that says what to do; None when they can."""
    for library in ("cudart", "nvrtc", "nvvm"):
        if not _found(library):
            return f"the CUDA compiler's lib{library} is missing: {install('compiler')}"
    return None


def supported_capabilities() -> list[tuple[int, int]]:
    """The compute capabilities that the installed CUDA compiler writes code for."""
    return sorted(nvrtc.get_supported_ccs())


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel compiled for one set of argument types. Sizes are bytes, None where no assembler was found.

    name: of a CUDA C kernel with its defines. ptx: empty for CUDA C, which NVRTC takes to machine code at
    once. registers: per thread. spill_bytes: stores plus loads that the spills of one thread cost, counted
    once each in the code. stack_bytes: local memory a thread, which holds spills and local arrays.
    shared_bytes: per block, static plus the dynamic ones of the launch. threads: of a block. warnings: the
    assembler's.
    """

    name: str
    ptx: str
    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    log: str = ""
    warnings: tuple[str, ...] = ()
    threads: int = 0


class Compiler:
    """An executor that runs nothing: `kernels` collects each launched kernel, compiled for its arguments.

    NumPy arrays stand in for the GPU's, and may be of any size: nothing reads them. Needs the NVVM and
    nvJitLink libraries of an extra (compiler, cuda12, cuda13), but neither driver nor GPU. Where nvJitLink is
    missing, a `ptxas` on PATH assembles the PTX; where that is missing too, only the PTX is there.

    Raises CompilerMissingError; `launch` raises UnsupportedError for more shared memory than a block has.
    """

    sm_count = EXAMPLE_SM_COUNT

    def __init__(self, compute_capability: tuple[int, int] = (9, 0)) -> None:
        reason = why_not()
        if reason:
            raise CompilerMissingError(reason)
        self.compute_capability, self.shared_limit = compute_capability, shared_limit(compute_capability)
        self.kernels: list[CompiledKernel] = []

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def counter(self, count: int = 1) -> np.ndarray:
        return np.zeros(count, np.uint32)

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        if isinstance(kernel, Source):
            compiled = _compile_cuda(kernel, self.compute_capability)
        else:
            compiled = _compile(kernel, tuple(_type(a) for a in args), self.compute_capability)
        compiled = replace(compiled, threads=int(np.prod(block)))
        if compiled.shared_bytes is not None:
            needed = compiled.shared_bytes + shared_bytes
            if needed > self.shared_limit:
                raise UnsupportedError(
                    f"{compiled.name} needs {needed} bytes of shared memory per block: this GPU has room for "
                    f"{self.shared_limit}"
                )
            compiled = replace(compiled, shared_bytes=needed)
        if compiled not in self.kernels:
            self.kernels.append(compiled)


def _compile_cuda(kernel: Source, capability: tuple[int, int]) -> CompiledKernel:
    found = compile_cuda(kernel, capability)
    return CompiledKernel(
        kernel.label,
        "",
        found.registers,
        found.spill_bytes,
        found.stack_bytes,
        found.shared_bytes,
        found.log,
        found.warnings,
    )


def _type(value: Any) -> Any:
    """The Numba type under which `Gpu` passes this argument."""
    if not isinstance(value, np.ndarray):
        return typeof(value, Purpose.argument)
    layout = "C" if value.flags.c_contiguous else "A"
    return Array(numpy_support.from_dtype(value.dtype), value.ndim, layout)


@lru_cache(maxsize=512)
def _compile(kernel: Any, argument_types: tuple, capability: tuple[int, int]) -> CompiledKernel:
    target = (*capability, "a" if capability >= (9, 0) else "")  # what Numba compiles for on such a GPU
    with _device(capability):
        compiled = _Kernel(kernel.py_func, argument_types, **kernel.targetoptions)
        ptx = compiled.library.get_asm_str(cc=target)
        log = _assemble(compiled.library, kernel.targetoptions, target, ptx)
    sizes: dict[str, Any] = next(iter(parse_log(log).values()), {})
    return CompiledKernel(kernel.py_func.__name__, ptx, **sizes, log=log)


@contextmanager
def _device(capability: tuple[int, int]) -> Iterator[None]:
    """Let Numba believe, in this thread and for a while, that a GPU of this compute capability is current.

    Its compiler asks the current context for nothing else, even where it only translates.
    """
    runtime = devices._runtime
    attached = runtime._get_attached_context()
    runtime._set_attached_context(SimpleNamespace(device=SimpleNamespace(compute_capability=capability)))
    try:
        yield
    finally:
        runtime._set_attached_context(attached)


def _assemble(library: Any, options: dict, target: tuple, ptx: str) -> str:
    """The assembler's `-v` report for what Numba would load: link-time optimised code where it does that."""
    arch = "sm_{}{}{}".format(*target)
    if not _found("nvJitLink"):
        return _ptxas(ptx, arch, options.get("max_registers"))
    from cuda.core import Linker, LinkerOptions

    optimised = bool(options.get("lto"))
    collected = _Linker(max_registers=options.get("max_registers"), cc=target, lto=optimised)
    library._link_all(collected, target)  # with what it calls: the operators of float16
    linker = Linker(
        *collected._object_codes,
        options=LinkerOptions(
            arch=arch,
            max_register_count=options.get("max_registers"),
            link_time_optimization=optimised or None,
            ptxas_options=["-v"],
            no_cache=True,  # a hit in the driver's cache comes without the report
        ),
    )
    linker.link("cubin")
    log = linker.get_info_log()
    linker.close()
    return log.strip("\0\n")


@cache
def _found(library: str) -> bool:
    try:
        load_nvidia_dynamic_lib(library)
    except DynamicLibNotFoundError:
        return False
    return True


def _ptxas(ptx: str, arch: str, max_registers: int | None) -> str:
    program = shutil.which("ptxas")
    if program is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [program, "-v", f"-arch={arch}", "-o", str(source.with_suffix(".cubin")), str(source)]
        if max_registers:
            command.append(f"--maxrregcount={max_registers}")
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr
