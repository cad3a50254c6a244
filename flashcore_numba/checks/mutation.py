"""Wrong versions of the stages, made from their own source by small named edits, and what kills them."""

import importlib
import re
import sys
import tempfile
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cuda_reference
from cuda_reference import Source
from flashcore_numba.checks.runner import check_stage, default_backend
from flashcore_numba.run import pool
from flashcore_numba.run.protocol import Executor, Passing
from flashcore_numba.stages import Stage, files

SEED = 20260101  # the random cases of a kill table are the same in every run
NOT_VISIBLE = "not visible on this back end"


class MutationError(RuntimeError):
    """An edit does not fit the source any more: the library must follow the stages."""


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must occur exactly once, by `new`.

    file: a module of `stages/`, "common" for example, or a file of `cuda_reference/` or its `include/`,
    "stage12_mma_sync.cu" for example; None is the module that defines the stage.
    """

    old: str
    new: str
    file: str | None = None


def edit_at(text: str, start: int, end: int, new: str, file: str) -> Edit:
    """Replace text[start:end] by `new`, with as many lines before it as make the text unique."""
    first = text.rfind("\n", 0, start) + 1
    while text.count(text[first:end]) > 1:
        first = text.rfind("\n", 0, first - 1) + 1
    return Edit(text[first:end], text[first:start] + new, file)


@dataclass(frozen=True)
class Mutant:
    """A wrong stage. `mistake` says what a learner did, `expected` which kinds (runner.KINDS) may kill it.

    variant: of the stage; with `any_variant` it is the first to be tried, and one that notices is enough.
    """

    stage: int
    name: str
    mistake: str
    edits: tuple[Edit, ...]
    expected: tuple[str, ...] = ("value",)
    variant: str | None = None
    any_variant: bool = False
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

    Raises MutationError when an edit does not match exactly once or the edited file does not import.
    """
    texts, main = _edited(mutant)
    with imported(texts, main) as stage:
        yield stage


def sources(number: int) -> tuple[dict[str, str], str]:
    """The source files of a stage and what the stages share: module -> text, and the module with STAGE.

    Raises MutationError where that is not one module.
    """
    own = files.of_stage(number)
    texts = {path.stem: path.read_text() for path in [*own, files.path("common")]}
    main = [path.stem for path in own if re.search(r"^STAGE = ", texts[path.stem], re.MULTILINE)]
    if len(main) != 1:
        raise MutationError(f"STAGE is defined in {main or 'no file'} of stage {number}")
    return texts, main[0]


@contextmanager
def imported(texts: Mapping[str, str], main: str) -> Iterator[Stage]:
    """The `STAGE` of module `main`, from files with these texts that exist while the context is open.

    Modules in `texts` import each other; what else they import relatively comes from the package. A name with
    the ending of CUDA C, `.cu` or `.cuh`, is a file that takes the place of that of `cuda_reference`. Raises
    MutationError, from the exception itself, when `main` does not import.
    """
    package = f"flashcore_copy_{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="flashcore-copy-") as folder:
        for name, content in texts.items():
            if _is_cuda(name):
                (Path(folder) / name).write_text(content)
            else:
                (Path(folder) / f"{name}.py").write_text(beside(content, texts))
        module = ModuleType(package)
        module.__path__ = [folder]
        sys.modules[package] = module
        try:
            yield with_copies(_stage_of(package, main), Path(folder))
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]


def _stage_of(package: str, main: str) -> Stage:
    try:
        return importlib.import_module(f"{package}.{main}").STAGE
    except Exception as error:
        raise MutationError(f"{main}: the edited file does not import: {error}") from error


class _Copies(Passing):
    """An executor that launches CUDA C kernels from the copies of their files in `folder`, if any."""

    def __init__(self, executor: Executor, folder: Path) -> None:
        super().__init__(executor)
        self.folder = folder

    def launch(self, kernel: Any, grid: Any, block: Any, *args: Any, shared_bytes: int = 0) -> None:
        if isinstance(kernel, Source) and (copy := self.folder / kernel.path.name).exists():
            kernel = replace(kernel, path=copy)
        super().launch(kernel, grid, block, *args, shared_bytes=shared_bytes)


def with_copies(stage: Stage, folder: Path) -> Stage:
    """The stage, launching kernels from those of its CUDA C files that `folder` has a copy of."""
    if not any(_is_cuda(path.name) for path in folder.iterdir()):
        return stage

    def launch(problem: Any, *outputs: Any, executor: Executor, **options: Any) -> None:
        stage.launch(problem, *outputs, executor=_Copies(executor, folder), **options)

    return replace(stage, launch=launch)


def _is_cuda(name: str) -> bool:
    return name.endswith((".cu", ".cuh"))


def _edited(mutant: Mutant) -> tuple[dict[str, str], str]:
    texts, main = sources(mutant.stage)
    for edit in mutant.edits:
        file = edit.file or main
        if _is_cuda(file):  # a header is found beside the kernel that includes it
            for path in cuda_reference.FOLDER.glob(f"stage{mutant.stage:02d}_*.cu"):
                texts.setdefault(path.name, path.read_text())
        if file not in texts:
            texts[file] = _source(file, mutant)
        count = texts[file].count(edit.old)
        if count != 1:
            raise MutationError(
                f"{mutant.label}: this text occurs {count} times in {file}, not once:\n{edit.old}"
            )
        texts[file] = texts[file].replace(edit.old, edit.new)
    return texts, main


def _source(file: str, mutant: Mutant) -> str:
    """The text of a file that an edit names."""
    folders = (cuda_reference.FOLDER, cuda_reference.INCLUDE)
    paths = [folder / file for folder in folders] if _is_cuda(file) else [files.path(file)]
    for path in paths:
        if path.exists():
            return path.read_text()
    raise MutationError(f"{mutant.label}: there is no {paths[0].name} among the stages")


def beside(content: str, copied: Container[str]) -> str:
    """The text of a stage's file, importing those modules that were copied from beside it."""

    def sibling(match: re.Match) -> str:
        return f"from .{match[1]} import" if match[1] in copied else match[0]

    return re.sub(rf"^from {files.PACKAGE}(?:\.\w+)?\.(\w+) import", sibling, content, flags=re.MULTILINE)


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
        try:
            _edited(mutant)
        except MutationError as error:
            misfits.append(str(error))
    if misfits:
        raise MutationError("\n".join(misfits))


def kill_one(mutant: Mutant, backend: str = "simulator", names: Sequence[str] | None = None) -> Kill:
    """The fate of one mutant; `names`: in only these cases and properties of the check."""
    fate = Kill(mutant.stage, mutant.name, mutant.mistake, backend, "survived", expected=mutant.expected)
    if backend == "gpu" and not mutant.on_gpu:
        return replace(fate, status=NOT_VISIBLE, message="run it on the simulator, which reports it")
    with loaded(mutant) as stage:
        others = [name for name in stage.variants if name != mutant.variant] if mutant.any_variant else []
        for variant in (mutant.variant, *others):
            report = check_stage(
                stage,
                variant,
                backend=backend,
                seed=SEED,
                names=names,
                stop_at_first=True,
                launch_limit=stage.kernels.endless_after,
            )
            fate = replace(fate, seconds=fate.seconds + report.seconds)
            if not report.passed:
                first = report.failures[0]
                kind = "hang" if first.kind == "time" else first.kind
                return replace(fate, status="killed", kind=kind, case=first.name, message=first.message)
    return fate
