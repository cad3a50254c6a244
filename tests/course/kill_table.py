"""The kill table: what kills each wrong answer, kept beside them and published in the lessons' index.

`make kills` (`python -m course.kill_table` in `tests/`) judges them all anew and writes the table; with the
numbers of lessons, only those.
"""

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from flashcore_numba.course import exercise
from flashcore_numba.course.judge import grade
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.lessons import LESSONS
from flashcore_numba.records import layout

from .misconceptions import MISCONCEPTIONS
from .wrong_answers import Wrong, text_of

__all__ = ["FILE", "cause", "full_table", "kept", "misconceptions", "summary", "wrongs"]

HERE = Path(__file__).parent
FILE = HERE / "wrong_answers" / "kills.json"
LESSONS_FOLDER = HERE.parents[1] / "lessons"
INDEX, TABLE = LESSONS_FOLDER / "README.md", LESSONS_FOLDER / "wrong_answers.md"
INSTRUCTOR = LESSONS_FOLDER / "instructor.md"
SEED = 20260101
# What kills, in the words of the table, from the verdict's status and kind; the heading of its column.
CAUSES = {
    "refused": "not run: no code, or a name that nothing defines",
    "compiler": "does not compile or raises",
    "order": "a race, a barrier, a wait or a lane that is missing",
    "memory": "memory out of bounds, unwritten or misaligned",
    "value": "wrong numbers",
    "gate": "right, and a counter is too high",
    "hang": "does not end",
}
KINDS = {
    **dict.fromkeys(("race", "barrier", "copy", "warp", "simulator"), "order"),
    **dict.fromkeys(("memory", "guard", "unwritten"), "memory"),
    **dict.fromkeys(("value", "property"), "value"),
    "error": "compiler",
}
MARKS = ("<!-- kills:begin -->", "<!-- kills:end -->")
MISTAKES = ("<!-- mistakes:begin -->", "<!-- mistakes:end -->")


def wrongs(number: int) -> tuple[Wrong, ...]:
    """The wrong answers to a lesson."""
    return importlib.import_module(f"{__package__}.wrong_answers.lesson{number:02d}").WRONG


def cause(result: CheckResult) -> str:
    """A key of CAUSES: what killed an answer."""
    if result.status != "failed":
        return "refused"
    return KINDS.get(result.kind, result.kind)


def kept() -> dict[str, dict[str, str]]:
    """{"08 swapped": {"cause", "mistake"}} as it was written last."""
    return json.loads(FILE.read_text())


def judged(number: int) -> dict[str, dict[str, str]]:
    lesson, found = LESSONS[number], {}
    for wrong in wrongs(number):
        result = grade.check(
            lesson, exercise.answer_in_cell(lesson, text_of(wrong, lesson.exercise)), seed=SEED
        )
        assert not result.passed, f"{number:02d} {wrong.name} survives"
        found[f"{number:02d} {wrong.name}"] = {"cause": cause(result), "mistake": wrong.mistake}
    return found


def summary(kills: dict[str, dict[str, str]]) -> str:
    """A row a lesson: how many wrong answers, and how many each cause kills."""
    rows = []
    for number, lesson in LESSONS.items():
        causes = Counter(kill["cause"] for name, kill in kills.items() if name.startswith(f"{number:02d} "))
        numbers = " | ".join(str(causes[key] or "") for key in CAUSES)
        rows.append(f"| {number:02d} {lesson.title} | {causes.total()} | {numbers} |")
    total = Counter(kill["cause"] for kill in kills.values())
    heads = " | ".join(CAUSES.values())
    numbers = " | ".join(str(total[key] or "") for key in CAUSES)
    lines = [
        f"| lesson | wrong answers | {heads} |",
        "|---|--:|" + "--:|" * len(CAUSES),
        *rows,
        f"| all | {total.total()} | {numbers} |",
    ]
    return "\n".join(lines)


def full_table(kills: dict[str, dict[str, str]]) -> str:
    """The page that lists every wrong answer."""
    parts = [
        "# Wrong answers, and what kills them",
        "For every exercise: answers of the kind that people really write, each with its mistake and with "
        "what the check finds first. Every change of the course judges them all again. A program writes "
        "this page; solutions show through, so do the exercise first. [The page for instructors]"
        "(instructor.md) says which of them to hand out.",
    ]
    for number, lesson in LESSONS.items():
        rows = [
            f"| {name[3:].replace('_', ' ')} | {_escaped(kill['mistake'])} | {CAUSES[kill['cause']]} |"
            for name, kill in kills.items()
            if name.startswith(f"{number:02d} ")
        ]
        head = [
            f"## {number:02d} {lesson.title}",
            "",
            "| answer | the mistake | what kills it |",
            "|---|---|---|",
        ]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def publish(kills: dict[str, dict[str, str]]) -> None:
    """Write the three tables."""
    _between(INDEX, MARKS, summary(kills))
    _between(INSTRUCTOR, MISTAKES, misconceptions(kills))
    TABLE.write_text(full_table(kills))


def _between(path: Path, marks: tuple[str, str], text: str) -> None:
    pattern = re.compile(f"(?<={re.escape(marks[0])}\n).*?(?={re.escape(marks[1])})", re.DOTALL)
    path.write_text(pattern.sub(lambda _: text + "\n", path.read_text()))


def misconceptions(kills: dict[str, dict[str, str]]) -> str:
    """A row a misconception: what is believed, and the wrong answer that embodies it."""
    rows = [
        "| lesson | what people believe | what is so | hand out | what the check finds |",
        "|---|---|---|---|---|",
    ]
    for number, some in MISCONCEPTIONS.items():
        head = f"{number:02d} {LESSONS[number].title}"
        for name, belief, truth in some:
            found = CAUSES[kills[f"{number:02d} {name}"]["cause"]]
            rows.append(f"| {head} | {belief} | {truth} | `{number} {name}` | {found} |")
            head = ""
    return "\n".join(rows)


def main(numbers: Collection[int]) -> None:
    chosen = [number for number in LESSONS if number in numbers or not numbers]
    old: dict[str, dict[str, str]] = kept() if FILE.exists() else {}
    new: dict[str, dict[str, str]] = {}
    for number in LESSONS:
        if number in chosen:
            new |= judged(number)
            print(f"lesson {number:02d}: {len(wrongs(number))} killed", flush=True)
        else:
            new |= _of_lesson(old, number)
    layout.save(new, FILE)
    publish(new)


def _of_lesson(kills: dict[str, dict[str, str]], number: int) -> dict[str, dict[str, str]]:
    return {name: kill for name, kill in kills.items() if name.startswith(f"{number:02d} ")}


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]])
