"""Wrong versions of the stages, made from their own source by small named edits, and what kills them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from flashcore_numba.checks.runner import check_stage, default_backend
from flashcore_numba.run import pool
from flashcore_numba.stages import Stage, edited, files
from flashcore_numba.stages.edited import Edit, EditError
from flashcore_numba.stages.files import Place

SEED = 20260101  # the random cases of a kill table are the same in every run
NOT_VISIBLE = "not visible on this back end"


@dataclass(frozen=True)
class Mutant:
    """A wrong stage. `mistake` says what a learner did, `expected` which kinds (runner.KINDS) may kill it.

    stage: its number, or its key off the spine. variant: of the stage; with `any_variant` it is the first to
    be tried, and one that notices is enough.
    """

    stage: Place
    name: str
    mistake: str
    edits: tuple[Edit, ...]
    expected: tuple[str, ...] = ("value",)
    variant: str | None = None
    any_variant: bool = False
    on_gpu: bool = True  # False: values need not show it, or it may fault and take the process with it

    @property
    def label(self) -> str:
        return f"{files.shown(self.stage)} {self.name}"


@dataclass(frozen=True)
class Kill:
    """What became of a mutant: `status` is killed, survived, or not visible on this back end."""

    stage: Place
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
    def label(self) -> str:
        return f"{files.shown(self.stage)} {self.name}"

    @property
    def as_expected(self) -> bool:
        """Killed, and by a kind of failure that the mistake explains."""
        return self.status == "killed" and self.kind in self.expected

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"as_expected": self.as_expected}


@contextmanager
def loaded(mutant: Mutant, keep: bool = False) -> Iterator[Stage]:
    """The mutant's `Stage`, while the context is open. Raises EditError, which names the mutant.

    keep: what it changes of CUDA C stays in the cache, and the next process finds it compiled.
    """
    changed = _texts(mutant)
    if keep and all(map(files.is_cuda, changed)):
        yield edited.load(mutant.stage, changed)
        return
    with edited.loaded(mutant.stage, changed) as stage:
        yield stage


def _texts(mutant: Mutant) -> dict[str, str]:
    try:
        return edited.texts(mutant.stage, mutant.edits)
    except EditError as error:
        raise EditError(f"{mutant.label}: {error}") from None


def kill(
    mutants: Sequence[Mutant],
    *,
    backend: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Kill]:
    """Put each mutant through the check of its stage until something fails.

    Raises EditError when the library no longer fits the source of the stages.
    """
    backend = default_backend() if backend is None else backend
    _check_edits(mutants)
    jobs = [(mutant, backend) for mutant in mutants]
    return pool.run(kill_one, jobs, 1 if backend == "gpu" else workers, progress, lambda job: job[0].label)


def _check_edits(mutants: Sequence[Mutant]) -> None:
    """Raise one EditError that names every edit that no longer fits."""
    misfits = []
    for mutant in mutants:
        try:
            _texts(mutant)
        except EditError as error:
            misfits.append(str(error))
    if misfits:
        raise EditError("\n".join(misfits))


def kill_one(mutant: Mutant, backend: str = "simulator", names: Sequence[str] | None = None) -> Kill:
    """The fate of one mutant; `names`: in only these cases and properties of the check."""
    fate = Kill(mutant.stage, mutant.name, mutant.mistake, backend, "survived", expected=mutant.expected)
    if backend == "gpu" and not mutant.on_gpu:
        return replace(fate, status=NOT_VISIBLE, message="run it on the simulator, which reports it")
    with loaded(mutant, keep=True) as stage:
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
