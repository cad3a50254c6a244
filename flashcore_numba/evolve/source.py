"""A file that somebody proposes: read, recognised, and marked as the judge expects it."""

from pathlib import Path

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import LARGEST_ANSWER
from flashcore_numba.course.lessons import EVERY
from flashcore_numba.course.spec import Lesson
from flashcore_numba.stages.edited import MARKS, with_region
from flashcore_numba.stages.files import is_cuda

EVOLVE = ("EVOLVE-BLOCK-START", "EVOLVE-BLOCK-END")
LEAST_SHARE = 0.6  # of a stage's lines that a file of its lesson has


def read(path: Path) -> str:
    """The text of a source file. Raises ArgumentError for what is missing, no file, too long or no text."""
    try:
        if path.exists() and not path.is_file():
            raise ArgumentError(f"{str(path)!r}: no file; a source file is accepted")
        with path.open("rb") as file:
            data = file.read(4 * LARGEST_ANSWER + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"{str(path)!r}: cannot be read ({reason})") from None
    if len(data) > 4 * LARGEST_ANSWER:
        raise ArgumentError(f"{str(path)!r}: at most {LARGEST_ANSWER} characters are accepted")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ArgumentError(f"{str(path)!r}: no text in UTF-8; a source file is accepted") from None


def lesson_of(name: str, text: str) -> Lesson:
    """The lesson whose file a text is. Raises ArgumentError where it is none, or that of several."""
    lines = set(text.splitlines())
    shares: dict[float, list[Lesson]] = {}
    for lesson in EVERY.values():
        region = exercise.region(lesson.exercise)
        stage = exercise.source_text(lesson.exercise.file).splitlines()
        outside = [*stage[: region.first_line - 1], *stage[region.last_line :]]
        share = sum(line in lines for line in outside) / len(outside)
        shares.setdefault(share, []).append(lesson)
    best = max(shares)
    if best < LEAST_SHARE or len(shares[best]) > 1:
        found = (
            "" if best < LEAST_SHARE else f"; lessons {', '.join(str(each.key) for each in shares[best])} fit"
        )
        raise ArgumentError(f"{name}: not clear which lesson it answers{found}; name it")
    return shares[best][0]


def marked(text: str, lesson: Lesson) -> str:
    """The text with the judge's marks in place of EVOLVE-BLOCK-START and -END; no line changes its number."""
    cuda = is_cuda(lesson.exercise.file)
    marks = MARKS["CUDA C" if cuda else "Python"]
    comment = "//" if cuda else "#"
    lines = text.split("\n")
    has = [line.strip() for line in lines]
    for mark, own in zip(EVOLVE, marks, strict=True):
        for n in [n for n, line in enumerate(has) if line == f"{comment} {mark}"]:
            lines[n] = "" if own in has else own
    return "\n".join(lines)


def whole(lesson: Lesson, region: str) -> tuple[str, str]:
    """The name and the text of a lesson's file with these lines as its region."""
    exercise_ = lesson.exercise
    own = exercise.source_text(exercise_.file)
    name = exercise_.file if is_cuda(exercise_.file) else f"{exercise_.file}.py"
    return name, with_region(own, exercise.region(exercise_), region)
