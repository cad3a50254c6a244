"""Wrong answers that learners write, one module a lesson: `lessonNN.WRONG`, at least five."""

from dataclasses import dataclass

from flashcore_numba.course import exercise
from flashcore_numba.course.spec import Exercise
from flashcore_numba.stages.edited import Edit, applied

__all__ = ["Wrong", "text_of"]


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, made from the solution.

    edits: (old, new) pairs; each `old` occurs once in the region's own text. text: instead of edits, an
    answer of its own build. says: regular expressions that the message must match. line: the stripped text of
    the answer's line that the message must point at; "" where no line can be named.
    """

    name: str
    mistake: str
    edits: tuple[tuple[str, str], ...]
    says: tuple[str, ...]
    line: str = ""
    text: str = ""


def text_of(wrong: Wrong, task: Exercise) -> str:
    """The answer of a wrong one, as a learner hands it in."""
    if wrong.text:
        return wrong.text
    edits = [Edit(old, new) for old, new in wrong.edits]
    return applied(exercise.region(task).text, edits, f"the region of {task.file}, in {wrong.name}")
