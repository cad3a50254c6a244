"""Where compiled code is kept, files that appear whole or not at all, locks that a fork finds free."""

import contextlib
import errno
import hashlib
import logging
import os
import stat
import tempfile
import threading
import uuid
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TypeVar

CACHE_VARIABLE = "FLASHCORE_CACHE"
Class = TypeVar("Class", bound=type)
SEAL = b"whole\0\1\2"  # ends what `sealed` makes, before the hash


class MachineError(RuntimeError):
    """The machine is at fault, and no kernel: a full disk, a tool that fails. The message says which."""


def lock() -> AbstractContextManager:
    """A lock that is free in the child of a fork: a fork waits until no other thread holds it.

    Of two such locks that are held together, the one that is taken first must be made last.
    """
    made = threading.RLock()
    os.register_at_fork(before=made.acquire, after_in_parent=made.release, after_in_child=made.release)
    return made


def fork_safe(owner: Class) -> Class:
    """The class, whose cached properties the child of a fork can use. Before Python 3.12 each has a lock, and
    a thread that holds it is not in the child, which would wait for it without end.
    """

    def renew() -> None:
        for each in vars(owner).values():
            if isinstance(each, cached_property) and hasattr(each, "lock"):
                each.lock = threading.RLock()

    os.register_at_fork(after_in_child=renew)
    return owner


_lock = lock()
_usable: set[Path] = set()


def cache_folder(kind: str) -> Path:
    """The folder of one kind of compiled code: under FLASHCORE_CACHE, else in the user's cache folder.

    Where that cannot be written, it is a temporary folder; a line on stderr says so, and processes that this
    one starts use the same folder. Raises MachineError where no folder can be written.
    """
    with _lock:
        root = _wanted()
        try:
            if root not in _usable:
                _try(root)
            (root / kind).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            root = _temporary(root, error)
            (root / kind).mkdir(exist_ok=True)
        _usable.add(root)
        return root / kind


def _wanted() -> Path:
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).absolute()
    import platformdirs  # nothing else here needs it, and the simulator runs beside NumPy alone

    try:
        return Path(platformdirs.user_cache_dir("flashcore", appauthor=False))
    except RuntimeError:  # nobody knows a home folder
        return Path("~/.cache/flashcore")


def _try(root: Path) -> None:
    """Raises OSError where no file can be made."""
    if not root.is_absolute():
        raise FileNotFoundError(2, "there is no home folder")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=root):
        pass


def _temporary(root: Path, error: OSError) -> Path:
    remedy = f"set {CACHE_VARIABLE} to a folder that can be written"
    try:
        folder = Path(tempfile.gettempdir()).absolute() / f"flashcore-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            folder = Path(tempfile.mkdtemp(prefix="flashcore-"))  # that name is somebody else's
        _try(folder)
    except OSError as second:
        raise MachineError(
            f"compiled kernels cannot be kept in {root} ({error.strerror}) nor in a temporary folder "
            f"({second.strerror}): {remedy}"
        ) from None
    os.environ[CACHE_VARIABLE] = str(folder)
    # CuPy compiles small kernels of its own, and stops where it cannot keep them.
    os.environ.setdefault("CUPY_CACHE_DIR", str(folder / "cupy"))
    logging.getLogger("flashcore").warning(
        "flashcore: %s cannot be written (%s): compiled kernels go to %s; %s",
        root,
        error.strerror,
        folder,
        remedy,
    )
    return folder


def write(path: Path, data: str | bytes, new: bool = False) -> None:
    """Write a file so that it appears whole or not at all, whatever happens, and in place of one of its name.

    new: never in place of one. Raises OSError, which names `path`; FileExistsError where `new` forbids it.
    """
    if new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        with unfinished.open("xb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
        if new:
            os.link(unfinished, path)
            _remove(unfinished)
        else:
            unfinished.replace(path)
    except OSError as error:
        _remove(unfinished)
        raise OSError(error.errno, error.strerror, str(path)) from None
    except BaseException:
        _remove(unfinished)
        raise


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def seal(path: Path) -> None:
    """Append to a file what `written_wholly` looks for."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(SEAL + digest)


def written_wholly(data: bytes) -> bool:
    """Whether the contents of a file are what was there when it was sealed."""
    body, mark, digest = data[:-40], data[-40:-32], data[-32:]
    return mark == SEAL and hashlib.sha256(body).digest() == digest
