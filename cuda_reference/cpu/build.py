"""Compiles the executor's runtime and `.cu` files with the system's C++ compiler, and keeps the results."""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

__all__ = [
    "CompileError",
    "Compiler",
    "CompilerMissingError",
    "build_kernels",
    "build_runtime",
    "find_compiler",
]

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent / "include"
KEPT, KEPT_HEADERS = 400, 6  # compiled libraries; sets of compiled headers
NEEDED = {"g++": 12, "clang": 15}
INSTALL = (
    "the CPU executor needs a C++ compiler, g++ 12 or clang 15 or newer: install one "
    "(apt install g++, dnf install gcc-c++), or name it in the environment variable CXX"
)
COMMON = [
    "-std=c++17",
    "-fPIC",
    "-gdwarf-4",
    "-U_FORTIFY_SOURCE",
    "-fno-strict-aliasing",
    "-w",
]
INSTRUMENT = {  # what clang calls bounds would stop the process
    "g++": "-fsanitize=thread,alignment,integer-divide-by-zero,bounds",
    "clang": "-fsanitize=thread,alignment,integer-divide-by-zero,array-bounds",
}
INSTRUMENT_ONLY = {  # accesses, not calls; and volatile accesses apart from others
    "g++": ["--param", "tsan-instrument-func-entry-exit=0", "--param", "tsan-distinguish-volatile=1"],
    "clang": [
        "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1",
        "-mllvm", "-tsan-instrument-read-before-write=1",
    ],
}  # fmt: skip


class CompilerMissingError(RuntimeError):
    """There is no C++ compiler, or it is too old: the message says what to install."""


class CompileError(RuntimeError):
    """A kernel source does not compile: the message is the compiler's, with the source's own lines."""


@dataclass(frozen=True)
class Compiler:
    """command: how to call it. family: g++ or clang. version: its own text, part of every cache key."""

    command: str
    family: str
    version: str


@cache
def find_compiler(wanted: str | None = None) -> Compiler:
    """The C++ compiler named by `wanted` or the environment variable CXX, else the first that is new enough.

    Raises CompilerMissingError.
    """
    if not sys.platform.startswith("linux"):
        raise CompilerMissingError("the CPU executor runs on Linux only: use a Linux machine or container")
    named = wanted or os.environ.get("CXX")
    newer = [
        f"{name}-{n}"
        for name, first in (("g++", 12), ("clang++", 15))
        for n in range(first + 12, first - 1, -1)
    ]
    too_old = ""
    for command in [named] if named else ["g++", "clang++", *newer]:
        if not shutil.which(command.split()[0]):
            continue
        said = subprocess.run([*command.split(), "--version"], capture_output=True, text=True).stdout
        family = "clang" if "clang" in said else "g++"
        number = re.search(r"version (\d+)" if family == "clang" else r"\) (\d+)\.", said)
        if number and int(number[1]) >= NEEDED[family]:
            return Compiler(command, family, said)
        too_old = f" ({command} here is too old: {said.splitlines()[0] if said else 'it says no version'})"
    if named and not too_old:
        too_old = f" (CXX names {named}, which is not there)"
    raise CompilerMissingError(INSTALL + too_old)


def cache_folder() -> Path:
    folder = Path(platformdirs.user_cache_dir("flashcore", appauthor=False)) / "cpu"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _processor_flags() -> tuple[str, ...]:
    """Half-precision conversions and FMAs in one instruction, wide vectors, where the processor has them."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    if platform.machine() != "x86_64":
        return ()
    return tuple(f"-m{name}" for name in ("f16c", "avx2", "fma") if f" {name}" in flags)


def _key(texts: Iterable[bytes | str]) -> str:
    digest = hashlib.sha256(Path(__file__).read_bytes())  # how it is compiled
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:20]


def _compile(
    compiler: Compiler, source: str, target: Path, flags: list[str], link: list[str], name: str
) -> None:
    """Compiles and links `source` into the shared library `target`, which appears at once and whole.

    Two steps: a link with -fsanitize would add the sanitizers that the executor stands in for.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unit, built, library = (Path(folder) / file for file in ("unit.cpp", "unit.o", target.name))
        unit.write_text(source)
        for arguments in (
            ["-c", "-o", str(built), str(unit), *flags],
            ["-shared", "-o", str(library), str(built), *link],
        ):
            done = subprocess.run([*compiler.command.split(), *arguments], capture_output=True, text=True)
            if done.returncode:
                raise CompileError(f"{name} does not compile:\n{done.stderr.strip()}")
        os.replace(library, target)
    _forget_the_oldest(target.parent, "*.so", KEPT)


def _forget_the_oldest(folder: Path, kind: str, kept: int) -> None:
    """Keeps the files that were used last; a library that is loaded stays usable when its file is gone."""
    used = []
    for path in folder.glob(kind):
        with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
            used.append((path.stat().st_mtime, path))
    for _, path in sorted(used)[:-kept]:
        path.unlink(missing_ok=True)


def _found(target: Path) -> bool:
    """Whether a library is there; it then counts as just used."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(target)
        return True
    return False


@cache
def build_runtime(compiler: Compiler) -> Path:
    """The executor's own library, compiled once a compiler and version of the sources."""
    sources = sorted((HERE / "src").glob("*.cpp"))
    headers = [*sorted((HERE / "src").glob("*.h")), HERE / "shim/executor.h"]
    flags = [*COMMON, *_processor_flags(), "-ffp-contract=off"]
    flags += ["-std=c++20", "-O2", "-ftree-vectorize", "-pthread"]
    flags += ["-I", str(HERE / "src")]
    key = _key([compiler.version, repr(flags), *(path.read_bytes() for path in [*sources, *headers])])
    target = cache_folder() / f"libflashcore-{key}.so"
    if not _found(target):
        unit = "".join(f'#include "{path}"\n' for path in sources)
        _compile(compiler, unit, target, flags, ["-pthread"], "the CPU executor")
    return target


def _compiled_headers(compiler: Compiler, flags: list[str]) -> list[str]:
    """Options with which a kernel reads the executor's header compiled: that takes a third off its time.

    Without them, where it cannot be made, the header itself is read.
    """
    if compiler.family != "g++":  # clang takes no such file from the search path
        return []
    header = HERE / "shim/cuda_dialect.h"
    texts = [path.read_bytes() for path in (header, HERE / "shim/executor.h")]
    folder = cache_folder() / f"headers-{_key([compiler.version, repr(flags), *texts])}"
    target = folder / f"{header.name}.gch"
    if not _found(target):
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            arguments = ["-x", "c++-header", "-o", f"{made}/{target.name}", str(header), *flags]
            if subprocess.run([*compiler.command.split(), *arguments], capture_output=True).returncode:
                return []
            folder.mkdir(exist_ok=True)
            os.replace(f"{made}/{target.name}", target)
        _forget_the_oldest(folder.parent, "headers-*/*.gch", KEPT_HEADERS)
    return ["-I", str(folder)]


def build_kernels(
    compiler: Compiler,
    source: Path,
    exports: str,
    defines: Mapping[str, object],
    instrument: bool,
    optimise: bool,
) -> Path:
    """The library of one `.cu` file. `exports` is what stands behind the source in its translation unit.

    Raises CompileError.
    """
    runtime = build_runtime(compiler)
    # NVRTC turns a * b + c into one FMA, which rounds once: where that matters, it must matter here too.
    flags = [*COMMON, *_processor_flags(), "-ffp-contract=fast", "-fvisibility=hidden", "-DFLASHCORE_CPU"]
    flags.append("-O1" if optimise else "-O0")
    flags.append("-fstack-clash-protection")  # large frames do not skip the guard page
    if compiler.family == "g++":
        # A vector stays one access; shared memory has no constructor to look for.
        flags += ["-fno-tree-sra", "-fno-extern-tls-init"]
        # Where a condition throws a load's value away, the load is still there, as on the GPU.
        flags += ["-fno-thread-jumps"]
        flags += ["-fexpensive-optimizations"]  # has the pass that forms FMAs
    if instrument:
        flags += [INSTRUMENT[compiler.family], *INSTRUMENT_ONLY[compiler.family]]
    flags += _compiled_headers(compiler, flags)
    flags += [f"-D{name}={_literal(value)}" for name, value in sorted(defines.items())]
    for folder in (HERE / "shim", INCLUDE, source.parent):
        flags += ["-I", str(folder)]
    beside = [path for kind in ("*.h", "*.cuh") for path in sorted(source.parent.glob(kind))]
    headers = [*sorted((HERE / "shim").iterdir()), *sorted(INCLUDE.iterdir()), *beside]
    texts = [path.read_bytes() for path in [source, *headers] if path.is_file()]
    key = _key([compiler.version, repr(flags), exports, str(source), runtime.name, *texts])
    target = cache_folder() / f"{source.stem}-{key}.so"
    if not _found(target):
        unit = f'#include "cuda_dialect.h"\n#include "{source}"\n{exports}\n'
        _compile(compiler, unit, target, flags, [str(runtime), f"-Wl,-rpath,{runtime.parent}"], source.name)
    return target


def _literal(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
