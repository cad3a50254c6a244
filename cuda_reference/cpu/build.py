"""Compiles the executor's runtime and `.cu` files with the system's C++ compiler, and keeps the results."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import struct
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from cuda_reference.cpu import tools
from cuda_reference.cpu.unset import rewritten
from cuda_reference.files import CACHE_VARIABLE, MachineError, cache_folder, seal, written_wholly
from cuda_reference.source import headers

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parent / "include"
KEPT, KEPT_HEADERS = 1000, 6  # compiled libraries, of a third of a megabyte each; sets of compiled headers
SLOTS, PATIENCE = 64, 180.0  # locks for builders; seconds after which one no longer waits for another
ABANDONED = 24 * 3600.0  # seconds after which the folder of a builder that was killed goes
TRIES = 3  # a file may be removed as soon as it is made
SYMBOLS, DYNAMIC_SYMBOLS = 2, 11  # kinds of sections of an ELF file
THREAD_LOCAL = 6  # the kind of a symbol, as shared memory is here
LEAST_SPACE = 8 << 20  # bytes: less than a compilation writes
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
INTEGERS = "integer-divide-by-zero,shift-exponent,float-cast-overflow"
INSTRUMENT = {  # what clang calls bounds would stop the process
    "g++": f"-fsanitize=thread,alignment,{INTEGERS},bounds",
    "clang": f"-fsanitize=thread,alignment,{INTEGERS},array-bounds",
}
INSTRUMENT_ONLY = {  # accesses, not calls; and volatile accesses apart from others
    "g++": ["--param", "tsan-instrument-func-entry-exit=0", "--param", "tsan-distinguish-volatile=1"],
    "clang": [
        "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1",
        "-mllvm", "-tsan-instrument-read-before-write=1",
    ],
}  # fmt: skip

# What a kernel's library may take from others: reserved names, which are the compiler's and the runtime's,
# what a launch is made of, mathematics, and what a GPU has of the rest of C. Anything else is the host's.
FROM_ELSEWHERE = re.compile(
    r"_[A-Z_]\w*|(thread|block)Idx|(block|grid)Dim|mem(cpy|move|set|cmp)|printf|puts|putchar|malloc|free"
    r"|(a?(sin|cos|tan)h?|atan2|sincos|exp(2|m1)?|log(2|10|1p|b)?|pow|sqrt|cbrt|hypot|fma|fmod|remainder|fabs"
    r"|floor|ceil|trunc|round|nearbyint|l?l?rint|l?l?round|fmin|fmax|fdim|copysign|ldexp|frexp|modf|scalbn"
    r"|ilogb|erfc?|[tl]gamma|nextafter)f?"
)

# A variable in a function, as C++ mangles it: the function, then the length and the letters of the name.
LOCAL = re.compile(r"_ZZ(.+)E\d+([A-Za-z_]\w*)")

# A program may end while a thread that nobody joins is in a launch: the variables of the runtime stay.
NO_DESTRUCTORS = """
extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*, void*) { return 0; }
"""


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
        asked = tools.call([*command.split(), "--version"])
        said = asked.stdout
        if asked.returncode:
            too_old = f" ({command} --version fails: {asked.stderr.strip()[-300:] or asked.returncode})"
            continue
        family = "clang" if "clang" in said else "g++"
        number = re.search(r"version (\d+)" if family == "clang" else r"\) (\d+)\.", said)
        if number and int(number[1]) >= NEEDED[family]:
            return Compiler(command, family, said)
        too_old = f" ({command} here is too old: {said.splitlines()[0] if said else 'it says no version'})"
    if named and not too_old:
        too_old = f" (CXX names {named}, which is not there)"
    raise CompilerMissingError(INSTALL + too_old)


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


class Held:
    """A compiled file that this process holds open.

    It can be read even if another program removes it; this project does not remove it while it is held.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def open_path(self) -> str:
        """Where a command that inherits `descriptor` reads the file."""
        return f"/proc/self/fd/{self.descriptor}"

    def calls_the_host(self) -> list[str]:
        """What the library would call that is no function of a kernel: `system`, for example."""
        taken = (name for name, _, section, _ in self._symbols(DYNAMIC_SYMBOLS) if not section)
        return sorted(name for name in taken if not FROM_ELSEWHERE.fullmatch(name))

    def static_shared(self) -> dict[str, dict[str, int]]:
        """Bytes of the static shared arrays by name, of each function, mangled, that declares some."""
        found: dict[str, dict[str, int]] = {}
        for name, kind, _, size in self._symbols(SYMBOLS):
            if kind == THREAD_LOCAL and (local := LOCAL.fullmatch(name)):
                found.setdefault(local[1], {})[local[2]] = size
        return found

    def _symbols(self, wanted: int) -> Iterator[tuple[str, int, int, int]]:
        """Name, kind, section and size of the symbols with a name in such a section; 0 is no section, where
        the library leaves the name to others.
        """
        data = Path(self.open_path).read_bytes()
        (start,), (size, count) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 58)
        sections = [struct.unpack_from("<IIQQQQI", data, start + n * size) for n in range(count)]
        for _, kind, _, _, place, length, link in sections:
            if kind != wanted:
                continue
            names = sections[link][4]
            for at in range(place, place + length, 24):
                name, info, _, section, _, size = struct.unpack_from("<IBBHQQ", data, at)
                if name:
                    yield data[names + name : data.index(0, names + name)].decode(), info & 15, section, size

    def load(self) -> ctypes.CDLL:
        """Raises MachineError, and CompileError for a name that the source declares and nobody defines."""
        here = _is_still(self.path, self.descriptor)
        try:
            return ctypes.CDLL(str(self.path) if here else self.open_path)
        except OSError as error:
            missing = re.search(r"undefined symbol: (\w+)", str(error))
            if missing:
                raise CompileError(
                    f"{self.path.name}: {missing[1]} is declared but defined nowhere"
                ) from None
            raise MachineError(
                f"{self.path} cannot be loaded ({error}): set {CACHE_VARIABLE} to a folder that allows it"
            ) from None


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _lock_file(descriptor: int, how: int) -> bool:
    """Whether the file is now locked; where the file system has no locks, it counts as locked."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _hold(target: Path) -> Held | None:
    """The file, which then counts as just used; None where it is missing or damaged."""
    while True:
        try:
            held = Held(target, os.open(target, os.O_RDONLY))
        except OSError:
            return None
        _lock_file(held.descriptor, fcntl.LOCK_SH)
        if _is_still(target, held.descriptor):  # or it was removed meanwhile, and perhaps made again
            break
    if not written_wholly(_contents(held.descriptor)):
        return None
    with contextlib.suppress(OSError):
        os.utime(held.descriptor)
    return held


def _contents(descriptor: int) -> bytes:
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _held_or_made(target: Path, make: Callable[[Path], None]) -> Held:
    """The file, made by `make(folder)` as a file of its name in that folder where it is not there yet.

    Processes and threads that want the same file wait for the one that makes it.
    """
    held = _hold(target)
    if held is not None:
        return held
    with _one_builder(target):
        held = _hold(target)
        for _ in range(TRIES):
            if held is not None:
                return held
            try:
                _make_file(target, make)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
                remedy = "free some space or set" if full else "set"
                raise MachineError(
                    f"{target.name} cannot be written to {target.parent} ({error.strerror}): "
                    f"{remedy} {CACHE_VARIABLE} to a folder that has room for it"
                ) from None
            held = _hold(target)
    if held is None:
        raise MachineError(
            f"{target} is damaged or gone as soon as it is written: set {CACHE_VARIABLE} to another folder"
        )
    return held


def _make_file(target: Path, make: Callable[[Path], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    disk = os.statvfs(target.parent)
    if disk.f_bavail * disk.f_frsize < LEAST_SPACE:
        raise OSError(errno.ENOSPC, "No space left on device", str(target.parent))
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix="making-", ignore_cleanup_errors=True
    ) as folder:
        made = Path(folder) / target.name
        make(made)
        seal(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        made.replace(target)


@contextlib.contextmanager
def _one_builder(target: Path) -> Iterator[None]:
    """Held by one builder of a file at a time; who has waited long enough builds beside the other."""
    slot = int(hashlib.sha256(target.name.encode()).hexdigest(), 16) % SLOTS
    try:
        descriptor = os.open(cache_folder("cpu") / f".builder-{slot}", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        descriptor = None
    if descriptor is None:
        yield
        return
    try:
        end = time.monotonic() + PATIENCE
        while not _lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and time.monotonic() < end:
            time.sleep(0.02)
        yield
    finally:  # unlocked by name: a child of a fork has the descriptor too
        _lock_file(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _compile(
    compiler: Compiler,
    source: str,
    target: Path,
    flags: list[str],
    link: list[str],
    name: str,
    files: Sequence[int] = (),
) -> None:
    """Compiles and links `source` into the shared library `target`.

    Two steps: a link with -fsanitize would add the sanitizers that the executor stands in for. files:
    descriptors that the linker may open. Raises CompileError and MachineError.
    """
    unit, built = target.with_name("unit.cpp"), target.with_name("unit.o")
    unit.write_text(source)
    for arguments in (
        ["-c", "-o", str(built), str(unit), *flags],
        ["-shared", f"-Wl,-soname,{target.name}", "-o", str(target), str(built), *link],
    ):
        done = tools.call([*compiler.command.split(), *arguments], files=files, scratch=target.parent)
        tools.check(done, always=False)
        if done.returncode:
            raise CompileError(f"{name} does not compile:\n{done.stderr.strip()}")


def _forget_the_oldest(folder: Path, kind: str, kept: int) -> None:
    """Keeps the files that were used last, and those that a process holds."""
    used = []
    for path in _listed(folder, kind):
        with contextlib.suppress(OSError):  # another process may be doing the same
            used.append((path.stat().st_mtime, path))
    for _, path in sorted(used)[:-kept]:
        with contextlib.suppress(OSError):
            _remove_unless_held(path)
    for path in (*_listed(folder, "making-*"), *_listed(folder, "*/making-*")):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _listed(folder: Path, kind: str) -> Iterator[Path]:
    """The files of that pattern; not all of them where a folder goes while it is read."""
    with contextlib.suppress(OSError):
        yield from folder.glob(kind)


def _remove_unless_held(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) and _is_still(path, descriptor):
            path.unlink()
    finally:
        os.close(descriptor)


@cache
def build_runtime(compiler: Compiler) -> Held:
    """The executor's own library, compiled once for each compiler and version of the sources."""
    sources = sorted((HERE / "src").glob("*.cpp"))
    headers = [*sorted((HERE / "src").glob("*.h")), HERE / "shim/executor.h"]
    flags = [*COMMON, *_processor_flags(), "-ffp-contract=off"]
    flags += ["-std=c++20", "-O2", "-ftree-vectorize", "-pthread"]
    flags.append("-g0")  # a quarter less time for the first kernel of a machine; nobody steps through it
    # Not where they are: clones and environments of one version share the library.
    key = _key([compiler.version, repr(flags), *(path.read_bytes() for path in [*sources, *headers])])
    flags += ["-I", str(HERE / "src")]
    unit = "".join(f'#include "{path}"\n' for path in sources) + NO_DESTRUCTORS

    def make(target: Path) -> None:
        _compile(compiler, unit, target, flags, ["-pthread"], "the CPU executor")

    return _held_or_made(cache_folder("cpu") / f"libflashcore-{key}.so", make)


def _compiled_headers(compiler: Compiler, flags: list[str]) -> Held | None:
    """The executor's header, compiled: that takes a third off a kernel's time.

    A kernel finds it where the file's folder is among those of headers. None where it cannot be made: the
    header itself is then read.
    """
    if compiler.family != "g++":  # clang takes no such file from the search path
        return None
    header = HERE / "shim/cuda_dialect.h"
    texts = [path.read_bytes() for path in (header, HERE / "shim/executor.h")]
    folder = cache_folder("cpu") / f"headers-{_key([compiler.version, repr(flags), *texts])}"

    def make(target: Path) -> None:
        _forget_the_oldest(folder.parent, "headers-*/*.gch", KEPT_HEADERS)
        arguments = ["-x", "c++-header", "-o", str(target), str(header), *flags]
        done = tools.call([*compiler.command.split(), *arguments], scratch=target.parent)
        tools.check(done, always=False)
        if done.returncode:
            raise CompileError(f"{header.name} does not compile:\n{done.stderr.strip()}")

    try:
        return _held_or_made(folder / f"{header.name}.gch", make)
    except CompileError:
        return None


def build_kernels(
    compiler: Compiler,
    runtime: Held,
    source: Path,
    exports: str,
    defines: Mapping[str, object],
    optimise: bool,
) -> tuple[Held, dict[str, bytes]]:
    """The library of one `.cu` file, and what its files held when it was compiled, by path.

    exports: what follows the source in its translation unit. Raises CompileError and MachineError.
    """
    # NVRTC turns a * b + c into one FMA, which rounds once: where that matters, it must matter here too.
    flags = [*COMMON, *_processor_flags(), "-ffp-contract=fast", "-fvisibility=hidden", "-DFLASHCORE_CPU"]
    # A variable without a value holds a pattern, and a NaN as a half; unset.py names it.
    flags += ["-ftrivial-auto-var-init=pattern", "-fno-exceptions"]
    flags.append("-O1" if optimise else "-O0")
    flags.append("-fstack-clash-protection")  # large frames do not skip the guard page
    if compiler.family == "g++":
        # Reports need lines alone: where variables are is a fifth of the time, and -O1 moves them anyway.
        flags += ["-fno-var-tracking", "-fno-var-tracking-assignments"]
        # A vector stays one access; shared memory has no constructor to look for.
        flags += ["-fno-tree-sra", "-fno-extern-tls-init"]
        # Where a condition throws a load's value away, the load is still there, as on the GPU.
        flags += ["-fno-thread-jumps"]
        flags += ["-fexpensive-optimizations"]  # has the pass that forms FMAs
        flags += ["-fstack-reuse=none"]  # registers of one variable are not those of another
    flags += [INSTRUMENT[compiler.family], *INSTRUMENT_ONLY[compiler.family]]
    own = [f"-D{name}={_literal(value)}" for name, value in sorted(defines.items())]
    for folder in (HERE / "shim", INCLUDE, source.parent):
        own += ["-I", str(folder)]
    plain = f'#include "{source}"'

    def unit(body: str) -> str:
        return f'#include "cuda_dialect.h"\n{body}\n{exports}\n'

    while True:
        texts = _texts(source)

        def make(target: Path, texts: dict[str, bytes] = texts) -> None:
            header = _compiled_headers(compiler, flags)
            compiled = [] if header is None else ["-I", str(header.path.parent)]
            _forget_the_oldest(cache_folder("cpu"), "*.so", KEPT)
            options = [*flags, *compiled, *own], [runtime.open_path], source.name, [runtime.descriptor]
            try:
                _compile(compiler, unit(rewritten(source, [INCLUDE])), target, *options)
            except CompileError:  # what looked like a declaration is none, or the source says it once more
                _compile(compiler, unit(plain), target, *options)
            if _texts(source) != texts:
                raise _SourceChanged

        how = compiler.version, repr([flags, own]), (HERE / "unset.py").read_bytes()
        names: list[bytes | str] = [*how, exports, str(source), runtime.path.name]
        target = cache_folder("cpu") / f"{source.stem}-{_key([*names, *texts.values()])}.so"
        with contextlib.suppress(_SourceChanged):
            return _held_or_made(target, make), texts


class _SourceChanged(Exception):
    """While the compiler read it: what was made belongs to no text that is known."""


def _texts(source: Path) -> dict[str, bytes]:
    """What a kernel is made of: its file, `.h` beside it, what `headers` finds, and the executor's own."""
    others = [*(HERE / "shim").iterdir(), *INCLUDE.iterdir(), *source.parent.glob("*.h")]
    paths = dict.fromkeys([source, *sorted({*others, *map(Path, headers(source))})])
    return {str(path): _shared(path.read_bytes()) for path in paths if path.is_file()}


@lru_cache(maxsize=256)
def _shared(text: bytes) -> bytes:
    """One object for equal texts: every module remembers those of all headers."""
    return text


def _literal(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
