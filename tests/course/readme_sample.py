"""The README's sample of the checker: its reply to a wrong answer, between two comments that name the answer.

`python -m course.readme_sample` in `tests/` judges the answer and writes the reply, and so does `make kills`.
"""

import re
import textwrap
from pathlib import Path

from flashcore_numba.course import exercise
from flashcore_numba.course.judge import grade
from flashcore_numba.course.lessons import LESSONS

from .kill_table import SEED, wrongs
from .wrong_answers import text_of

README = Path(__file__).parents[2] / "README.md"
WIDTH = 96
PLACE = re.compile(r"(<!-- check:(\d\d) (\w+) -->\n).*?(?=<!-- check:end -->)", re.DOTALL)


def reply(number: int, name: str) -> str:
    """What the checker says of a wrong answer, as a block of text."""
    lesson = LESSONS[number]
    (wrong,) = (wrong for wrong in wrongs(number) if wrong.name == name)
    result = grade.check(lesson, exercise.answer_in_cell(lesson, text_of(wrong, lesson.exercise)), seed=SEED)
    assert not result.passed, f"{number:02d} {name} survives"
    lines = [result.heading, *result.message.splitlines()]
    return "\n".join(["```text", *(part for line in lines for part in textwrap.wrap(line, WIDTH)), "```\n"])


def written(page: str) -> str:
    """`page` with the reply in its place."""
    return PLACE.sub(lambda place: place[1] + reply(int(place[2]), place[3]), page)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
