"""`flashcore predict`: a lesson's questions, the reader's answers, and the truth."""

import dataclasses
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from flashcore_numba.cli.output import console, give_json, progress_bar
from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course.lessons import find
from flashcore_numba.course.session.card import Card
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session

EXAMPLE = '{"name": 4, "other": "a choice"}'


def run(args: Namespace) -> int:
    """Keep the answers that are given or asked for, then show the truth of those questions. Returns 0."""
    session = Session(find(args.lesson), Journal())
    given = (_of_file(args.file) if args.file else {}) | _of_words(session, args.values)
    if not given and not args.json and sys.stdin.isatty():
        _ask(session)
    made, truth = session.predict(**given), None
    if made.data["predictions"]:
        with progress_bar() as progress:
            progress.step("counting")
            truth = session.scores()
    if not give_json(args, lambda: {**made.as_dict(), "scores": truth.data["scores"] if truth else []}):
        _with_commands(session, made).render(console())
        if truth:
            truth.render(console())
    return 0


def _of_file(path: Path) -> dict[str, Any]:
    """The object of a JSON file."""
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise ArgumentError(f"--values {str(path)!r}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise ArgumentError(f"--values {str(path)!r}: is not JSON; {EXAMPLE} is accepted") from None
    if not isinstance(values, dict):
        raise ArgumentError(f"--values {str(path)!r}: is no JSON object; {EXAMPLE} is accepted")
    return values


def _of_words(session: Session, words: list[str]) -> dict[str, Any]:
    """Of NAME=VALUE the values by name."""
    values = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals):
            example = session.lesson.questions[0].key
            raise ArgumentError(f"{word!r}: NAME=VALUE is accepted, for example {example}=4")
        values[name] = _value(session, name, text)
    return values


def _value(session: Session, name: str, text: str) -> float | str:
    """A number, unless the question has choices or the text is none: then `Session.predict` says so."""
    if any(question.key == name and question.choices for question in session.lesson.questions):
        return text.strip()
    try:
        return float(text)
    except ValueError:
        return text


def _ask(session: Session) -> None:
    """Ask on the terminal for what is open; an empty line leaves a question open, Ctrl-D all others."""
    made = session.predict()
    (table, *_) = made.parts
    for name, question, unit, _ in table.rows:  # type: ignore[union-attr]
        while name in made.data["open"]:
            print(f"\n{question}")
            try:
                text = input(f"{name}{f' ({unit})' if unit else ''}, or Enter to leave it open: ")
            except EOFError:
                print()
                return
            if not text.strip():
                break
            try:
                made = session.predict(**{name: _value(session, name, text)})
            except ArgumentError as error:
                print(error)
    print()


def _with_commands(session: Session, made: Card) -> Card:
    """The card with what the command line offers in place of a notebook's call."""
    key = session.lesson.key
    if names := made.data["open"]:
        note = f"Not answered: {', '.join(names)}. Answer with `flashcore predict {key} {names[0]}=...`."
    else:
        note = f"All are answered. Next: `flashcore starter {key}` writes the file of the exercise."
    return dataclasses.replace(made, parts=(made.parts[0], note))
