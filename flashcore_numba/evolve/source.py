"""A file that somebody proposes: read, recognised, and marked as the judge expects it."""

import ast
from pathlib import Path

from flashcore_numba.core.errors import ArgumentError
from flashcore_numba.course import exercise
from flashcore_numba.course.exercise import LARGEST_ANSWER
from flashcore_numba.course.lessons import OF_KERNELS, find
from flashcore_numba.course.spec import Key, Lesson
from flashcore_numba.stages.edited import MARKS, Region, marked_region, with_region
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


def of_kernel(key: Key) -> Lesson:
    """A lesson by number or name. Raises ArgumentError for one that there is not, or that has no kernel."""
    lesson = find(str(key))
    if lesson.key not in OF_KERNELS:
        known = ", ".join(map(str, OF_KERNELS))
        raise ArgumentError(f"lesson {lesson.key} has no kernel to evaluate: those that have are {known}")
    return lesson


def lesson_of(name: str, text: str) -> Lesson:
    """The lesson whose file a text is. Raises ArgumentError where it is none, or that of several."""
    lines = set(text.splitlines())
    shares: dict[float, list[Lesson]] = {}
    for lesson in OF_KERNELS.values():
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


def outside(text: str, lesson: Lesson) -> tuple[int | None, str] | None:
    """The first line of a marked file in Python that is not the kernel's region and not the stage's, and a
    sentence; None where there is none.

    A learner may change what is around the region. A candidate may not: it is host code, which runs where
    the kernel is launched. Of CUDA C the judge says it itself.
    """
    found, own = marked_region(text, "Python"), exercise.region(lesson.exercise)
    if found is None:
        return None, f"The markers {' and '.join(MARKS['Python'])} are not there once each."
    own_text = exercise.source_text(lesson.exercise.file)
    lines, stage = ([line.rstrip() for line in each.rstrip().splitlines()] for each in (text, own_text))
    parts = (
        (lines[: found.first_line - 1], stage[: own.first_line - 1], 1),
        (lines[found.last_line :], stage[own.last_line :], found.last_line + 1),
    )
    for theirs, ours, first in parts:
        for n in range(max(len(theirs), len(ours))):
            if theirs[n : n + 1] != ours[n : n + 1]:
                changed = (theirs[n : n + 1] or [""])[0].strip()
                said = f"A line outside the region is not the stage's: `{changed}`."
                return min(first + n, len(lines)), said
    return _of_host(text, found)


def _of_host(text: str, found: Region) -> tuple[int, str] | None:
    """A statement of the region that imports, or is further left than its marks and so outside the kernel."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the judge says where
        return None
    lines = text.splitlines()
    for node in [each for each in ast.walk(tree) if isinstance(each, ast.stmt)]:
        if not found.first_line <= node.lineno <= found.last_line:
            continue
        what = lines[node.lineno - 1].strip()
        if node.col_offset < found.indent:
            return node.lineno, f"The region ends before `{what}`, which stands further left."
        if isinstance(node, ast.Import | ast.ImportFrom):
            return node.lineno, f"A region imports nothing: `{what}`."
    return None


def whole(lesson: Lesson, region: str) -> tuple[str, str]:
    """The name and the text of a lesson's file with these lines as its region."""
    exercise_ = lesson.exercise
    own = exercise.source_text(exercise_.file)
    name = exercise_.file if is_cuda(exercise_.file) else f"{exercise_.file}.py"
    return name, with_region(own, exercise.region(exercise_), region)
