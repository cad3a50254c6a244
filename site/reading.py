"""The notebooks as pages to read: in place of an empty run, a real attempt, its reply, and what passes.

The notebooks of the repository stay as a learner finds them, with an empty region. Here the outputs of their
calls are made anew: the judge runs on a wrong answer that people write, and on the stage's own lines.
"""

import dataclasses
import difflib
import functools
import html
import json
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from course import misconceptions, wrong_answers
from course.kill_table import module_name, wrongs
from course.wrong_answers import Wrong, text_of
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import CppLexer, DiffLexer, PythonLexer

from flashcore_numba.course import exercise, lessons
from flashcore_numba.course.judge import process
from flashcore_numba.course.judge.verdict import CheckResult
from flashcore_numba.course.session.card import Card
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session
from flashcore_numba.course.spec import Key, Lesson
from flashcore_numba.stages import files

SEED = 20260101
SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """A wrong answer and the stage's own lines, each with the judge's reply."""

    wrong: Wrong
    wrong_lines: str
    reply: CheckResult
    right_lines: str
    passed: CheckResult


@functools.cache
def attempt(key: Key) -> Attempt:
    """The first misconception of a lesson or a warm-up, judged.

    Raises RuntimeError where it does not fail, or where the stage's own lines do not pass.
    """
    lesson = lessons.find(key)
    name = misconceptions.MISCONCEPTIONS[key][0][0]
    (wrong,) = (each for each in wrongs(key) if each.name == name)
    lines = [text_of(wrong, lesson.exercise), exercise.region(lesson.exercise).text]
    wrong_lines, right_lines = (textwrap.dedent(text).strip("\n") + "\n" for text in lines)
    reply, passed = _judged(lesson, wrong_lines), _judged(lesson, right_lines)
    if reply.status != "failed" or not passed.passed:
        raise RuntimeError(f"lesson {key}: {name} is {reply.status}, the stage is {passed.status}")
    return Attempt(wrong, wrong_lines, reply, right_lines, passed)


def _judged(lesson: Lesson, answer: str) -> CheckResult:
    job = {"job": "check", "lesson": lesson.key, "answer": answer, "seed": SEED}
    reply = process.run(job, SECONDS)
    if not reply["result"]:
        raise RuntimeError(f"lesson {lesson.key}: {reply['why']}")
    return CheckResult.from_dict(reply["result"])


def taught(page: str) -> list[Lesson]:
    """What a notebook teaches: a lesson, after its warm-up where it has one."""
    return [each for each in lessons.EVERY.values() if each.file == Path(page).stem]


def sources(page: str) -> Iterator[Path]:
    """The files on which a page depends beside its notebook."""
    yield Path(__file__)
    yield from Path(process.__file__).parent.glob("*.py")
    yield Path(misconceptions.__file__)
    for lesson in taught(page):
        name = module_name(lesson.key)
        yield Path(lessons.__file__).with_name(f"{name}.py")
        yield files.path(lesson.exercise.file)
        yield Path(wrong_answers.__file__).with_name(f"{name}.py")


def shown_attempt(lesson: Lesson) -> str:
    """The attempt as HTML: its lines, the reply, the mistake and its repair, the pass."""
    one = attempt(lesson.key)
    return (
        "<p>An attempt that fails, and the reply to it:</p>"
        f"{_code(lesson, one.wrong_lines)}"
        f"{one.reply._repr_html_()}"
        "<details><summary>The mistake, and its repair: this shows an answer that passes</summary>"
        f"<p>{html.escape(one.wrong.mistake)}</p>{_difference(one.wrong_lines, one.right_lines)}</details>"
        f"{dataclasses.replace(one.passed, notes=())._repr_html_()}"  # what this machine could not do
    )


def _code(lesson: Lesson, lines: str) -> str:
    language, lexer = (
        ("cpp", CppLexer()) if files.is_cuda(lesson.exercise.file) else ("python", PythonLexer())
    )
    shown = highlight(lines, lexer, HtmlFormatter(linenos="inline", wrapcode=True))
    return f'<div class="highlight-{language} notranslate">{shown}</div>'


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=999, lineterm="")
    text = "\n".join(list(lines)[3:]) + "\n"
    shown = highlight(text, DiffLexer(), HtmlFormatter(wrapcode=True))
    return f'<div class="highlight-diff notranslate">{shown}</div>'


def edition(text: str, page: str) -> str:
    """The text of a notebook with the outputs that a reader who runs nothing wants."""
    book = json.loads(text)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        sessions = {each.variable: Session(each, journal) for each in taught(page)}
        for cell in book["cells"]:
            found = re.search(CALL, "".join(cell["source"]), re.MULTILINE)
            if cell["cell_type"] == "code" and found and found["call"] in OUTPUTS:
                shown = OUTPUTS[found["call"]](sessions[found["variable"]]) if found["variable"] else ""
                data = {"output_type": "display_data", "metadata": {}, "data": {"text/html": shown}}
                cell["outputs"] = [data] if shown else []
    return json.dumps(book)


def _idea(session: Session) -> str:
    return f"<p>{html.escape(session.lesson.idea)}</p>"


def _questions(session: Session) -> str:
    card = session.predict()
    (table, *_) = card.parts
    rows = "".join(
        f"<li><code>{name}</code>{f' ({html.escape(unit)})' if unit else ''}: {html.escape(question)}</li>"
        for name, question, unit, _ in table.rows
    )
    return f"<p>Write down your answers before you read on. The truth is under Measure.</p><ul>{rows}</ul>"


def _measured(session: Session) -> str:
    """The recorded times, and the truth of each question behind a line to open."""
    questions = session.lesson.questions
    session.predict(
        **{q.key: q.choices[0] if q.choices else 1 for q in questions}
    )  # any: the truth is the same
    card = session.scores()
    (table, *_) = card.parts
    truths = {name: truth for name, _, truth, *_ in table.rows}
    times = session.recorded()
    parts = [Card("Recorded times", times.parts)._repr_html_()] if times.parts else []
    parts.append("<p><strong>The questions</strong></p>")
    parts += [
        _opened(
            f"<code>{score['key']}</code>: {html.escape(score['text'])}",
            f"{html.escape(truths[score['key']])}, {score['source']}. {html.escape(score['why'])}",
        )
        for score in card.data["scores"]
    ]
    return "".join(parts)


def _choices(session: Session) -> str:
    """What limits the kernel: each choice with what speaks for it or against it."""
    explanation = session.lesson.explanation
    said = {
        choice: session.explain(choice).parts[0].removeprefix(f"{choice}: ")
        for choice in explanation.feedback
    }
    lines = "".join(_opened(html.escape(choice), html.escape(text)) for choice, text in said.items())
    return f"<p><strong>{html.escape(explanation.text)}</strong></p>{lines}"


def _hints(session: Session) -> str:
    hints = session.lesson.exercise.hints
    return "".join(_opened(f"Hint {n} of {len(hints)}", html.escape(text)) for n, text in enumerate(hints, 1))


def _opened(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary><p>{text}</p></details>"


VARIABLES = "|".join(sorted({each.variable for each in lessons.EVERY.values()}))
CALL = rf"^(?:%%(?P<magic>write) |(?P<variable>{VARIABLES})(?:$|\.(?P<call>\w+)\())"
# What a cell with this call shows; "" is nothing. The others keep what `flashcore lessons --execute` stored.
OUTPUTS: dict[str | None, Callable[[Session], str]] = {
    None: _idea,
    "predict": _questions,
    "check": lambda session: shown_attempt(session.lesson),
    "hints": _hints,
    "measure": _measured,
    "explain": _choices,
    "progress": lambda session: "",
}
