"""Replies to random mutations of right answers: draw, judge, read, count.

`python -m course.sample_mutations draw FILE --lessons 0 1 --count 250 --seed 7`, in `tests/`, judges that
many mutants of the solutions which FILE does not have. It adds a draw and an entry for each to FILE, and
writes what was said to a file beside it. Somebody reads that text, and writes into the entries under `false`
each sentence that is not true, and under `misleading` each that leads away from the change. `again FILE`
judges those with a false sentence once more; what is still false then is written under `still_false`.
`count FILE` counts them.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashcore_numba.checks.edits import random_edits
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import Answer
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import CheckResult, no_result
from flashcore_numba.course.lessons import EVERY, LESSONS
from flashcore_numba.course.spec import Lesson
from flashcore_numba.evolve.python_edits import random_edit
from flashcore_numba.records import environment, layout
from flashcore_numba.stages import edited
from flashcore_numba.stages.files import is_cuda

TRIES = 1000  # draws for a mutation that is not known yet


@dataclass(frozen=True)
class Mutation:
    """A right answer with one change: at `line` of the answer, `before` became `after`."""

    lesson: int
    kind: str
    line: int
    before: str
    after: str
    text: str

    @property
    def known_by(self) -> tuple[int, str, int, str, str]:
        """What an entry keeps of it."""
        return self.lesson, self.kind, self.line, self.before, self.after


@dataclass(frozen=True)
class Reply:
    """What was said of a mutation. place: whether the reply points at the changed line. false: sentences of
    it that are not true, as somebody who read it found; misleading: those that are true, or are advice, and
    lead away from the change; still_false: those that are not true in what the judge says now.
    """

    lesson: int
    kind: str
    line: int
    before: str
    after: str
    status: str
    cause: str
    place: str
    false: tuple[str, ...] = ()
    misleading: tuple[str, ...] = ()
    still_false: tuple[str, ...] = ()


def mutations(lesson: Lesson, rng: random.Random) -> Iterator[Mutation]:
    """Mutations of the lesson's solution, none twice."""
    seen = set()
    for _ in range(TRIES):
        found = _in_cuda(lesson, rng) if is_cuda(lesson.exercise.file) else _in_python(lesson, rng)
        if found is not None and found.text not in seen:
            seen.add(found.text)
            yield found


def _in_cuda(lesson: Lesson, rng: random.Random) -> Mutation | None:
    """An edit of `checks.edits` that lies inside the region."""
    found = exercise.region(lesson.exercise)
    lines = range(found.first_line, found.last_line + 1)
    edits = random_edits(edited.original(lesson.exercise.stage), np.random.default_rng(rng.getrandbits(32)))
    for edit in edits:
        if edit.file != lesson.exercise.file or edit.line not in lines:
            continue
        whole = edited.applied(exercise.source_text(edit.file), [edit.edit], edit.file).splitlines()
        head, tail = found.first_line - 1, len(exercise.source_text(edit.file).splitlines()) - found.last_line
        text = "\n".join(whole[head : len(whole) - tail])
        own = exercise.source_text(edit.file).splitlines()
        if whole[:head] == own[:head] and whole[len(whole) - tail :] == own[len(own) - tail :]:
            return Mutation(lesson.number, edit.kind, edit.line - head, edit.before, edit.after, text + "\n")
    return None


def _in_python(lesson: Lesson, rng: random.Random) -> Mutation | None:
    found = exercise.region(lesson.exercise)
    margin = " " * found.indent
    text = "\n".join(line.removeprefix(margin) for line in found.text.splitlines())
    edit = random_edit(text, rng)
    return edit and Mutation(lesson.number, edit.kind, edit.line, edit.before, edit.after, edit.text)


def judged(mutation: Mutation, seed: int) -> CheckResult:
    """The reply to a mutation, from a process of its own."""
    lesson = LESSONS[mutation.lesson]
    reply = process.run({"job": "check", "lesson": lesson.number, "answer": mutation.text, "seed": seed}, 300)
    return CheckResult.from_dict(reply["result"]) if reply["result"] else no_result(lesson.number, reply)


def place(mutation: Mutation, result: CheckResult) -> str:
    """Whether a reply points at the changed line, or one beside it."""
    if result.passed:
        return ""
    if result.line is None:
        return "no line"
    return "there" if abs(result.line - mutation.line) <= 1 else "elsewhere"


def unknown_names(answer: Answer, result: CheckResult) -> list[str]:
    """Names that a reply quotes and that neither the answer's file nor the task has."""
    known = {"__syncthreads", "__syncwarp"}  # CUDA's own, which a sentence on barriers names
    known |= set(re.findall(r"\w+", answer.text))
    lesson = EVERY[result.lesson]
    known |= set(re.findall(r"\w+", f"{lesson.exercise.task} {' '.join(lesson.exercise.given.values())}"))
    known |= {word for w in lesson.exercise.wanted for word in re.findall(r"\w+", w.meaning)}
    # A line that is quoted with its place introduces its names itself.
    place = r"(?:\w+\.(?:py|cuh?):\d+|line \d+)(?: \(called in line \d+\)| of your answer)?"
    message = re.sub(rf"{place},? `[^`]*`", "", result.message)
    quoted = [part for n, part in enumerate(message.split("`")) if n % 2]
    return [word for part in quoted for word in re.findall(r"(?<!\w)[A-Za-z_]\w*", part) if word not in known]


def sentences_of(result: CheckResult) -> list[str]:
    """The sentences of a failing reply, without its heading, the lines on gates and the tally."""
    lines = [line for line in str(result).splitlines()[1:] if not line.startswith("gate ")]
    lines = [line for line in lines if not re.match(r"\d+ of \d+ checks? passed", line)]
    return [part for line in lines for part in re.split(r"(?<=[.?!]) (?=[A-Z`])", line) if part.strip()]


def drawn(lessons: Sequence[int], count: int, seed: int, known: Container[tuple]) -> list[Mutation]:
    """`count` mutations that are not known yet, spread evenly over the lessons."""
    rng = random.Random(seed)
    sources = {
        number: (m for m in mutations(LESSONS[number], rng) if m.known_by not in known) for number in lessons
    }
    found = [next(sources[lessons[n % len(lessons)]], None) for n in range(count)]
    return [mutation for mutation in found if mutation is not None]


def _known_by(reply: Mapping[str, Any]) -> tuple:
    return tuple(reply[name] for name in ("lesson", "kind", "line", "before", "after"))


def draw(file: Path, lessons: list[int], count: int, seed: int) -> None:
    """Judge mutations that the file has not, add them to it, and write what was said."""
    record = json.loads(file.read_text()) if file.is_file() else {"draws": [], "mutations": []}
    known = {_known_by(reply) for reply in record["mutations"]}
    this = {
        "date": environment.today(),
        "commit": environment.commit()[0],
        "seed": seed,
        "lessons": lessons,
        "count": count,
        "sentences": 0,
    }
    record["draws"].append(this)
    said = []
    for n, mutation in enumerate(drawn(lessons, count, seed, known)):
        result = judged(mutation, seed)
        cause = result.cause if result.certain else ""
        reply = Reply(*mutation.known_by, result.status, cause, place(mutation, result))
        record["mutations"].append({"seed": seed} | asdict(reply))
        this["sentences"] += 0 if result.passed else len(sentences_of(result))
        said.append(_said(n, mutation, result))
        layout.save(record, file, "mutations")
        file.with_suffix(".txt").write_text("\n".join(said))


def again(file: Path) -> None:
    """Judge once more the mutations of which something false was said, and print what is said now."""
    record = json.loads(file.read_text())
    known: set[tuple] = set()
    for this in record["draws"]:
        texts = {m.known_by: m for m in drawn(this["lessons"], this["count"], this["seed"], known)}
        replies = [reply for reply in record["mutations"] if reply["seed"] == this["seed"]]
        for n, reply in enumerate(replies):
            if reply["false"]:
                mutation = texts.get(_known_by(reply))  # none where the solution is another one now
                said = _said(n, mutation, judged(mutation, this["seed"])) if mutation else f"#{n}: gone\n"
                print(said, flush=True)
        known |= {_known_by(reply) for reply in replies}


def _said(n: int, mutation: Mutation, result: CheckResult) -> str:
    change = f"{mutation.before!r} -> {mutation.after!r}"
    return f"#{n} {mutation.lesson:02d} {mutation.kind}, line {mutation.line}: {change}\n{result}\n"


def counted(file: Path) -> str:
    """How many replies there are of each kind, and how many false sentences."""
    replies = json.loads(file.read_text())["mutations"]
    failed = [reply for reply in replies if reply["status"] != "passed"]
    places = Counter(reply["place"] for reply in failed)
    false = sum(len(reply["false"]) for reply in replies)
    return (
        f"{len(replies)} mutations, {len(replies) - len(failed)} right in another way; of {len(failed)} "
        f"replies {places['there']} point at the changed line or one beside it, "
        f"{sum(bool(r['cause']) for r in failed)} state a cause as certain; {false} false sentences, "
        f"{sum(len(reply['misleading']) for reply in replies)} misleading"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["draw", "again", "count"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--lessons", type=int, nargs="+", default=list(range(7)))
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    args = parser.parse_args()
    if args.what == "draw":
        draw(args.file, args.lessons, args.count, args.seed)
    if args.what == "again":
        again(args.file)
    print(counted(args.file))


if __name__ == "__main__":
    main()
