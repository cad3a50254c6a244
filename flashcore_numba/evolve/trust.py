"""What the evaluator's verdicts are worth: cheats and mutants must die, harmless edits must live.

    python -m flashcore_numba.evolve.trust cheats      # the gallery of `cheats`
    python -m flashcore_numba.evolve.trust mutants     # known mistakes that are edits of a region
    python -m flashcore_numba.evolve.trust harmless    # edits that change nothing, drawn for each lesson

Each writes its record into `flashcore_numba/records/data/trust/`.
"""

import argparse
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from flashcore_numba.branches.find import BRANCHES
from flashcore_numba.checks.deletions import deletions
from flashcore_numba.checks.library import MUTANTS
from flashcore_numba.course import exercise
from flashcore_numba.course.lessons import OF_KERNELS, find
from flashcore_numba.course.spec import Key, Lesson
from flashcore_numba.evolve import source
from flashcore_numba.evolve.cheats import cheats
from flashcore_numba.evolve.edits import proposals
from flashcore_numba.evolve.evaluate import of_text
from flashcore_numba.evolve.floor import Timed
from flashcore_numba.records import artifact, environment, layout
from flashcore_numba.stages import edited

PER_LESSON = 2  # harmless edits of a lesson in a record
LIVES = {(12, "weights_in_half"): "only bfloat16 shows it, and a lesson is judged in float16"}
"""Known mistakes that the evaluator lets live, by lesson and name, and why."""


@dataclass(frozen=True)
class Candidate:
    """A file whose verdict is known before. layer: what must refuse it, "" for any layer and None for none.

    says: what it is, in a few words.
    """

    lesson: Key
    name: str
    says: str
    file: str
    text: str
    layer: str | None
    timed: Timed | None = None


@dataclass(frozen=True)
class Fate:
    """What became of a candidate: `layer` refused it, None when it lived; `wanted` as `Candidate.layer`."""

    lesson: Key
    name: str
    says: str
    wanted: str | None
    layer: str | None
    message: str
    seconds: float

    @property
    def as_wanted(self) -> bool:
        return self.layer == self.wanted or (self.wanted == "" and self.layer is not None)


def fate(candidate: Candidate, seed: int | None = None) -> Fate:
    """Judge a candidate."""
    found = of_text(
        find(str(candidate.lesson)),
        candidate.file,
        candidate.text,
        seed=seed,
        device=candidate.timed or False,
    )
    seconds = sum(layer.seconds for layer in found.layers)
    said = "" if found.valid else found.message.splitlines()[0]
    return Fate(
        candidate.lesson,
        candidate.name,
        candidate.says,
        candidate.layer,
        found.layer,
        said,
        round(seconds, 2),
    )


def of_cheats() -> Iterator[Candidate]:
    """The gallery."""
    for cheat in cheats():
        yield Candidate(cheat.lesson, cheat.name, cheat.hack, *cheat.file, cheat.layer, cheat.timed)


def of_mutants() -> Iterator[Candidate]:
    """Wrong versions of the stages, and statements that order memory left out, where only a region differs.

    Those that need another variant of the stage than the lesson's are left out.
    """
    written = [*MUTANTS, *(mutant for branch in BRANCHES.values() for mutant in branch.mutants())]
    for lesson in OF_KERNELS.values():
        task = lesson.exercise
        own, region = exercise.source_text(task.file), exercise.region(task)
        stage = edited.original(task.stage)
        variants = (None, task.variant or stage.default_variant)
        head, tail = own.splitlines()[: region.first_line - 1], own.splitlines()[region.last_line :]
        for mutant in [*(m for m in written if m.stage == task.stage), *deletions(stage)]:
            texts = edited.texts(mutant.stage, mutant.edits)
            if set(texts) != {task.file} or mutant.variant not in variants:
                continue
            lines = texts[task.file].splitlines()
            if lines[: len(head)] == head and lines[len(lines) - len(tail) :] == tail:
                name, _ = source.whole(lesson, region.text)
                yield Candidate(lesson.key, mutant.name, mutant.mistake, name, texts[task.file], "")


def of_harmless(seed: int, per_lesson: int = PER_LESSON) -> Iterator[Candidate]:
    """Edits that must leave a region as right as it was: one of each lesson, then a second, and so on."""
    of_lessons = [list(_harmless(lesson, seed, per_lesson)) for lesson in OF_KERNELS.values()]
    for turn in zip_longest(*of_lessons):
        yield from (candidate for candidate in turn if candidate is not None)


def _harmless(lesson: Lesson, seed: int, wanted: int) -> Iterator[Candidate]:
    """A few of one lesson, each by another operator."""
    taken: set[str] = set()
    rng = np.random.default_rng([seed, lesson.number, bool(lesson.name)])
    for proposal in proposals(exercise.region(lesson.exercise).text, rng):
        if len(taken) == wanted:
            break
        if proposal.harmless and proposal.operator not in taken:
            taken.add(proposal.operator)
            name, text = source.whole(lesson, proposal.text)
            yield Candidate(lesson.key, proposal.operator, proposal.sentence, name, text, None)


def record_of(what: str, folder: Path | None = None) -> Path:
    """Judge all candidates of a kind and write their record, which grows with each. Returns its path."""
    seed = secrets.randbits(31)
    candidates = {"cheats": of_cheats, "mutants": of_mutants, "harmless": lambda: of_harmless(seed)}[what]()
    path = (folder or artifact.recorded_dir()) / f"trust/evolve-{what}.json"
    path.parent.mkdir(exist_ok=True)
    fates: list[dict] = []
    commit = environment.commit()[0]
    for candidate in candidates:
        found = fate(candidate)
        print("as wanted" if found.as_wanted else "NOT AS WANTED", found, flush=True)
        fates.append(asdict(found))
        record = {"date": environment.today(), "commit": commit, "seed": seed, "fates": fates}
        layout.save(record, path, "fates")
    return path


def main() -> None:
    """The command: see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cheats", "mutants", "harmless"])
    print(record_of(parser.parse_args().what))


if __name__ == "__main__":
    main()
