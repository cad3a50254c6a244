"""Wrong answers that learners write, one module per lesson: `lessonNN.WRONG`, at least five.

The warm-up of lesson 07 has `warm_up.WRONG`.
"""

from dataclasses import dataclass

from flashcore_numba.course import exercise
from flashcore_numba.course.judge.causes import CAUSES
from flashcore_numba.course.spec import Exercise
from flashcore_numba.stages.edited import Edit, applied

__all__ = ["Wrong", "text_of"]


@dataclass(frozen=True)
class Wrong:
    """A wrong answer.

    text: an answer of its own build; by default the region's own text. edits: (old, new) pairs that make it
    wrong, one after the other; each `old` occurs once. says: regular expressions that the message must match.
    line: the stripped text of the answer's line that the message must point at; "" where no line can be
    named. cause: the key of `judge.causes.CAUSES` that is this mistake.
    """

    name: str
    mistake: str
    edits: tuple[tuple[str, str], ...]
    says: tuple[str, ...]
    line: str = ""
    text: str = ""
    cause: str = ""

    def __post_init__(self) -> None:
        if self.cause and self.cause not in CAUSES:
            raise ValueError(f"{self.name}: {self.cause!r} is no cause of course/judge/causes.py")


def text_of(wrong: Wrong, task: Exercise) -> str:
    """The answer of a wrong one, as a learner hands it in."""
    text = wrong.text or exercise.region(task).text
    edits = [Edit(old, new) for old, new in wrong.edits]
    return applied(text, edits, f"what {wrong.name} of {task.file} is made from")
