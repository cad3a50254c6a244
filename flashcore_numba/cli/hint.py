"""`flashcore hint`: the hints of a lesson, one at a time."""

from argparse import Namespace

from flashcore_numba.cli.output import console, give_json
from flashcore_numba.course.lessons import find
from flashcore_numba.course.session.card import Card
from flashcore_numba.course.session.journal import Journal
from flashcore_numba.course.session.session import Session


def run(args: Namespace) -> int:
    """Print the next hint, or with `--again` those already seen. Returns 0."""
    shown = _shown(Session(find(args.lesson), Journal()), args.again)
    if not give_json(args, shown.as_dict):
        shown.render(console())
    return 0


def _shown(session: Session, again: bool) -> Card:
    lesson, seen, every = session.lesson, session.hints_seen, session.lesson.exercise.hints
    last = seen if again else seen + 1
    data = {"layer": min(last, len(every)), "layers": len(every)}
    if last == 0:
        note = f"`flashcore hint {lesson.key}` shows the first of {len(every)}."
        return Card(f"{lesson.called}: you have seen no hint", (note,), data | {"hints": []})
    if last > len(every):
        note = f"`flashcore hint {lesson.key} --again` shows all {len(every)} of them."
        return Card(f"{lesson.called}: you have seen every hint", (note,), data | {"hints": []})
    hints = session.hints(last).data["hints"][0 if again else last - 1 :]
    left = len(every) - last
    more = f"`flashcore hint {lesson.key}` shows the next of {left} more." if left else "There are no more."
    numbered = (f"{n}. {text}" for n, text in enumerate(hints, last - len(hints) + 1))
    return Card(f"{lesson.called}: hint {last} of {len(every)}", (*numbered, more), data | {"hints": hints})
