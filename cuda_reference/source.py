"""Which kernel: a `.cu` file, one entry point of it, and the macros that it is compiled with."""

import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent
INCLUDE = FOLDER / "include"
BRANCHES = FOLDER / "branches"  # kernels of what leaves the ladder
PROBES = FOLDER / "probes"  # kernels that ask the hardware something
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One `extern "C"` kernel of a `.cu` file. `defines` are (macro, value), in the order of the names."""

    path: Path
    entry: str
    defines: tuple[tuple[str, int | str], ...] = ()

    @property
    def file(self) -> str:
        """`stage12_mma_sync`: the name of the file without its folder."""
        return self.path.stem

    @property
    def early(self) -> bool:
        """Whether EARLY is 1: the kernel itself waits for those before it (`ptx::grid_dependency_wait`), and
        is launched so that it may begin before they have ended (programmatic dependent launch).
        """
        return ("EARLY", 1) in self.defines

    @property
    def cluster(self) -> int:
        """Blocks of a cluster, where macros say so: CLUSTER of them, for each of HEADS heads if it is one."""
        of = dict(self.defines)
        return int(of.get("CLUSTER", 1)) * int(of.get("HEADS", 1))

    @property
    def label(self) -> str:
        """`mma_sync (HEAD_DIM=64)`."""
        values = ", ".join(f"{name}={value}" for name, value in self.defines)
        return f"{self.entry} ({values})" if values else self.entry

    @property
    def digest(self) -> str:
        """Changes with the file, with every `.cuh` beside it or in `include/`, with what it includes by
        a name in quotes, wherever that is, and with the defines.
        """
        states = ((str(self.path), self.path.stat().st_mtime_ns), *sorted(headers(self.path).items()))
        return _digest(states, self.entry, self.defines)

    def text(self) -> str:
        return _text(self.path, self.path.stat().st_mtime_ns)


def source(
    file: str, entry: str | None = None, *, folder: Path | None = None, **defines: int | str
) -> Source:
    """The kernel `entry` of `folder/file.cu`, compiled with each of `defines` as a macro.

    Without `folder` it is a stage's kernel, or a probe.

    Without `entry` it is the kernel that is named like the file: "stage12_mma_sync" has `mma_sync`. True and
    False become 1 and 0.
    """
    values = {name: int(value) if isinstance(value, bool) else value for name, value in defines.items()}
    entry = entry or re.sub(r"^stage\d+_", "", file)
    path = folder / f"{file}.cu" if folder else kernel_path(f"{file}.cu")
    return Source(path, entry, tuple(sorted(values.items())))


def kernel_path(name: str) -> Path:
    """Where the file of a stage's kernel lies, or of a probe's; it need not exist."""
    folders = (FOLDER, BRANCHES, PROBES)
    return next((path for folder in folders if (path := folder / name).exists()), FOLDER / name)


def headers(path: Path) -> dict[str, int]:
    """When each header that a file may include was changed last: every `.cuh` beside it or in `include/`, and
    what it, or one that it includes, names in quotes.
    """
    states = {
        entry.path: entry.stat().st_mtime_ns
        for folder in (path.parent, INCLUDE)
        for entry in os.scandir(folder)
        if entry.name.endswith(".cuh")
    }
    here = (str(path), path.stat().st_mtime_ns), *sorted(states.items())
    elsewhere: dict[str, int | None] = {}
    while more := _named(here, tuple(elsewhere.items())):
        elsewhere |= {name: _modified(name) for name in more}
    return states | {name: state for name, state in elsewhere.items() if state is not None}


@lru_cache(maxsize=256)
def _named(here: tuple[tuple[str, int], ...], elsewhere: tuple[tuple[str, int | None], ...]) -> list[str]:
    """Where else headers may be that the first file of `here` includes, or that one of these does."""
    states = dict((*here, *elsewhere))
    listed = Path(here[0][0]).parent, INCLUDE  # every .cuh in these is known
    waiting, seen, more = [here[0][0]], {here[0][0]}, []
    while waiting:
        of = waiting.pop()
        for name in _included(of, states[of]):
            for folder in (Path(of).parent, *listed):
                path = Path(os.path.normpath(folder / name))
                if (found := str(path)) in seen:
                    continue
                seen.add(found)
                if states.get(found) is not None:
                    waiting.append(found)
                elif found not in states and not (path.suffix == ".cuh" and path.parent in listed):
                    more.append(found)
    return more


def _modified(path: str) -> int | None:
    """When a file was changed last; None for what is none."""
    try:
        state = os.stat(path)  # noqa: PTH116 - asked for at every load, and a Path takes as long again
    except (OSError, ValueError):
        return None
    return state.st_mtime_ns if stat.S_ISREG(state.st_mode) else None


@lru_cache(maxsize=256)
def _included(path: str, modified: int) -> tuple[str, ...]:
    """The names in quotes that a file includes."""
    return tuple(INCLUDED.findall(Path(path).read_text(errors="replace")))


@lru_cache(maxsize=1024)
def _digest(states: tuple[tuple[str, int], ...], entry: str, defines: tuple) -> str:
    texts = [_text(Path(path), modified) for path, modified in states]
    return sha256("\0".join([*texts, entry, repr(defines)]).encode(errors="surrogateescape")).hexdigest()


@lru_cache(maxsize=64)
def _text(path: Path, modified: int) -> str:
    return path.read_text(errors="surrogateescape")
