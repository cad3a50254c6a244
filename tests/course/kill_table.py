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
from flashcore_numba.course.judge import grade as judge
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.lessons import EVERY, find
from flashcore_numba.course.spec import Key, called
from flashcore_numba.records import layout

from .misconceptions import MISCONCEPTIONS
from .wrong_answers import Wrong, text_of

__all__ = [
    "FILE",
    "GRADES",
    "full_table",
    "grade",
    "kept",
    "killer",
    "misconceptions",
    "module_name",
    "summary",
    "wrongs",
]

HERE = Path(__file__).parent
FILE = HERE / "wrong_answers" / "kills.json"
LESSONS_FOLDER = HERE.parents[1] / "lessons"
INDEX, TABLE = LESSONS_FOLDER / "README.md", LESSONS_FOLDER / "wrong_answers.md"
INSTRUCTOR = LESSONS_FOLDER / "instructor.md"
SEED = 20260101
# What kills, in the words of the table, from the verdict's status and kind; the heading of its column.
KILLERS = {
    "refused": "not run: no code, or a name that nothing defines",
    "compiler": "does not compile or raises",
    "order": "a race, a barrier, a wait or a lane that is missing",
    "memory": "memory out of bounds, unwritten or misaligned",
    "value": "wrong numbers",
    "gate": "right, and a counter is too high",
    "hang": "does not end",
    "search": "a cheat that lives, a right kernel that dies, no search",
}
KINDS = {
    **dict.fromkeys(("race", "barrier", "copy", "warp", "simulator"), "order"),
    **dict.fromkeys(("memory", "guard", "unwritten", "counter"), "memory"),
    **dict.fromkeys(("value", "property"), "value"),
    "error": "compiler",
}
GRADES = {
    "named": "the reply states the mistake as certain, and points at its line",
    "placed": "it points at the line, and says what is wrong there",
    "noticed": "it says which value is wrong",
}
MARKS = ("<!-- kills:begin -->", "<!-- kills:end -->")
MISTAKES = ("<!-- mistakes:begin -->", "<!-- mistakes:end -->")


def module_name(key: Key) -> str:
    """What the modules of a lesson, or of a warm-up, are called: "lesson08", "warm_up"."""
    return f"lesson{key:02d}" if isinstance(key, int) else key.replace("-", "_")


def wrongs(key: Key) -> tuple[Wrong, ...]:
    """The wrong answers to a lesson, or to a warm-up."""
    return importlib.import_module(f"{__package__}.wrong_answers.{module_name(key)}").WRONG


def named(key: Key, name: str = "") -> str:
    """What the table calls a wrong answer: "08 swapped"."""
    return f"{key:02d} {name}" if isinstance(key, int) else f"{key} {name}"


def killer(result: CheckResult) -> str:
    """A key of KILLERS: what killed an answer."""
    if result.status != "failed":
        return "refused"
    return KINDS.get(result.kind, result.kind)


def grade(wrong: Wrong, result: CheckResult) -> str:
    """A key of GRADES: what the reply tells the author of a wrong answer."""
    if result.line_text != wrong.line:
        return "noticed"
    if wrong.cause and result.cause == wrong.cause and result.certain:
        return "named"
    return "placed" if wrong.line else "noticed"


def kept() -> dict[str, dict[str, str]]:
    """{"08 swapped": {"killer", "grade", "mistake"}} as it was written last."""
    return json.loads(FILE.read_text())


def judged(key: Key) -> dict[str, dict[str, str]]:
    lesson, found = EVERY[key], {}
    for wrong in wrongs(key):
        answer = exercise.answer_in_cell(lesson, text_of(wrong, lesson.exercise))
        result = judge.check(lesson, answer, seed=SEED)
        assert not result.passed, f"{named(key, wrong.name)} survives"
        found[named(key, wrong.name)] = {
            "killer": killer(result),
            "grade": grade(wrong, result),
            "mistake": wrong.mistake,
        }
    return found


def summary(kills: dict[str, dict[str, str]], what: str, heads: dict[str, str]) -> str:
    """A row per lesson: how many wrong answers, and how many have each value of `what`, a key of `heads`."""
    rows = []
    for key, lesson in EVERY.items():
        counts = Counter(kill[what] for kill in _of_lesson(kills, key).values())
        numbers = " | ".join(str(counts[key] or "") for key in heads)
        rows.append(f"| {lesson.label} | {counts.total()} | {numbers} |")
    total = Counter(kill[what] for kill in kills.values())
    numbers = " | ".join(str(total[key] or "") for key in heads)
    lines = [
        f"| lesson | wrong answers | {' | '.join(heads.values())} |",
        "|---|--:|" + "--:|" * len(heads),
        *rows,
        f"| all | {total.total()} | {numbers} |",
    ]
    return "\n".join(lines)


def graded(kills: dict[str, dict[str, str]]) -> str:
    """The table of the lessons' index: how well the mistakes are explained."""
    meaning = " ".join(f"*{name.capitalize()}*: {text}." for name, text in GRADES.items())
    return f"{summary(kills, 'grade', {name: name for name in GRADES})}\n\n{meaning}"


def full_table(kills: dict[str, dict[str, str]]) -> str:
    """The page that lists every wrong answer."""
    parts = [
        "# Wrong answers, and what kills them",
        "For every exercise: answers of the kind that people really write, each with its mistake and with "
        "what the check finds first. Every change of the course judges them all again. A program writes "
        "this page; solutions show through, so do the exercise first. [The page for instructors]"
        "(instructor.md) says which of them to hand out.",
        "The grade says how much the reply tells. "
        + " ".join(f"*{name.capitalize()}*: {text}." for name, text in GRADES.items()),
        summary(kills, "killer", KILLERS),
    ]
    for key, lesson in EVERY.items():
        rows = [
            f"| {name.partition(' ')[2].replace('_', ' ')} | {_escaped(kill['mistake'])} "
            f"| {KILLERS[kill['killer']]} | {kill['grade']} |"
            for name, kill in _of_lesson(kills, key).items()
        ]
        head = [
            f"## {lesson.label}",
            "",
            "| answer | the mistake | what kills it | grade |",
            "|---|---|---|---|",
        ]
        parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def publish(kills: dict[str, dict[str, str]]) -> None:
    """Write the three tables."""
    _between(INDEX, MARKS, graded(kills))
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
    for key, some in MISCONCEPTIONS.items():
        head = EVERY[key].label
        for name, belief, truth in some:
            found = KILLERS[kills[named(key, name)]["killer"]]
            rows.append(f"| {head} | {belief} | {truth} | `{key} {name}` | {found} |")
            head = ""
    return "\n".join(rows)


def main(keys: Collection[Key]) -> None:
    chosen = [key for key in EVERY if key in keys or not keys]
    old: dict[str, dict[str, str]] = kept() if FILE.exists() else {}
    new: dict[str, dict[str, str]] = {}
    for key in EVERY:
        if key in chosen:
            new |= judged(key)
            print(f"{called(key)}: {len(wrongs(key))} killed", flush=True)
        else:
            new |= _of_lesson(old, key)
    layout.save(new, FILE)
    publish(new)


def _of_lesson(kills: dict[str, dict[str, str]], key: Key) -> dict[str, dict[str, str]]:
    return {name: kill for name, kill in kills.items() if name.startswith(named(key))}


if __name__ == "__main__":
    main([find(argument).key for argument in sys.argv[1:]])
