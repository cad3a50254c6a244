"""Wrong versions of the stages, made from their own source by small named edits, and what kills them."""

import importlib
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import stages as stages_package
from ..stages import Stage
from . import pool
from .runner import check_stage, default_backend

__all__ = ["Edit", "Kill", "Mutant", "MutationError", "kill", "kill_one", "loaded"]

SEED = 20260101  # the random cases of a kill table are the same in every run
NOT_VISIBLE = "not visible on this back end"


class MutationError(RuntimeError):
    """An edit does not fit the source any more: the library must follow the stages."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must occur exactly once, by `new`.

    file: a module of `stages/`, "common" for example; None is the file that defines the stage.
    """

    old: str
    new: str
    file: str | None = None


@dataclass(frozen=True)
class Mutant:
    """A wrong stage. `mistake` says what a learner did, `expected` which kinds (runner.KINDS) may kill it."""

    stage: int
    name: str
    mistake: str
    edits: tuple[Edit, ...]
    expected: tuple[str, ...] = ("value",)
    variant: str | None = None
    on_gpu: bool = True  # False: values need not show it, or it may fault and take the process with it

    @property
    def label(self) -> str:
        return f"{self.stage:02d} {self.name}"


@dataclass(frozen=True)
class Kill:
    """What became of a mutant: `status` is killed, survived, or not visible on this back end."""

    stage: int
    name: str
    mistake: str
    backend: str
    status: str
    kind: str = ""
    case: str = ""
    message: str = ""
    expected: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def as_expected(self) -> bool:
        """Killed, and by a kind of failure that the mistake explains."""
        return self.status == "killed" and self.kind in self.expected

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"as_expected": self.as_expected}


@contextmanager
def loaded(mutant: Mutant) -> Iterator[Stage]:
    """The mutant's `Stage`, from edited copies of its source files that exist while the context is open.

    Raises MutationError when an edit does not match exactly once.
    """
    package = f"flashcore_mutant_{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="flashcore-mutant-") as folder:
        main = _write_sources(mutant, Path(folder))
        module = ModuleType(package)
        module.__path__ = [folder]
        sys.modules[package] = module
        try:
            yield _imported(f"{package}.{main}", mutant)
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]


def _imported(module: str, mutant: Mutant) -> Stage:
    try:
        return importlib.import_module(module).STAGE
    except Exception as error:
        raise MutationError(f"{mutant.label}: the edited file does not import: {error}") from error


def _write_sources(mutant: Mutant, folder: Path) -> str:
    """Copy the stage's files and what they share into `folder`, edited; returns the module with STAGE."""
    source_folder = Path(stages_package.__file__).parent
    own = sorted(source_folder.glob(f"stage{mutant.stage:02d}_*.py"))
    shared = {source_folder / f"{edit.file}.py" for edit in mutant.edits if edit.file}
    if missing := [path.name for path in shared if not path.exists()]:
        raise MutationError(f"{mutant.label}: there is no {missing[0]} among the stages")
    texts = {path.stem: path.read_text() for path in {*own, *shared, source_folder / "common.py"}}
    main = [path.stem for path in own if re.search(r"^STAGE = ", texts[path.stem], re.MULTILINE)]
    if len(main) != 1:
        raise MutationError(
            f"{mutant.label}: STAGE is defined in {main or 'no file'} of stage {mutant.stage}"
        )
    for edit in mutant.edits:
        file = edit.file or main[0]
        count = texts[file].count(edit.old)
        if count != 1:
            raise MutationError(
                f"{mutant.label}: this text occurs {count} times in {file}.py, not once:\n{edit.old}"
            )
        texts[file] = texts[file].replace(edit.old, edit.new)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(_absolute_imports(text, texts))
    return main[0]


def _absolute_imports(text: str, copied: dict[str, str]) -> str:
    """Imports of the package become absolute, except those of files that were copied beside this one."""
    text = re.sub(r"^from \.\.(\w+)", r"from flashcore_numba.\1", text, flags=re.MULTILINE)

    def sibling(match: re.Match) -> str:
        name = match[1]
        return match[0] if name in copied else f"from flashcore_numba.stages.{name}"

    return re.sub(r"^from \.(\w+)", sibling, text, flags=re.MULTILINE)


def kill(
    mutants: Sequence[Mutant],
    *,
    backend: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Kill]:
    """Put each mutant through the check of its stage until something fails.

    Raises MutationError when the library no longer fits the source of the stages.
    """
    backend = default_backend() if backend is None else backend
    _check_edits(mutants)
    jobs = [(mutant, backend) for mutant in mutants]
    return pool.run(kill_one, jobs, 1 if backend == "gpu" else workers, progress, lambda job: job[0].label)


def _check_edits(mutants: Sequence[Mutant]) -> None:
    """Raise one MutationError that names every edit that no longer fits."""
    misfits = []
    for mutant in mutants:
        with tempfile.TemporaryDirectory(prefix="flashcore-mutant-") as folder:
            try:
                _write_sources(mutant, Path(folder))
            except MutationError as error:
                misfits.append(str(error))
    if misfits:
        raise MutationError("\n".join(misfits))


def kill_one(mutant: Mutant, backend: str = "simulator") -> Kill:
    """The fate of one mutant."""
    fate = Kill(mutant.stage, mutant.name, mutant.mistake, backend, "survived", expected=mutant.expected)
    if backend == "gpu" and not mutant.on_gpu:
        return replace(fate, status=NOT_VISIBLE, message="run it on the simulator, which reports it")
    with loaded(mutant) as stage:
        report = check_stage(stage, mutant.variant, backend=backend, seed=SEED, stop_at_first=True)
    fate = replace(fate, seconds=report.seconds)
    if report.passed:
        return fate
    first = report.failures[0]
    return replace(fate, status="killed", kind=first.kind, case=first.name, message=first.message)
