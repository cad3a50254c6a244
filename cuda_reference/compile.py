"""Compiles a kernel for any GPU, without one, and reads what the assembler says of it."""

import io
import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from cuda_reference.extras import install
from cuda_reference.files import CACHE_VARIABLE, MachineError, cache_folder, write
from cuda_reference.source import INCLUDE, Source

INSTALL = install("compiler")


class CompileError(RuntimeError):
    """A source does not compile, or cannot be compiled here: the message names file and line, or says what to
    install.
    """


@dataclass(frozen=True)
class Compiled:
    """A kernel as the GPU loads it. Sizes are bytes.

    registers: per thread. spill_bytes: stores plus loads that the spills of one thread cost, counted once
    each in the code. stack_bytes: local memory a thread, which holds spills and local arrays. shared_bytes:
    static ones, per block. warnings: the assembler's, for example that it serialised wgmma (C7512). cubin:
    the file with the machine code.
    """

    source: Source
    arch: str
    cubin: Path
    log: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int
    warnings: tuple[str, ...]


def why_not() -> str | None:
    """Why no kernel can be compiled here, in one sentence that says what to do; None when they can."""
    try:
        nvrtc_version()
        include_folders("mma.h")
    except CompileError as error:
        return str(error)
    return None


def target(capability: tuple[int, int]) -> str:
    """`sm_80`; from 9.0 on with the `a` of the instructions that only this architecture has: `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if capability >= (9, 0) else ''}"


def compile(source: Source, capability: tuple[int, int]) -> Compiled:
    """Compile `source` for a compute capability, or take what was kept of the same compilation.

    Raises CompileError, and MachineError where the result cannot be kept.
    """
    arch = target(capability)
    folders = include_folders(source.text())
    version = ".".join(map(str, nvrtc_version()))
    key = sha256(f"{source.digest} {arch} {version} {folders}".encode()).hexdigest()[:32]
    cubin = _cache_folder() / f"{source.file}-{arch}-{key}.cubin"
    log_file = cubin.with_suffix(".log")
    log = _kept_log(cubin, log_file)
    if log is None:
        code, log = _compile(source, arch, folders)
        try:
            write(log_file, f"{_digest(code, log)}\n{log}")
            write(cubin, code)
        except OSError as error:
            raise MachineError(
                f"{error.filename} cannot be written ({error.strerror}): free some space, or set "
                f"{CACHE_VARIABLE} to another folder"
            ) from None
    warnings = tuple(line.strip() for line in log.splitlines() if "warning" in line.lower() or "(C75" in line)
    found = parse_log(log).get(source.entry)
    if found is None:
        raise CompileError(f'{source.path.name} has no kernel extern "C" {source.entry}: {log}')
    return Compiled(source, arch, cubin, log, warnings=warnings, **found)


def parse_log(log: str) -> dict[str, dict[str, int]]:
    """registers, spill_bytes, stack_bytes and shared_bytes of each kernel in a `ptxas -v` report."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        used = re.search(r"Used (\d+) registers(.*)", part)
        memory = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        if used is None or memory is None:
            continue
        shared = re.search(r"(\d+) bytes smem", used[2])
        found[part.partition("'")[0]] = {
            "registers": int(used[1]),
            "spill_bytes": int(memory[2]) + int(memory[3]),
            "stack_bytes": int(memory[1]),
            "shared_bytes": int(shared[1]) if shared else 0,
        }
    return found


def include_folders(text: str) -> tuple[str, ...]:
    """Where a source with this text finds its headers: `include/`, CUDA's, and crt/ where mma.h wants it."""
    from cuda.pathfinder import locate_nvidia_header_directory

    cuda = locate_nvidia_header_directory("cudart")
    if cuda is None:
        raise CompileError(f"the CUDA headers are missing: {INSTALL}")
    folders = [str(INCLUDE), str(cuda.abs_path)]
    if "mma.h" in text and not Path(folders[1], "crt/mma.h").exists():
        nvcc = locate_nvidia_header_directory("nvcc")
        if nvcc is None or not Path(str(nvcc.abs_path), "crt/mma.h").exists():
            raise CompileError(f"the header crt/mma.h, which mma.h includes, is missing: {INSTALL}")
        folders.append(str(nvcc.abs_path))
    return tuple(folders)


@cache
def nvrtc_version() -> tuple[int, int]:
    """Of the compiler that is installed. Raises CompileError when there is none."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvrtc")
    except Exception as error:  # one of several packages, or a library that one of them loads, is not there
        raise CompileError(f"the CUDA compiler's libnvrtc is missing: {INSTALL}") from error
    _, major, minor = nvrtc.nvrtcVersion()
    return major, minor


def _compile(source: Source, arch: str, folders: tuple[str, ...]) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    options = ProgramOptions(
        name=str(source.path),
        arch=arch,
        std="c++17",
        lineinfo=True,
        ptxas_options=["-v"],
        define_macro=[(name, str(value)) for name, value in source.defines] or None,
        include_path=list(folders),
        # A hit in NVRTC's own cache, which has been there since 12.9, comes without the assembler's report.
        no_cache=nvrtc_version() >= (12, 9) or None,
    )
    try:
        code = Program(source.text(), "c++", options).compile("cubin", logs=log).code
    except Exception as error:  # CUDA's bindings have an exception of their own for each library
        told = str(error).partition("compilation log:")[2].strip("\0 \n") or str(error)
        raise CompileError(
            f"{source.path.name} ({source.label}, {arch}) does not compile:\n{told}"
        ) from error
    return bytes(code), log.getvalue().replace("\0", "").strip()


def _kept_log(cubin: Path, log_file: Path) -> str | None:
    """The log of a kept compilation; None where its files are missing or damaged."""
    try:
        digest, _, log = log_file.read_text().partition("\n")
        return log if digest == _digest(cubin.read_bytes(), log) else None
    except (OSError, UnicodeDecodeError):
        return None


def _digest(code: bytes, log: str) -> str:
    return sha256(code + log.encode()).hexdigest()


def _cache_folder() -> Path:
    return cache_folder("cubin")
