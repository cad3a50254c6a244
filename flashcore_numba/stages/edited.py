"""Stages made of edited files: mutants, answers, experiments and probes are all loaded here.

An edit is a piece of text and what takes its place; a region is the lines between two marks. A changed file
is copied into a folder of its own together with what must be beside it, and the stage is imported from
there, or launches its kernels from there.
"""

import contextlib
import importlib
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from cuda_reference import Source
from cuda_reference.files import MachineError, cache_folder
from flashcore_numba.core.executor import Executor
from flashcore_numba.core.wrapping import Passing
from flashcore_numba.stages import files
from flashcore_numba.stages.files import Place
from flashcore_numba.stages.stage import Stage

MARKS = {"Python": ("# <exercise>", "# </exercise>"), "CUDA C": ("// <exercise>", "// </exercise>")}
"""The lines around a region, by language."""
KEPT, IN_USE = 60, 24 * 3600.0  # folders; seconds for which one that was asked for stays in any case


class EditError(RuntimeError):
    """An edit does not fit its text, or the edited file does not import."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must occur just so many `times`, by `new`.

    file: a module of `stages/` or of a branch, "common" for example, or a file of `cuda_reference/`, of
    its `branches/` or `include/`, "stage12_mma_sync.cu" for example; None is the module that defines the
    stage.
    """

    old: str
    new: str
    file: str | None = None
    times: int = 1


def edit_at(text: str, start: int, end: int, new: str, file: str) -> Edit:
    """Replace text[start:end] by `new`, with as many lines before it as make the text unique."""
    first = text.rfind("\n", 0, start) + 1
    while text.count(text[first:end]) > 1:
        first = text.rfind("\n", 0, first - 1) + 1
    return Edit(text[first:end], text[first:start] + new, file)


def applied(text: str, edits: Iterable[Edit], where: str) -> str:
    """A text after some edits, one after the other. Raises EditError, which names the text by `where`."""
    for edit in edits:
        count = text.count(edit.old)
        if count != edit.times:
            wanted = "once" if edit.times == 1 else f"{edit.times} times"
            raise EditError(f"this text occurs {count} times in {where}, not {wanted}:\n{edit.old}")
        text = text.replace(edit.old, edit.new)
    return text


def texts(place: Place, edits: Iterable[Edit]) -> dict[str, str]:
    """The files of stage `place` that the edits change: name as in `Edit.file` -> its new text.

    Raises EditError where an edit does not fit or names no file.
    """
    changed: dict[str, str] = {}
    for edit in edits:
        file = edit.file or _main(place)
        if file not in changed and not files.path(file).exists():
            raise EditError(f"there is no {files.path(file).name} among the stages")
        changed[file] = applied(changed.get(file) or files.path(file).read_text(), [edit], file)
    return changed


# Regions


@dataclass(frozen=True)
class Region:
    """Some lines of a file: `text` as it is there, from line `first_line` on, indented by `indent`."""

    text: str
    first_line: int
    indent: int

    @property
    def last_line(self) -> int:
        return self.first_line + self.text.count("\n") - 1


def marked_region(text: str, language: str) -> Region | None:
    """The lines between the two marks of a language; None where there is not exactly one such region."""
    begin_mark, end_mark = MARKS[language]
    lines = text.splitlines(keepends=True)
    begins = [n for n, line in enumerate(lines) if line.strip() == begin_mark]
    ends = [n for n, line in enumerate(lines) if line.strip() == end_mark]
    if len(begins) != 1 or len(ends) != 1 or ends[0] <= begins[0]:
        return None
    begin, end = begins[0], ends[0]
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    return Region("".join(lines[begin + 1 : end]), begin + 2, indent)


def named_region(text: str, first: str, last: str, where: str) -> Region:
    """The region from the only line that reads `first` to the next that reads `last`, spaces aside.

    Directives of the preprocessor do not count for its indentation. Raises EditError, which names the text by
    `where`, when there is none.
    """
    lines = text.splitlines(keepends=True)
    starts = [n for n, line in enumerate(lines) if line.strip() == first.strip()]
    if len(starts) != 1:
        raise EditError(f"first: {first!r} is {len(starts)} lines of {where}, not one")
    start = starts[0]
    stops = [n for n in range(start, len(lines)) if lines[n].strip() == last.strip()]
    if not stops:
        raise EditError(f"last: {last!r} is no line of {where} from {first!r} on")
    inside = lines[start : stops[0] + 1]
    indent = min(len(line) - len(line.lstrip()) for line in inside if line.strip() and line[0] != "#")
    return Region("".join(inside), start + 1, indent)


def with_region(text: str, found: Region, lines: str) -> str:
    """A text with other lines in a region of it."""
    every = text.splitlines(keepends=True)
    every[found.first_line - 1 : found.last_line] = lines.splitlines(keepends=True)
    return "".join(every)


# Loading


def original(place: Place) -> Stage:
    """The stage as it is; 0 is the three loops before the ladder."""
    return importlib.import_module(files.module(_main(place))).STAGE


@contextmanager
def loaded(place: Place, changed: Mapping[str, str]) -> Iterator[Stage]:
    """The stage `place` with these texts in place of its files', while the context is open.

    Modules that are copied import each other; everything else comes from the package. Raises EditError, from
    the exception itself, where the stage does not import.
    """
    with tempfile.TemporaryDirectory(prefix="flashcore-copy-") as folder:
        _write(Path(folder), _copies(place, changed))
        package = f"flashcore_copy_{uuid.uuid4().hex}"
        try:
            yield _stage(place, changed, Path(folder), package)
        finally:
            _forget(package)


def edited(place: Place, *edits: Edit) -> contextlib.AbstractContextManager[Stage]:
    """The stage `place` after some edits, while the context is open. Raises EditError."""
    return loaded(place, texts(place, edits))


@contextmanager
def module(main: str, texts_of: Mapping[str, str]) -> Iterator[ModuleType]:
    """Module `main` of these texts, by the names of their modules, while the context is open.

    They import each other; everything else comes from the package. Raises EditError where it does not import.
    """
    with tempfile.TemporaryDirectory(prefix="flashcore-copy-") as folder:
        _write(Path(folder), {f"{name}.py": _importing(text, texts_of) for name, text in texts_of.items()})
        package = f"flashcore_copy_{uuid.uuid4().hex}"
        try:
            yield _imported(package, main, Path(folder))
        finally:
            _forget(package)


def load(place: Place, changed: Mapping[str, str]) -> Stage:
    """The stage `place` with these texts in place of its files', for as long as the process lives.

    The copies are named by their contents and stay in the cache, so that a kernel in them is compiled once.
    Raises EditError as `loaded`, and MachineError where the copies cannot be written.
    """
    folder = _kept(place, changed)
    return _stage(place, changed, folder, f"flashcore_copy_{folder.name}")


def with_copies(stage: Stage, folder: Path) -> Stage:
    """The stage, launching kernels from those of its CUDA C files that `folder` has a copy of."""
    return stage.through(lambda executor: _Copies(executor, folder))


class _Copies(Passing):
    """An executor that launches CUDA C kernels from the copies of their files in `folder`, if any."""

    def __init__(self, executor: Executor, folder: Path) -> None:
        super().__init__(executor)
        self.folder = folder

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        if isinstance(kernel, Source) and (copy := self.folder / kernel.path.name).exists():
            kernel = replace(kernel, path=copy)
        super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)


def _main(place: Place) -> str:
    """The module that defines STAGE. Raises EditError where that is not one."""
    own = files.of_stage(place)
    main = [path.stem for path in own if re.search(r"^STAGE = ", path.read_text(), re.MULTILINE)]
    if len(main) != 1:
        raise EditError(f"STAGE is defined in {main or 'no file'} of stage {place}")
    return main[0]


def _stage(place: Place, changed: Mapping[str, str], folder: Path, package: str) -> Stage:
    stage = _imported(package, _main(place), folder).STAGE if _in_python(changed) else original(place)
    return with_copies(stage, folder) if _in_cuda(changed) else stage


def _imported(package: str, main: str, folder: Path) -> ModuleType:
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    try:
        return importlib.import_module(f"{package}.{main}")
    except Exception as error:
        _forget(package)
        raise EditError(f"{main}: the edited file does not import: {error}") from error


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _in_python(names: Iterable[str]) -> list[str]:
    return [name for name in names if not files.is_cuda(name)]


def _in_cuda(names: Iterable[str]) -> list[str]:
    return [name for name in names if files.is_cuda(name)]


def _copies(place: Place, changed: Mapping[str, str]) -> dict[str, str]:
    """File name -> text of what is copied: the changed files, and beside a module those that import it,
    beside a header the kernels and headers that include it: a compiler looks first where the includer is.
    """
    beside: list[Path] = []
    if _in_python(changed):
        beside += [*files.of_stage(place), files.path("common")]
    if _in_cuda(changed):
        beside += files.kernels_of(place) + files.headers_including(_in_cuda(changed))
    own = {path.name if files.is_cuda(path.name) else path.stem: path.read_text() for path in beside}
    names = own | dict(changed)
    kernels = {name: names[name] for name in _in_cuda(names)}
    modules = {f"{name}.py": _importing(names[name], names) for name in _in_python(names)}
    return kernels | modules


def _write(folder: Path, copies: Mapping[str, str]) -> None:
    for name, text in copies.items():
        (folder / name).write_text(text)


def _importing(text: str, copied: Container[str]) -> str:
    """The text of a module that imports those which were copied from beside it."""

    def sibling(match: re.Match[str]) -> str:
        if match["module"] in copied:
            return f"from .{match['module']} import {match['name']}"
        return f"from . import {match['name']}" if match["name"] in copied else match[0]

    line = r"^from flashcore_numba\.(?:stages|branches)(?:\.\w+)*?(?:\.(?P<module>\w+))? import (?P<name>\S+)"
    return re.sub(line, sibling, text, flags=re.MULTILINE)


def _kept(place: Place, changed: Mapping[str, str]) -> Path:
    """The folder in the cache that holds these copies."""
    copies, root = _copies(place, changed), cache_folder("copies")
    parts = [part for item in sorted(copies.items()) for part in item]
    folder = root / sha256("\0".join(parts).encode()).hexdigest()[:20]
    if folder.exists():
        with contextlib.suppress(FileNotFoundError):
            os.utime(folder)
            return folder
    try:
        made = Path(tempfile.mkdtemp(dir=root))
        _write(made, copies)
    except OSError as error:
        raise MachineError(f"{root}: copies of files cannot be written there ({error.strerror})") from None
    try:
        made.rename(folder)
    except OSError:  # another process has made it meanwhile
        shutil.rmtree(made, ignore_errors=True)
    _forget_the_oldest(root)
    return folder


def _forget_the_oldest(root: Path) -> None:
    used = []
    for path in root.iterdir():
        with contextlib.suppress(FileNotFoundError):
            used.append((path.stat().st_mtime, path))
    for when, path in sorted(used)[:-KEPT]:
        if time.time() - when < IN_USE:  # by another process, perhaps
            break
        shutil.rmtree(path, ignore_errors=True)
