"""The lines that a search may change, and whether a reply keeps to them."""

from pathlib import Path

from flashcore_numba.course import exercise
from flashcore_numba.course.spec import Lesson
from flashcore_numba.evolve import source


def own(lesson: Lesson) -> str:
    """The stage's own lines."""
    return ended(exercise.region(lesson.exercise).text)


def ended(text: str) -> str:
    """The lines without empty ones after the last: so two regions are the same when their texts are."""
    return text.rstrip() + "\n"


def suffix(lesson: Lesson) -> str:
    """`.cu`, `.cuh` or `.py`: of the file that has the region; of lesson 12 it is a header."""
    return Path(source.whole(lesson, "")[0]).suffix


def outside(blocks: list[tuple[str, str]], region: str) -> str | None:
    """What is wrong with blocks (SEARCH, REPLACE) as an edit of the region, in a sentence; None for nothing.

    openevolve applies the blocks whose first part it finds and leaves out the others without a word.
    """
    from openevolve.utils.code_utils import apply_diff_blocks

    if any(character == "\0" or "\ud800" <= character <= "\udfff" for _, new in blocks for character in new):
        return "It has characters that no source file has."
    text = region
    for old, new in blocks:
        text, applied = apply_diff_blocks(text, [(old, new)])
        if not applied:
            line = next((line.strip() for line in old.splitlines() if line.strip()), "")
            return f"It changes `{line}`, which is not in the region."
    return None
