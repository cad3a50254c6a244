"""The lines that a search may change, and whether a reply keeps to them."""

from pathlib import Path

from flashcore_numba.course import exercise
from flashcore_numba.course.spec import Lesson
from flashcore_numba.stages import edited
from flashcore_numba.stages.files import is_cuda


def own(lesson: Lesson) -> str:
    """The stage's own lines."""
    return ended(exercise.region(lesson.exercise).text)


def ended(text: str) -> str:
    """The lines without empty ones after the last: so two regions are the same when their texts are."""
    return text.rstrip() + "\n"


def file_name(lesson: Lesson) -> str:
    """Of the file that has the region: of lesson 12 a header, not the stage's own file."""
    file = lesson.exercise.file
    return file if is_cuda(file) else f"{file}.py"


def suffix(lesson: Lesson) -> str:
    """`.cu`, `.cuh` or `.py`."""
    return Path(file_name(lesson)).suffix


def whole(lesson: Lesson, region: str) -> str:
    """The file with these lines as its region."""
    found = exercise.region(lesson.exercise)
    return edited.with_region(exercise.source_text(lesson.exercise.file), found, region)


def outside(blocks: list[tuple[str, str]], region: str) -> str | None:
    """What is wrong with blocks (SEARCH, REPLACE) as an edit of the region, in a sentence; None for nothing.

    openevolve applies the blocks whose first part it finds and leaves out the others without a word.
    """
    from openevolve.utils.code_utils import apply_diff_blocks

    text = region
    for old, new in blocks:
        text, applied = apply_diff_blocks(text, [(old, new)])
        if not applied:
            line = next((line.strip() for line in old.splitlines() if line.strip()), "")
            return f"It changes `{line}`, which is not in the region."
    return None
